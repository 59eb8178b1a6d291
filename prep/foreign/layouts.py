"""Which of the layouts that are converted a path holds: the one place that knows them all."""

from __future__ import annotations

from pathlib import Path

from neutral_core.layouts import LAYOUTS
from prep.foreign import array_record, arrow, huggingface, levanter, litdata, mds, tfrecord
from prep.foreign.layout import ForeignLayout

# In the order in which a path is asked what it is: by side files first, then by magics, by a checksum last.
FOREIGN: tuple[ForeignLayout, ...] = (
    mds.LAYOUT,
    litdata.LAYOUT,
    huggingface.LAYOUT,
    levanter.LAYOUT,
    arrow.PARQUET,
    arrow.ARROW,
    array_record.LAYOUT,
    tfrecord.LAYOUT,
)
NAMES = tuple(layout.name for layout in FOREIGN)


def foreign_layout(path: Path, layout: str | None) -> ForeignLayout | None:
    """Return the layout that a path holds, or that is insisted on; None where it is read in place, if at all.

    Args:
        path: expanded.
        layout: a name, or None: by magic, checksum or side files.
    """
    if layout is None:
        if path.is_dir() and any(path.glob("*.safetensors")):
            return None
        return next((foreign for foreign in FOREIGN if foreign.recognises(path)), None)
    named = next((foreign for foreign in FOREIGN if foreign.name == layout), None)
    if named is not None and layout in LAYOUTS and not named.recognises(path):
        return None  # LitData's bare tokens are read in place
    return named
