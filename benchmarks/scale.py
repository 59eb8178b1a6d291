"""From a fresh interpreter to the first batch of a corpus of 10^9 documents and 10^12 tokens.

    python benchmarks/scale.py [--rounds N] [--folder DIR]

The corpus is 1,000 hard links to one shard of 10^6 documents and 10^9 tokens (2 GB on disk), once as one corpus, once as 1,000 corpora. Each case is
a process of its own that imports, opens, plans, and serves [8, 2049] from the sample given, with segment ids; seconds are from its start to that batch,
memory is its peak resident set (VmHWM) above that of a process that imports numpy. The plain import's seconds stand in the first row.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from neutral_core.format.manifest import MANIFEST, Manifest
from neutral_core.format.publish import shard_name
from neutral_core.format.shard import Entry, Shard
from neutral_core.format.writer import CorpusWriter

SHARDS = 1000
DOCUMENTS = 10**6  # of a shard
TOKENS = 10**9

_END = """
for line in open("/proc/self/status"):
    if line.startswith("VmHWM"):
        print("VmHWM", line.split()[1])
"""
_NUMPY = "import numpy" + _END
_FIRST_BATCH = (
    """
import sys
import neutral_core as nc
folder, count, sample = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
if count == 1:
    sources = nc.Source(nc.open_corpus(f"{folder}/one"))
else:
    sources = [nc.Source(nc.open_corpus(f"{folder}/many/{i}"), name=f"s{i}", weight=1 + i % 7) for i in range(count)]
plan = nc.Plan(sources, seq_len=2048, seed=1, documents=True)
loader = nc.Loader(plan, batch_size=8)
loader.seek(sample)
batch = next(loader)
assert batch["tokens"].shape == (8, 2049) and batch["sample"][0] == sample
"""
    + _END
)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--folder", type=Path, help="for the corpus of 2 GB (default: the system's for temporary files)"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="millstream-scale-", dir=options.folder) as folder:
        write_corpora(Path(folder))
        cases = [("import numpy", [_NUMPY])]
        for count in (1, SHARDS):
            for sample in (0, 10**11):
                name = f"first batch, {count:,} source{'s' * (count > 1)}, sample {sample:,}"
                cases.append((name, [_FIRST_BATCH, folder, str(count), str(sample)]))
        found: dict[str, list[tuple[float, float]]] = {name: [] for name, _ in cases}
        for _ in range(options.rounds):
            for name, arguments in cases:
                found[name].append(_run(arguments))
    floor = statistics.median(memory for _, memory in found["import numpy"])
    print(f"| {'10^9 documents, 10^12 tokens':48} | seconds | MB above numpy |")
    print(f"|{'-' * 50}|{'-' * 9}|{'-' * 16}|")
    for name, rows in found.items():
        seconds = statistics.median(seconds for seconds, _ in rows)
        print(f"| {name:48} | {seconds:7.2f} | {statistics.median(memory for _, memory in rows) - floor:14.0f} |")


def _run(arguments: list[str]) -> tuple[float, float]:
    """Return seconds and peak resident megabytes of a process."""
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", *arguments], check=True, capture_output=True, text=True)
    seconds = time.perf_counter() - begin
    return seconds, int(done.stdout.split()[-1]) / 1e3


def write_corpora(folder: Path, *, shards: int = SHARDS, documents: int = DOCUMENTS, tokens: int = TOKENS) -> None:
    """Write ``folder/one``, one corpus of many hard links to a shard, and ``folder/many/0 …``, a corpus for each of them."""
    each = tokens // documents
    with CorpusWriter(folder / "first", vocab_size=50257, tokens_per_shard=2 * tokens) as writer:
        block = np.random.default_rng(0).integers(0, 50257, 1000 * each, dtype=np.uint16)
        for _ in range(documents // 1000):
            writer.add_many(block, np.full(1000, each))
    first = folder / "first" / shard_name(0)
    shard = Shard(first)
    found, content = shard.entry, shard.open()
    for name, count in [("one", shards), *((f"many/{number}", 1) for number in range(shards))]:
        place = folder / name
        place.mkdir(parents=True)
        entries = []
        for number in range(count):
            os.link(first, place / shard_name(number))
            entries.append(
                Entry(
                    name=shard_name(number),
                    num_bytes=found.num_bytes,
                    num_documents=found.num_documents,
                    num_tokens=found.num_tokens,
                    digest=found.digest,
                )
            )
        manifest = Manifest(
            vocab_size=content.vocab_size, tokenizer=content.tokenizer, fields=content.fields, entries=tuple(entries)
        )
        (place / MANIFEST).write_bytes(manifest.to_bytes())


if __name__ == "__main__":
    main()
