"""Mixtures as other tools write them down, as the ``sources`` of a plan from plain data.

    {"datasets": [{"prefix": …, "weight": …, "num_documents": …, "num_tokens": …}]}     Fast-LLM's fast_llm_dataset.json
    {"type": "blended" | "slice" | "memmap" | "concatenated" | "file" …}                 Fast-LLM's fast_llm_config*.yaml, bare or under "config"
    "0.3 prefix1 0.7 prefix2", ["0.3", "prefix1", "0.7", "prefix2"], ["prefix"]          Megatron's --data-path
    {"train": […], "valid": […], "test": […]}                                            Megatron's --per-split-data-args-path; asks which
    text of lines "label,path", # comments                                              OLMo's mix files
    text of lines "prefix"                                                              Fast-LLM's index.txt

A path's own text is its source's name, so a copy elsewhere gives the same order as long as the file is the same. Counts that a file promises are
compared with the corpora.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from neutral_core.format.corpus import Corpus
from neutral_core.order.mixture import exact_weight

_SPLITS = ("train", "valid", "test")


@dataclass(frozen=True, kw_only=True, slots=True)
class ForeignSource:
    """One source of a mixture.

    Attributes:
        path: as the file says it.
        weight: exact, or None where weights are left out for all.
        begin, end: shares of the documents, 0 ≤ begin < end ≤ 1.
        num_documents, num_tokens: of the whole corpus, that the file promises, or None.
    """

    path: str
    weight: Fraction | None = None
    begin: Fraction = Fraction(0)
    end: Fraction = Fraction(1)
    num_documents: int | None = None
    num_tokens: int | None = None

    @property
    def name(self) -> str:
        """The source's name in the plan: its path, and the share of it where it is not all."""
        return self.path if self._whole else f"{self.path} [{float(self.begin)!r}:{float(self.end)!r}]"

    @property
    def _whole(self) -> bool:
        return self.begin == 0 and self.end == 1

    def documents(self, corpus: Corpus) -> slice | None:
        """Return the run of documents; raise ValueError where the corpus is not what the file promises, or nothing is left."""
        for what, promised, found in (
            ("documents", self.num_documents, corpus.num_documents),
            ("tokens", self.num_tokens, corpus.num_tokens),
        ):
            if promised not in (None, found):
                raise ValueError(
                    f"{self.path}: the mixture promises {promised:,} {what}, but there are {found:,}: the data were written again, or the path is wrong."
                )
        if self._whole:
            return None
        first, last = (_nearest(share * corpus.num_documents) for share in (self.begin, self.end))
        if first >= last:
            raise ValueError(f"{self.name}: no document of {corpus.num_documents:,} lies in that share.")
        return slice(first, last)


def foreign_sources(data: Any, *, split: str | None = None) -> list[ForeignSource]:
    """Return the sources of a mixture that another tool wrote down.

    Args:
        data: parsed JSON or YAML, or text; see above.
        split: of Megatron's per-split lists: train, valid or test.

    Raises:
        ValueError: it is none of the shapes above, naming the place.
    """
    if isinstance(data, Mapping) and data and set(data) <= set(_SPLITS):
        if split not in data:
            raise ValueError(
                f"the mixture has the splits {', '.join(data)}: say which, split={split!r} is none of them."
            )
        return foreign_sources(data[split])
    if split is not None:
        raise ValueError(f"split is {split!r}, but the mixture has no splits: leave it out.")
    if isinstance(data, str):
        found = _lines(data) if "\n" in data.strip() or len(data.split()) == 1 else _blend(data.split())
    elif isinstance(data, Mapping) and isinstance(data.get("datasets"), Sequence) and "type" not in data:
        found = [_dataset(each, f"datasets[{number}]") for number, each in enumerate(data["datasets"])]
    elif isinstance(data, Mapping):
        found = _config(data.get("config", data), "the config")
    elif isinstance(data, Sequence):
        found = _blend([str(each) for each in data])
    else:
        raise ValueError(f"the mixture is {data!r}, which is no mixture of any tool that is known.")
    if not found:
        raise ValueError("the mixture has no sources.")
    return found


def _nearest(value: Fraction) -> int:
    return int(value + Fraction(1, 2))


