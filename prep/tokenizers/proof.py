"""Which engine encodes: gigatoken where it is installed and its ids are those of the tokenizer's own library on what is tried, else that library.

Tried are the corpus's own first documents and texts at which tokenizers are known to differ; while it encodes, a short excerpt of each MiB is encoded by
the other library too. So the bytes of a corpus do not depend on the engine.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from prep.extras import MissingExtraError

if TYPE_CHECKING:
    from prep.tokenizers import Encoder, Tokenizer

ENGINES = ("auto", "tokenizers", "gigatoken")
PROOF_BYTES = 1 << 18
_EXCERPT_CHARACTERS = 48
_LIBRARIES = {
    "tokenizer.json": "the tokenizers library",
    "sentencepiece": "the sentencepiece library",
    "tiktoken": "the tiktoken library",
}
_LETTERS = "e\u0301 A\u030a \ufb01 ½ Ⅷ ﷺ ｶﾞ 각 İstanbul ǅ ß ẞ ſ Å K ①"
_COMMON = (
    "",
    " ",
    "\0",
    "a\0b\0",
    "\n",
    "\r\n\r\n \r\n\r",
    "\t \t\n  \n\n   x",
    "  \u3000\u00a0\u2003\u200b \u2028\u2029\u0085",
    "\ufeffbom",
    "\u0301\u0301 \u0300a",
    "a" + "\u0301" * 300,
    " " * 5000,
    "a" * 5000,
    "A1 " * 2000,
    "\n" * 3000,
    "=" * 3000,
    "1234567890" * 300,
    "¹²³ ٣٤٥ १२३ 1,234.56e-7 0x1F",
    "Don't I'LL we'Ve 'S ’s 'ſ d'D",
    "\u202eright\u202c שלום עולם مرحبا بالعالم ١٢٣",
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇩🇪🇫 ☺️ \U0001f9d1\u200d\U0001f4bb",
    "\U0010ffff\U000e0001\ufffd\ufffe\uffff\ud7ff\ue000",
    "สวัสดีชาวโลก မင်္ဂလာပါ नमस्ते ภาษา",
    "漢字かな交じり文。한국어 中文，标点！",
    "x ▁y ▁▁z Ġa Ċb <0x0A> <unk> <s></s> [UNK] [CLS] [MASK]",
    "<|endoftext|> <|im_start|>user<|im_end|> <|begin_of_text|>",
    "def f(x):\n\treturn x**2  # κ\n\n\n    if(a!=b){;}//…",
    "https://example.org/a?b=c&d=%20#e user@host.example \\u0041 \\n",
    "snake_case camelCase SCREAMING_CASE kebab-case mixed123abc",
)


class Excerpt(NamedTuple):
    """A short piece of a document, and its ids by the engine that encoded."""

    text: str
    ids: list[int]


def choose_engine(
    engine: str, reference: Tokenizer, first_texts: Sequence[str], *, allow_special: bool = False
) -> tuple[Encoder, str, str | None]:
    """Return what encodes, the name of its engine, and a sentence for the report, or None where there was no choice.

    Args:
        engine: as asked for: ``auto``, ``tokenizers`` or ``gigatoken``.
        reference: the tokenizer, by its own library.
        first_texts: the corpus's own first documents; what is beyond 256 KiB is not tried.
        allow_special: text that spells a special token becomes that token.

    Raises:
        ValueError: gigatoken was asked for and its ids differ, or it does not take the tokenizer.
        MissingExtraError: it was asked for and is not installed.
    """
    if engine not in ENGINES:
        raise ValueError(f"the tokenizer engine is {engine!r}, expected one of {', '.join(ENGINES)}.")
    library = _LIBRARIES.get(reference.identity.kind)
    if engine == "tokenizers" or (library is None and engine == "auto"):
        return reference, "tokenizers", None
    tried = [*first(first_texts), *difficult(reference)]
    try:
        found = _proven(reference, tried, allow_special)
    except MissingExtraError:
        if engine == "gigatoken":
            raise
        said = (
            f"{library} encodes; where gigatoken takes the tokenizer it is much faster: pip install 'millstream[fast]'."
        )
        return reference, "tokenizers", said
    if not isinstance(found, str):
        said = f"gigatoken encodes: its ids are those of {library} for {len(tried):,} texts, the corpus's first documents among them."
        return found, "gigatoken", said
    if engine == "gigatoken":
        raise ValueError(
            f"--tokenizer-engine gigatoken: {found}: leave it out, and {library or 'our own code'} encodes."
        )
    return reference, "tokenizers", f"{library} encodes: {found}."


def excerpt(encoder: Encoder, texts: Sequence[str], number: int) -> Excerpt:
    """Return a piece of one of the texts, which one ``number`` decides, for ``check_excerpts``: text of a kind that the proof had not seen may differ."""
    text = texts[number * 7919 % len(texts)]
    start = number * 104729 % max(len(text) - _EXCERPT_CHARACTERS, 1)
    piece = text[start : start + _EXCERPT_CHARACTERS]
    return Excerpt(piece, encoder.encode([piece])[0].tolist())


def check_excerpts(reference: Tokenizer, excerpts: Iterable[Sequence[Any]]) -> None:
    """Raise ValueError where the tokenizer's own library gives other ids of an excerpt than the engine did."""
    for text, ids in excerpts:
        if reference.encode([text])[0].tolist() != ids:
            raise ValueError(
                f"gigatoken gives other ids for {text!r} than the tokenizer's own library: run with --tokenizer-engine tokenizers and --restart."
            )


