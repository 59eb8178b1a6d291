"""What ``benchmarks/prepare.py`` runs beside ``millstream prepare``, each as a process of its own: bare loops, and peers with a python of theirs.

    python benchmarks/prepare_peers.py gigatoken|tokenizers|megatron-fast|megatron|datatrove FILE OUT --tokenizer T --eos-token E [...]

A bare loop is what nobody can do without: read lines, orjson, encode, EOS, cast, write. It checks nothing, recovers from nothing and forgets where
documents begin. An environment for the peers, with a checkout of Megatron-LM that has tools/preprocess_data_fast.py:

    pip install torch==2.13.0 numpy gigatoken tokenizers transformers orjson awkward xxhash triton loguru fsspec multiprocess humanize regex psutil pyyaml
    pip install --no-deps datatrove
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import sys
import types
from array import array
from collections.abc import Iterator
from importlib import import_module
from itertools import islice
from pathlib import Path

import numpy as np

_MANY = 1000  # documents a call


def main() -> None:
    """Do one of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("file", type=Path, help="lines of JSON; datatrove: a folder of such files")
    parser.add_argument("out", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True, help="a tokenizer.json")
    parser.add_argument("--eos-token", required=True)
    parser.add_argument("--eos-id", type=int, default=0, help="of a bare loop")
    parser.add_argument("--dtype", default="uint16", help="of a bare loop's output")
    parser.add_argument("--part", default="0/1", metavar="K/N", help="of the file, for a bare loop")
    parser.add_argument("--workers", type=int, default=1, help="of a peer")
    parser.add_argument("--megatron", type=Path, help="the checkout")
    CASES[parser.parse_args().case](parser.parse_args())


def bare_gigatoken(options: argparse.Namespace) -> None:
    """One document at a time: its calls for many load awkward, a second and 90 MB, and are no faster for documents of a page."""
    loads = import_module("orjson").loads
    encode = import_module("gigatoken").Tokenizer(str(options.tokenizer)).encode
    eos = np.array([options.eos_id], options.dtype)
    with open(options.out, "wb", buffering=1 << 20) as out:
        for line in lines(options.file, options.part):
            out.write(encode(loads(line)["text"]).astype(options.dtype).data)
            out.write(eos.data)


def bare_tokenizers(options: argparse.Namespace) -> None:
    """A thousand documents at a time; one thread or all cores, as TOKENIZERS_PARALLELISM says."""
    loads = import_module("orjson").loads
    encode = import_module("tokenizers").Tokenizer.from_file(str(options.tokenizer)).encode_batch_fast
    of_file = lines(options.file, options.part)
    with open(options.out, "wb") as out:
        while texts := [loads(line)["text"] for line in islice(of_file, _MANY)]:
            ids = array("H" if options.dtype == "uint16" else "I")
            for encoding in encode(texts, add_special_tokens=False):
                ids.fromlist(encoding.ids)
                ids.append(options.eos_id)
            out.write(ids)


def lines(path: Path, part: str) -> Iterator[bytes]:
    """Yield the lines that begin in part K of N of a file."""
    number, parts = map(int, part.split("/"))
    size = path.stat().st_size
    with open(path, "rb") as file:
        at = size * number // parts
        if at:
            file.seek(at - 1)
            at += len(file.readline()) - 1
        for line in file:
            if at >= size * (number + 1) // parts:
                return
            yield line
            at += len(line)


def megatron(options: argparse.Namespace, *, fast: bool = False) -> None:
    """Run its tools/preprocess_data.py, or the one with gigatoken; its training package, which declares some flags and loads the world, is left out."""
    folder = hugging_face_folder(options)
    given = [
        *("--input", str(options.file), "--output-prefix", str(options.out), "--append-eod"),
        *([] if fast else ["--workers", str(options.workers)]),
    ]
    training = types.ModuleType("megatron.training")
    training.__path__ = []
    arguments = types.ModuleType("megatron.training.arguments")
    tokenizer = {"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": str(folder), "use_gigatoken": fast}
    unsaid = ["vocab_file", "merge_file", "special_tokens", "chat_template", "metadata_path", "pad_vocab_size"]
    unsaid += ["tokenizer_hf_no_use_fast", "trust_remote_code", "tokenizer_hf_no_include_special_tokens"]

    def add(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
        parser.set_defaults(**tokenizer, **dict.fromkeys(unsaid))
        return parser

    arguments._add_tokenizer_args = add  # type: ignore[attr-defined]
    sys.modules |= {"megatron.training": training, "megatron.training.arguments": arguments}
    script = options.megatron / "tools" / ("preprocess_data_fast.py" if fast else "preprocess_data.py")
    sys.path.insert(0, str(options.megatron))
    sys.argv = [str(script), *given]
    runpy.run_path(str(script), run_name="__main__")


def megatron_fast(options: argparse.Namespace) -> None:
    """Run its tools/preprocess_data_fast.py."""
    megatron(options, fast=True)


def hugging_face_folder(options: argparse.Namespace) -> Path:
    """Return a folder that transformers takes for a tokenizer."""
    folder = Path(f"{options.out}-tokenizer")
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes(options.tokenizer.read_bytes())
    described = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": options.eos_token}
    (folder / "tokenizer_config.json").write_text(json.dumps(described))
    return folder


def datatrove(options: argparse.Namespace) -> None:
    """DocumentTokenizer behind JsonlReader, its defaults (it shuffles documents) but 1,000 documents a call; a task is a file."""
    executor = import_module("datatrove.executor").LocalPipelineExecutor
    reader = import_module("datatrove.pipeline.readers").JsonlReader(str(options.file))
    writer = import_module("datatrove.pipeline.tokens").DocumentTokenizer(
        str(options.out / "corpus"),
        tokenizer_name_or_path=str(options.tokenizer),
        eos_token=options.eos_token,
        batch_size=_MANY,
    )
    executor(
        [reader, writer], tasks=options.workers, workers=options.workers, logging_dir=str(options.out / "log")
    ).run()


CASES = {
    "gigatoken": bare_gigatoken,
    "tokenizers": bare_tokenizers,
    "megatron-fast": megatron_fast,
    "megatron": megatron,
    "datatrove": datatrove,
}

if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    main()
