"""A source: a corpus, or a run of its documents, with a name and a weight; and what several of them have to agree on."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from neutral_core.format.corpus import Corpus
from neutral_core.order.mixture import exact_weight


class Source:
    """A corpus, or a run of its documents, with a weight in a plan.

    Args:
        corpus: of ours or a legacy data set.
        weight: its share; an int, float, Fraction or decimal text ≥ 0. A float counts as its shortest decimal text. Left out for all sources
            that are not 0: in proportion to their windows. 0: not served, before a phase gives it another weight.
        name: part of the key of its shuffle; required and unique when a plan has several sources.
        documents: slice of documents; the run is its own circular stream, no window crosses its edges.
        max_epochs: how often it may be served, in epochs: a number > 0, read as a weight is, not necessarily whole; None: without end.

    Raises:
        ValueError: the slice has a step or no documents; max_epochs is no number above 0. TypeError: the name is no text.
    """

    __slots__ = ("corpus", "documents", "max_epochs", "name", "tokens", "weight")

    def __init__(
        self,
        corpus: Corpus,
        *,
        weight: Any = None,
        name: str | None = None,
        documents: slice | None = None,
        max_epochs: Any = None,
    ) -> None:
        if not isinstance(corpus, Corpus):
            raise TypeError(f"corpus is {type(corpus).__name__}, expected a Corpus: open it with open_corpus(path).")
        if name is not None and not isinstance(name, str):
            raise TypeError(f"a source's name is {name!r}, expected text: quote it where it comes from YAML.")
        first, last, step = (documents or slice(None)).indices(corpus.num_documents)
        if step != 1 or (documents is not None and last <= first):
            raise ValueError(
                f"source {name!r}: documents={documents} is not a run of the corpus' {corpus.num_documents:,} documents."
            )
        if max_epochs is not None:
            try:
                most = exact_weight(max_epochs)
            except ValueError:
                most = Fraction(0)
            if not 0 < most < 2**62:
                raise ValueError(
                    f"source {name!r}: max_epochs is {max_epochs!r}, expected None or a number above 0 and below 2^62."
                )
        self.corpus = corpus
        self.max_epochs = max_epochs
        self.weight = weight
        self.name = name
        self.documents = (first, last)
        self.tokens = (0, corpus.num_tokens)
        if documents is not None:
            self.tokens = tuple(int(corpus.document_offsets(at, at)[0]) for at in (first, last))  # type: ignore[assignment]

    @property
    def num_tokens(self) -> int:
        """Tokens of the source."""
        return self.tokens[1] - self.tokens[0]


def names_of(sources: Sequence[Source]) -> tuple[str, ...]:
    """Return the names; raise ValueError unless they are unique, TypeError for what is no Source."""
    if not sources:
        raise ValueError("sources is empty: a plan has at least one source.")
    for source in sources:
        if not isinstance(source, Source):
            raise TypeError(f"sources holds a {type(source).__name__}, expected Source(corpus, …).")
    if len(sources) == 1:
        return (sources[0].name or "",)
    names = tuple(source.name or "" for source in sources)
    seen: set[str] = set()
    for index, name in enumerate(names):
        if not name:
            raise ValueError(
                f"source {index} has no name: a plan of several sources needs unique names, which key their shuffles."
            )
        if name in seen:
            raise ValueError(f"two sources are named {name!r}: names key the shuffles and must be unique.")
        seen.add(name)
    return names


def check_tokenizers(sources: Sequence[Source], names: Sequence[str], mixed: bool) -> None:
    """Raise ValueError for the first source whose tokenizer is known and another than the first known one."""
    known = [
        (source.corpus.tokenizer, name) for source, name in zip(sources, names, strict=True) if source.corpus.tokenizer
    ]
    for tokenizer, name in known:
        if tokenizer != known[0][0] and not mixed:
            raise ValueError(
                f"source {name!r} was made with the tokenizer {tokenizer}, but {known[0][1]!r} with {known[0][0]}: the same id means different text; "
                "prepare one of them again, or say mixed_tokenizers=True."
            )


def check_lengths(sources: Sequence[Source], names: Sequence[str], row_length: int) -> None:
    """Raise ValueError for the first source that has fewer tokens than a row."""
    for source, name in zip(sources, names, strict=True):
        if source.num_tokens < row_length:
            raise ValueError(
                f"source {name!r} has {source.num_tokens:,} tokens, fewer than the {row_length:,} of one row: shorten seq_len or add text."
            )
