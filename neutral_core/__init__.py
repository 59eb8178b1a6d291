"""Millstream's core: the format, the order, the batches and a plain loader, in numpy and the standard library.

    corpus = open_corpus("corpora/books")
    plan = Plan([Source(corpus, name="books")], seq_len=2048, seed=17)
    with Loader(plan, batch_size=512) as loader:
        for batch in loader:
            batch["tokens"]          # uint16[512, 2049]

Everything public is a name of this module; FORMAT.md and docs/order.md say what it promises.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from neutral_core.batch import Batch
    from neutral_core.batches import Batches
    from neutral_core.errors import ExhaustedError, FormatError, StateError
    from neutral_core.format.corpus import Corpus, memory_corpus
    from neutral_core.format.fields import Field
    from neutral_core.format.tokenizer import TokenizerIdentity
    from neutral_core.format.writer import CorpusWriter
    from neutral_core.layouts import open_corpus
    from neutral_core.loader import Loader
    from neutral_core.order.phases import Phase
    from neutral_core.order.plan import Plan
    from neutral_core.order.source import Source
    from neutral_core.plan_data import load_plan

__all__ = [
    "Batch",
    "Batches",
    "Corpus",
    "CorpusWriter",
    "ExhaustedError",
    "Field",
    "FormatError",
    "Loader",
    "Phase",
    "Plan",
    "Source",
    "StateError",
    "TokenizerIdentity",
    "load_plan",
    "memory_corpus",
    "open_corpus",
]

# Each is loaded when it is first asked for: a worker that writes a shard needs neither plans nor eleven foreign layouts, which take as long as numpy.
_HOMES = {
    "Batch": "batch",
    "Batches": "batches",
    "ExhaustedError": "errors",
    "FormatError": "errors",
    "StateError": "errors",
    "Corpus": "format.corpus",
    "memory_corpus": "format.corpus",
    "Field": "format.fields",
    "TokenizerIdentity": "format.tokenizer",
    "CorpusWriter": "format.writer",
    "open_corpus": "layouts",
    "Loader": "loader",
    "Phase": "order.phases",
    "Plan": "order.plan",
    "Source": "order.source",
    "load_plan": "plan_data",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return value
