"""Which engine encodes: gigatoken where it is installed and its ids are those of the tokenizer's own library on what is tried, else that library.

Tried are the corpus's own first documents and texts at which tokenizers are known to differ. So the bytes of a corpus do not depend on the engine.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from prep.extras import MissingExtraError

if TYPE_CHECKING:
    from prep.tokenizers import Settings, Tokenizer

ENGINES = ("auto", "tokenizers", "gigatoken")
_PROOF_BYTES = 1 << 20
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


def choose_engine(settings: Settings, first_texts: Sequence[str]) -> tuple[Settings, str | None]:
    """Return the settings with the engine fixed, and a sentence for the report, or None where there was no choice.

    Args:
        settings: with ``engine`` as asked for.
        first_texts: the corpus's own first documents; what is beyond 1 MiB is not tried.

    Raises:
        ValueError: gigatoken was asked for and its ids differ, or it does not take the tokenizer.
        MissingExtraError: it was asked for and is not installed.
    """
    from prep.tokenizers import open_tokenizer

    if settings.engine not in ENGINES:
        raise ValueError(f"the tokenizer engine is {settings.engine!r}, expected one of {', '.join(ENGINES)}.")
    if settings.engine == "tokenizers":
        return settings, None
    own = replace(settings, engine="tokenizers")
    reference = open_tokenizer(own)
    library = _LIBRARIES.get(reference.identity.kind)
    if library is None and settings.engine == "auto":
        return own, None
    tried = [*first(first_texts), *difficult(reference)]
    try:
        refusal = _refusal(replace(settings, engine="gigatoken"), reference, tried)
    except MissingExtraError:
        if settings.engine == "gigatoken":
            raise
        return (
            own,
            f"{library} encodes; where gigatoken takes the tokenizer it is much faster: pip install 'millstream[fast]'.",
        )
    if refusal is None:
        said = f"gigatoken encodes: its ids are those of {library} for {len(tried):,} texts, the corpus's first documents among them."
        return replace(settings, engine="gigatoken"), said
    if settings.engine == "gigatoken":
        raise ValueError(
            f"--tokenizer-engine gigatoken: {refusal}: leave it out, and {library or 'our own code'} encodes."
        )
    return own, f"{library} encodes: {refusal}."


def first(texts: Sequence[str]) -> Iterator[str]:
    """Yield texts up to 1 MiB in all, the last one cut."""
    left = _PROOF_BYTES
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


def _refusal(settings: Settings, reference: Tokenizer, texts: Sequence[str]) -> str | None:
    """Return why gigatoken cannot stand for the reference, or None."""
    from prep.tokenizers.gigatoken_engine import GigatokenTokenizer

    expected, expected_lengths = reference.encode(texts)
    try:
        fast = GigatokenTokenizer(reference, allow_special=settings.allow_special)
        found, lengths = fast.encode(texts)
    except (KeyboardInterrupt, SystemExit, MissingExtraError, MemoryError):
        raise
    except BaseException as error:  # a Rust panic is no Exception
        return (
            f"gigatoken does not take this tokenizer ({type(error).__name__}: {str(error).strip()[:200].rstrip('.')})"
        )
    if np.array_equal(found, expected) and np.array_equal(lengths, expected_lengths):
        return None
    pairs = zip(_split(found, lengths), _split(expected, expected_lengths), texts, strict=True)
    text = next(text for mine, own, text in pairs if not np.array_equal(mine, own))
    shown = text if len(text) <= 40 else f"{text[:40]}…"
    return f"gigatoken gives other ids than {_LIBRARIES[reference.identity.kind]} for {shown!r}"


def _split(ids: npt.NDArray[Any], lengths: npt.NDArray[np.int64]) -> list[npt.NDArray[Any]]:
    return np.split(ids, np.cumsum(lengths)[:-1])