def _blend(words: Sequence[str]) -> list[ForeignSource]:
    """``w1 p1 w2 p2 …``, or paths alone: told by whether the first word is a number."""
    try:
        exact_weight(words[0]) if words else None
    except ValueError:
        return [ForeignSource(path=word) for word in words]
    if len(words) % 2:
        raise ValueError(f"the blend has {len(words)} words, expected pairs of a weight and a path.")
    return [
        ForeignSource(path=path, weight=_weight(weight, f"the weight of {path}"))
        for weight, path in zip(words[::2], words[1::2], strict=True)
    ]


def _lines(text: str) -> list[ForeignSource]:
    """A path a line, after a label and a comma in OLMo's mix files; ``#`` begins a comment."""
    found = []
    for line in text.splitlines():
        content = line.partition("#")[0].strip()
        if content:
            _, comma, path = content.partition(",")
            found.append(ForeignSource(path=path.strip() if comma else content))
    return found


def _dataset(data: Any, where: str) -> ForeignSource:
    if not isinstance(data, Mapping) or not isinstance(data.get("prefix"), str):
        raise ValueError(f"{where} is {data!r}, expected an object with prefix.")
    return ForeignSource(
        path=data["prefix"],
        weight=None if data.get("weight") is None else _weight(data["weight"], f"{where}: weight"),
        num_documents=_count(data, "num_documents", where),
        num_tokens=_count(data, "num_tokens", where),
    )


def _config(data: Any, where: str) -> list[ForeignSource]:
    if not isinstance(data, Mapping) or not isinstance(data.get("type"), str):
        raise ValueError(f"{where} is {data!r}, expected an object with type, or another mixture that is known.")
    kind = data["type"]
    if kind == "memmap":
        if not isinstance(data.get("path"), str):
            raise ValueError(f"{where}: path is {data.get('path')!r}, expected text.")
        documents, tokens = (_count(data, key, where) for key in ("num_documents", "num_tokens"))
        return [ForeignSource(path=data["path"], num_documents=documents, num_tokens=tokens)]
    if kind == "slice":
        return [_slice(data, where)]
    if kind == "blended":
        return _blended(data, where)
    advice = {
        "concatenated": "give each of its datasets as a source, without weights: they are then served in proportion to their windows",
        "concatenated_memmap": "give the content of its index.txt, or the paths of the folder",
        "file": "give that file's content",
    }.get(kind, "it holds no data that was prepared")
    raise ValueError(f"{where}: type {kind!r} is not read: {advice}.")


def _slice(data: Mapping[str, Any], where: str) -> ForeignSource:
    inner = _config(data.get("dataset"), f"{where}: dataset")
    if len(inner) != 1:
        raise ValueError(f"{where}: a slice of several datasets is not read: slice each of them.")
    begin, end = (_weight(data.get(key, default), f"{where}: {key}") for key, default in (("begin", 0), ("end", 1)))
    if not 0 <= begin < end <= 1:
        raise ValueError(f"{where}: begin and end are {float(begin)} and {float(end)}, expected 0 ≤ begin < end ≤ 1.")
    (whole,) = inner
    length = whole.end - whole.begin
    return ForeignSource(
        path=whole.path,
        begin=whole.begin + begin * length,
        end=whole.begin + end * length,
        num_documents=whole.num_documents,
        num_tokens=whole.num_tokens,
    )


def _blended(data: Mapping[str, Any], where: str) -> list[ForeignSource]:
    datasets, weights = data.get("datasets"), data.get("weights")
    if not isinstance(datasets, Sequence) or not isinstance(weights, Sequence) or len(datasets) != len(weights):
        raise ValueError(f"{where}: datasets and weights are no lists of one length.")
    given = [_weight(weight, f"{where}: weights[{number}]") for number, weight in enumerate(weights)]
    found = []
    for number, (dataset, weight) in enumerate(zip(datasets, given, strict=True)):
        inner = _config(dataset, f"{where}: datasets[{number}]")
        total = sum((each.weight or Fraction(0) for each in inner), Fraction(0))
        for each in inner:
            share = Fraction(1) if each.weight is None else each.weight / total
            found.append(
                ForeignSource(
                    path=each.path, weight=weight * share, begin=each.begin, end=each.end,
                    num_documents=each.num_documents, num_tokens=each.num_tokens,
                )
            )  # fmt: skip
    return found


def _weight(value: Any, where: str) -> Fraction:
    try:
        return exact_weight(value)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _count(data: Mapping[str, Any], key: str, where: str) -> int | None:
    value = data.get(key)
    if value is not None and (type(value) is not int or value < 0):
        raise ValueError(f"{where}: {key} is {value!r}, expected a whole number.")
    return value
