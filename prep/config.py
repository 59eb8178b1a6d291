"""``--config FILE``: what the flags say, in YAML or JSON. A key is a flag's name with underscores; Fast-LLM's keys are taken where they mean the same.

output_path: corpora/books           # Fast-LLM's first format, as it stands
loading_workers: 4
tokenize_workers: 4
saving_workers: 4
dataset: {name_or_path: texts/}
tokenizer: {path: tokenizers/gpt2}
"""

from __future__ import annotations

import argparse
import difflib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from prep.extras import require

WORKERS = (
    "loading_workers",
    "tokenize_workers",
    "saving_workers",
    "num_workers",
)  # of stages that are one here: the most of them
# Fast-LLM's name: ours.
SAME = {
    "output_path": "destination",
    "dataset.name_or_path": "inputs",
    "dataset.path": "inputs",
    "dataset.data_files": "glob",
    "dataset.config_name": "hub_config",
    "dataset.split": "hub_split",
    "dataset.field": "text_key",
    "dataset.source_schema.text": "text_key",
    "tokenizer.path": "tokenizer",
    "tokenizer.bos_token": "bos_token",
    "tokenizer.eos_token": "eos_token",
    "add_bos": "prepend_bos",
    "add_eos": "append_eos",
    **dict.fromkeys(WORKERS, "workers"),
}
# Fast-LLM's name: the values at which it says nothing that is not so here anyway. None: all of them.
WITHOUT_EFFECT: dict[str, tuple[Any, ...] | None] = {
    "dataset.trust_remote_code": (False,),
    "dataset.disable_disk_space_check": None,
    "dataset.load_from_disk": None,
    "dataset.data_type": (None,),
    "dataset.source_schema.type": ("document",),
    "tokenizer.trust_remote_code": (False,),
    "tokenizer.max_vocab_size": (None,),
    "splits": (None,),
    "distributed.backend": None,
    "distributed.timeout": None,
}
# Fast-LLM's name: why it is refused, and what to say instead.
REFUSED = {
    "documents_per_shard": "shards are cut by tokens: give tokens_per_shard",
    "splits": "its splits are cut by place, ours by a hash of each text: give validation: 0.01 for a training and a validation corpus",
    "dataset.data_type": "the narrowest type that holds the vocabulary is used",
    "dataset.data_directory": "name the folder in dataset.path, or its files with dataset.data_files",
    "dataset.source_schema.type": "only documents of text are read",
    "dataset.trust_remote_code": "no code of a dataset is ever run",
    "tokenizer.trust_remote_code": "no code of a tokenizer is ever run",
    "tokenizer.max_vocab_size": "ids are stored as the tokenizer gives them",
}


def load(path: str, actions: Sequence[argparse.Action]) -> dict[str, Any]:
    """Return what a configuration file says, by the flags' ``dest``.

    Args:
        path: of the file.
        actions: the command's arguments; each of them can be said in the file, and nothing else.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is no YAML, a key is unknown (with the nearest known one) or refused, or a value is none of its flag's.
    """
    known = {action.dest: action for action in actions}
    found: dict[str, Any] = {}
    said: dict[str, str] = {}
    for key, value in _flat(_content(path), (*known, *SAME, *WITHOUT_EFFECT, *REFUSED, "distributed.rank"), ""):
        if key in WITHOUT_EFFECT and _says_nothing(WITHOUT_EFFECT[key], value):
            continue
        if key in REFUSED:
            raise ValueError(f"{path}: {key} is {value!r}: {REFUSED[key]}.")
        if key in ("distributed.rank", "distributed.world_size"):
            found.setdefault("rank", {})[key] = value
            continue
        dest = SAME.get(key, key)
        if dest not in known:
            _refuse_unknown(path, key, [*known, *SAME, *WITHOUT_EFFECT, *REFUSED])
        if value is None:
            continue
        checked = _value(path, key, value, known[dest])
        if key in WORKERS and said.get(dest) in WORKERS:
            found[dest] = max(found[dest], checked)
            continue
        if dest in found:
            raise ValueError(f"{path}: {said[dest]} and {key} say the same thing: leave one of them out.")
        found[dest], said[dest] = checked, key
    if isinstance(found.get("rank"), dict):
        numbers = found["rank"]
        text = f"{numbers.get('distributed.rank', 0)}/{numbers.get('distributed.world_size', 1)}"
        found["rank"] = _value(path, "distributed", text, known["rank"])
    return found


def _content(path: str) -> Mapping[str, Any]:
    text = Path(path).expanduser().read_text(encoding="utf-8")
    try:
        if path.endswith(".json"):
            content = json.loads(text)
        else:
            yaml = require("yaml", extra="prep", purpose="--config with a file of YAML")
            try:
                content = yaml.safe_load(text)
            except yaml.YAMLError as error:
                raise ValueError(" ".join(str(error).split())) from None
    except ValueError as error:
        raise ValueError(f"{path}: it is no YAML or JSON ({error}).") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: it is {type(content).__name__}, expected keys and values.")
    return content


def _flat(content: Mapping[Any, Any], known: Sequence[str], prefix: str) -> Iterator[tuple[str, Any]]:
    """Yield (key with dots, value); a section is a mapping whose name some known key begins with, or an unknown one."""
    for name, value in content.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and any(other.startswith(f"{key}.") for other in known):
            yield from _flat(value, known, f"{key}.")
        else:
            yield ("inputs" if key == "dataset" else key), value


def _says_nothing(values: tuple[Any, ...] | None, value: Any) -> bool:
    return values is None or any(value is other or (isinstance(other, str) and value == other) for other in values)


def _refuse_unknown(path: str, key: str, known: Sequence[str]) -> None:
    near = difflib.get_close_matches(key, known, 1, 0.5) or difflib.get_close_matches(
        key.rpartition(".")[2], known, 1, 0.5
    )
    hint = f"; did you mean {near[0]}?" if near else f": the keys are {', '.join(sorted(known))}."
    raise ValueError(f"{path}: there is no key {key!r}{hint}")


def _value(path: str, key: str, value: Any, action: argparse.Action) -> Any:
    """Return the value as the flag would have it; raise ValueError where the flag would be refused."""
    if (isinstance(action.nargs, int) and action.nargs == 0) or isinstance(action, argparse.BooleanOptionalAction):
        if not isinstance(value, bool):
            raise ValueError(f"{path}: {key} is {value!r}, expected true or false.")
        return value
    if action.dest == "inputs":
        values = value if isinstance(value, list) else [value]
        if not values or not all(isinstance(item, str) for item in values):
            raise ValueError(f"{path}: {key} is {value!r}, expected a path or a list of them.")
        return values
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ValueError(f"{path}: {key} is {value!r}, expected one value.")
    text = str(value)
    if action.choices is not None and text not in action.choices:
        raise ValueError(f"{path}: {key} is {text!r}, expected one of {', '.join(map(str, action.choices))}.")
    convert: Callable[[str], Any] = action.type if callable(action.type) else str
    try:
        return convert(text)
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"{path}: {key}: {error}.") from None
