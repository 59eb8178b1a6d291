"""Our first batch beside the index that peers build before theirs, at 10^8 documents.

    python benchmarks/index_build.py [--millions N] [--rounds N] [--folder DIR]

Each case is a process of its own: it imports, makes its input, and is then measured until it can say which tokens any sample of the epoch is; we
go on to the first batch, [8, 2049] with segment ids. Memory is the peak resident set (VmHWM) above what is resident just before. Our corpora are hard
links to one shard of 10^6 documents of 600 tokens (1.2 GB on disk). A peer's input, the lengths of documents (on average 600) or the number of samples,
is in its memory already and not counted. What is not importable is left out, aloud. An environment for all:

    pip install torch==2.13.0 packaging transformers pillow catalogue xxhash zstd brotli python-snappy tqdm
    pip install --no-deps megatron-core mosaicml-streaming
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from scale import write_corpora

DOCUMENTS = 10**6  # of a shard
LENGTH = 600  # tokens of a document

_BEGIN = """
import sys, time
began = time.perf_counter()
def kilobytes(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name))
def measure(build):
    imported = time.perf_counter()
    arguments = prepare()
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak begins anew
    before = kilobytes("VmRSS")
    start = time.perf_counter()
    kept = build(*arguments)
    seconds = time.perf_counter() - start
    print(imported - began, seconds, (kilobytes("VmHWM") - before) / 1e3)
def prepare():
    return ()
"""

_OURS = """
import neutral_core as nc
def build():
    plan = nc.Plan(nc.Source(nc.open_corpus(sys.argv[2])), seq_len=2048, seed=1, documents=True, document_shuffle=sys.argv[3] == "shuffled")
    batch = next(nc.Loader(plan, batch_size=8))
    assert batch["tokens"].shape == (8, 2049)
    return batch
measure(build)
"""

_MEGATRON = """
import numpy as np
from megatron.core.datasets import helpers
from megatron.core.datasets.gpt_dataset import _build_document_index, _build_shuffle_index
def prepare():
    count = int(sys.argv[1])
    lengths = np.resize(np.random.default_rng(0).integers(2, 1199, 10**6, dtype=np.int32), count)
    return np.arange(count, dtype=np.int32), lengths, int(lengths.sum(dtype=np.int64))
def build(documents, lengths, total):
    random = np.random.RandomState(1)
    document_index = _build_document_index(documents, 1, random, False)
    sample_index = helpers.build_sample_idx(lengths, document_index, 2048, 1, total, True, True)
    samples = len(sample_index) - 1
    return document_index, sample_index, _build_shuffle_index(samples, samples, random)
measure(build)
"""

_MOSAICML = """
import types, importlib.machinery, importlib.util
import numpy as np
if importlib.util.find_spec("torchvision") is None:  # imported for images, which are not used here
    names = ["", ".datasets", ".datasets.folder", ".io", ".transforms", ".transforms.functional"]
    for name in ("torchvision" + each for each in names):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__spec__ = importlib.machinery.ModuleSpec(name, None)
        sys.modules[name].__path__ = []
    sys.modules["torchvision"].__version__ = "0"
    sys.modules["torchvision.datasets"].VisionDataset = object
    sys.modules["torchvision.transforms.functional"].to_tensor = None
from streaming.base.partition import get_partitions
from streaming.base.shuffle import get_shuffle
def prepare():
    samples = int(sys.argv[1]) * 600 // 2048
    sizes = np.full(-(-samples // 16384), 16384, dtype=np.int64)  # shards of 64 MiB
    sizes[-1] -= sizes.sum() - samples
    return samples, sizes
def build(samples, sizes):
    ids = get_partitions("relaxed", samples, 1, 1, 1, 1, 8, 0, 1)
    shuffled = get_shuffle(sys.argv[2], sizes, 1, 1, 0, 1 << 18)
    return np.where(ids != -1, shuffled[ids], -1)
measure(build)
"""


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=int, default=100, help="of documents")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--folder", type=Path, help="for corpora of 1.2 GB each (default: the system's for temporary files)"
    )
    options = parser.parse_args()
    count = options.millions * DOCUMENTS
    with tempfile.TemporaryDirectory(prefix="millstream-index-", dir=options.folder) as folder:
        paths = {}
        for shards in (options.millions, 10 * options.millions):
            paths[shards] = Path(folder) / str(shards)
            paths[shards].mkdir()
            write_corpora(paths[shards], shards=shards, documents=DOCUMENTS, tokens=DOCUMENTS * LENGTH)
        one, ten = (str(path / "one") for path in paths.values())
        cases = [
            ("ours: first batch", "windows", [_BEGIN + _OURS, str(count), one, "as are"]),
            ("ours: first batch, document_shuffle", "documents in 128s, windows", [_BEGIN + _OURS, str(count), one, "shuffled"]),
            ("ours: first batch, ten times the documents", "windows", [_BEGIN + _OURS, str(count), ten, "as are"]),
            ("Megatron-core: three indices", "documents, samples", [_BEGIN + _MEGATRON, str(count)]),
            ("MosaicML, py1s: partition and shuffle", "samples", [_BEGIN + _MOSAICML, str(count), "py1s"]),
            ("MosaicML, py1e: partition and shuffle", "samples, within blocks", [_BEGIN + _MOSAICML, str(count), "py1e"]),
        ]  # fmt: skip
        found = _rounds([(name, arguments) for name, _, arguments in cases], options.rounds)
    print(
        f"| {f'{count:,} documents':42} | {'shuffles':26} | imports, s | then, s | least … most    | MB above imports |"
    )
    print(f"|{'-' * 44}|{'-' * 28}|{'-' * 12}|{'-' * 9}|{'-' * 17}|{'-' * 18}|")
    for name, shuffles, _ in cases:
        if rows := found.get(name):
            imports, seconds, memory = zip(*rows, strict=True)
            spread = f"{min(seconds):.3f} … {max(seconds):.3f}"
            print(
                f"| {name:42} | {shuffles:26} | {statistics.median(imports):10.2f} | {statistics.median(seconds):7.3f} | {spread:15} "
                f"| {statistics.median(memory):16,.0f} |"
            )


def _rounds(cases: list[tuple[str, list[str]]], rounds: int) -> dict[str, list[tuple[float, float, float]]]:
    """Return (seconds of imports, seconds, megabytes) of each case, round by round; say what is left out."""
    found: dict[str, list[tuple[float, float, float]]] = {name: [] for name, _ in cases}
    for _ in range(rounds):
        for name, arguments in cases:
            if name not in found:
                continue
            done = subprocess.run([sys.executable, "-W", "ignore", "-c", *arguments], capture_output=True, text=True)
            if done.returncode:
                print(f"left out: {name} ({done.stderr.strip().splitlines()[-1]})")
                del found[name]
                continue
            imports, seconds, memory = map(float, done.stdout.split()[-3:])
            found[name].append((imports, seconds, memory))
    return found


if __name__ == "__main__":
    main()