def first(texts: Sequence[str]) -> Iterator[str]:
    """Yield texts up to 256 KiB in all, the last one cut."""
    left = PROOF_BYTES
    for text in texts:
        if left <= 0:
            return
        data = text.encode("utf-8")
        yield text if len(data) <= left else data[:left].decode("utf-8", errors="ignore")
        left -= len(data)


def difficult(reference: Tokenizer) -> list[str]:
    """Return texts at which tokenizers are known to differ, those that spell this one's own tokens among them."""
    forms = [unicodedata.normalize(form, _LETTERS) for form in ("NFC", "NFD", "NFKC", "NFKD")]
    latin = bytes(range(256)).decode("latin-1")
    edges = [id for id in (reference.identity.eos_id, reference.identity.bos_id) if id is not None]
    last = range(max(reference.identity.vocab_size - 64, 0), reference.identity.vocab_size)  # added tokens stand last
    spelled = [name for name in (reference.spelling(id) for id in (*range(8), *last, *edges)) if name]
    around = [text for name in spelled for text in (name, f"a{name}b", f" {name}  {name}\n")]
    return [*_COMMON, *forms, latin, latin[::-1], *latin, *(f" {c}{c}x" for c in latin), *around]


def _proven(reference: Tokenizer, texts: Sequence[str], allow_special: bool) -> Encoder | str:
    """Return gigatoken, or why it cannot stand for the reference."""
    from prep.tokenizers.gigatoken_engine import GigatokenEncoder

    try:
        fast = GigatokenEncoder(reference.definition or b"", reference.identity, allow_special=allow_special)
        found, lengths = fast.encode(texts)
    except (KeyboardInterrupt, SystemExit, MissingExtraError, MemoryError):
        raise
    except BaseException as error:  # a Rust panic is no Exception
        return (
            f"gigatoken does not take this tokenizer ({type(error).__name__}: {str(error).strip()[:200].rstrip('.')})"
        )
    expected, expected_lengths = reference.encode(texts)
    if np.array_equal(found, expected) and np.array_equal(lengths, expected_lengths):
        return fast
    pairs = zip(_split(found, lengths), _split(expected, expected_lengths), texts, strict=True)
    text = next(text for mine, own, text in pairs if not np.array_equal(mine, own))
    shown = text if len(text) <= 40 else f"{text[:40]}…"
    return f"gigatoken gives other ids than {_LIBRARIES[reference.identity.kind]} for {shown!r}"


def _split(ids: npt.NDArray[Any], lengths: npt.NDArray[np.int64]) -> list[npt.NDArray[Any]]:
    return np.split(ids, np.cumsum(lengths)[:-1])
