"""tf.Example, read by hand: which lists a record holds, and the integers of many records at once.

    Example   field 1: Features        Features   field 1, repeated: an entry {1: name, 2: Feature}
    Feature   one of 1: BytesList, 2: FloatList, 3: Int64List; in each field 1, repeated, holds the items
    integers  varints of seven bits a byte, least first, of ten bytes at most; packed into one field 1 or each in one of its own: both are legal

What else may stand there by the rules of protocol buffers (unknown fields, an entry of a name that occurred) no writer of examples makes: it is refused, so
that bytes that are no example are not taken for one. A SequenceExample has a field 2 beside field 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from prep.foreign.layout import BYTES, INTEGERS, Column, Kind

RECORD = "record"
_KINDS = {1: BYTES, 2: "floating-point numbers", 3: INTEGERS}

Features = dict[str, tuple[int, int, int]]


class NotExampleError(ValueError):
    """Bytes are no tf.Example, or not the one that was expected; the message is the end of a sentence."""


def features_of(record: bytes) -> Features:
    """Return name → (field number of its kind, start, stop of its list) of a serialised tf.Example; raise NotExampleError for anything else."""
    found: Features = {}
    for number, start, stop in _fields(record, 0, len(record)):
        if number == 2:
            raise NotExampleError("it is a SequenceExample, which is not read")
        if number != 1:
            raise NotExampleError(f"byte {start:,} belongs to a field {number}, expected field 1, the features")
        for inner, begin, end in _fields(record, start, stop):
            if inner != 1:
                raise NotExampleError(
                    f"byte {begin:,} belongs to a field {inner}, expected field 1, an entry of the features"
                )
            name, value = _entry(record, begin, end)
            if name in found:
                raise NotExampleError(f"the feature {name!r} occurs twice")
            found[name] = value
    return found


def kinds_of(record: bytes) -> dict[str, Kind]:
    """Return what the features of an example hold, or of other bytes the one column ``record``."""
    try:
        features = features_of(record)
    except NotExampleError as error:
        if "SequenceExample" in str(error):
            raise
        features = {}
    kinds = {
        name: Kind(holds=_KINDS[number], dtype=np.dtype(np.int64) if number == 3 else None)
        for name, (number, _, _) in features.items()
        if number
    }
    return kinds or {RECORD: Kind(holds=BYTES)}


def columns_of(records: Sequence[bytes], names: Sequence[str], kinds: dict[str, Kind]) -> dict[str, Column]:
    """Return the columns named of some records.

    Raises:
        NotExampleError: of a record, whose number among them is its second argument.
    """
    whole = RECORD in names and RECORD in kinds and kinds[RECORD].holds == BYTES and len(kinds) == 1
    if whole:
        counts = np.array([len(record) for record in records], dtype=np.int64)
        return {RECORD: Column(np.frombuffer(b"".join(records), dtype=np.uint8), counts)}
    lists: dict[str, list[bytes]] = {name: [] for name in names}
    for number, record in enumerate(records):
        try:
            features = features_of(record)
            for name in names:
                lists[name].append(_list(record, features, name, kinds[name]))
        except NotExampleError as error:
            raise NotExampleError(str(error), number) from None
    return {name: _integers(found) if kinds[name].holds == INTEGERS else _bytes(found) for name, found in lists.items()}


def varints(data: bytes, lengths: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the varints of stretches of bytes that stand one after another: all values, and how many are each stretch's.

    Raises:
        NotExampleError: of a stretch, whose number is its second argument, that ends inside a varint or holds one of more than 64 bits.
    """
    content = np.frombuffer(data, dtype=np.uint8)
    last = np.flatnonzero(content < 128)
    edges = np.cumsum(lengths)
    ends_before = np.searchsorted(last, edges, side="left")  # varints that end before the edge
    open_ = np.flatnonzero((lengths > 0) & (content[np.maximum(edges - 1, 0)] >= 128)) if len(content) else edges[:0]
    if len(open_):
        raise NotExampleError("a number is cut short at the end of its list", int(open_[0]))
    first = np.concatenate([[0], last[:-1] + 1]) if len(last) else last
    widths = last - first + 1
    values = np.zeros(len(last), dtype=np.uint64)
    for step in range(min(int(widths.max(initial=0)), 10)):
        live = slice(None) if step == 0 else np.flatnonzero(widths > step)
        values[live] |= (content[first[live] + step] & 127).astype(np.uint64) << np.uint64(7 * step)
    wrong = np.flatnonzero(widths > 10)
    if not len(wrong):
        tens = np.flatnonzero(widths == 10)
        wrong = tens[content[last[tens]] > 1]
    if len(wrong):
        stretch = int(np.searchsorted(edges, last[wrong[0]], side="right"))
        raise NotExampleError("a number has more than 64 bits", stretch)
    return values.view(np.int64), np.diff(ends_before, prepend=0).astype(np.int64)


def _fields(data: bytes, at: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Yield (number, start, stop) of the fields of a message, all of which are expected to be of bytes."""
    while at < stop:
        tag, at = _varint(data, at, stop)
        if tag & 7 != 2 or tag >> 3 == 0:
            raise NotExampleError(f"byte {at - 1:,} begins no field of bytes")
        size, at = _varint(data, at, stop)
        if size > stop - at:
            raise NotExampleError(
                f"at byte {at:,} a field of {size:,} bytes does not fit into the {stop - at:,} that are left"
            )
        yield tag >> 3, at, at + size
        at += size


def _varint(data: bytes, at: int, stop: int) -> tuple[int, int]:
    value = shift = 0
    while at < stop and shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise NotExampleError(f"at byte {at:,} a number is cut short or has more than 64 bits")


def _entry(data: bytes, start: int, stop: int) -> tuple[str, tuple[int, int, int]]:
    """Return the name of a feature and where its list is; an absent feature has kind 0."""
    name, value = "", (0, stop, stop)
    for number, begin, end in _fields(data, start, stop):
        if number == 1:
            try:
                name = data[begin:end].decode()
            except UnicodeDecodeError:
                raise NotExampleError(f"byte {begin:,}: the name of a feature is not UTF-8") from None
        elif number == 2:
            inner = list(_fields(data, begin, end))
            if len(inner) > 1 or (inner and inner[0][0] not in _KINDS):
                raise NotExampleError(
                    f"byte {begin:,}: the feature {name!r} is not one list of bytes, floats or integers"
                )
            value = inner[0] if inner else (0, end, end)
        else:
            raise NotExampleError(f"byte {begin:,} belongs to a field {number}, expected a name and a feature")
    return name, value


def _list(record: bytes, features: Features, name: str, kind: Kind) -> bytes:
    if name not in features:
        raise NotExampleError(f"it has no feature {name!r}, which the first record has")
    number, start, stop = features[name]
    if number and _KINDS[number] != kind.holds:
        raise NotExampleError(f"its feature {name!r} holds {_KINDS[number]}, but {kind.holds} in the first record")
    return record[start:stop]


def _integers(lists: Sequence[bytes]) -> Column:
    """Return the integers of Int64Lists: of all at once where all are written in the same way."""
    packed: list[bytes] = []
    for number, content in enumerate(lists):
        try:
            packed.append(_packed(content))
        except NotExampleError as error:
            raise NotExampleError(str(error), number) from None
    lengths = np.array([len(content) for content in packed], dtype=np.int64)
    return Column(*varints(b"".join(packed), lengths))


def _packed(content: bytes) -> bytes:
    """Return the varints of an Int64List alone."""
    if content[:1] == b"\x08":  # unpacked: a tag before each number; packed and unpacked fields may follow each other
        try:
            both, _ = varints(content, np.array([len(content)]))
        except NotExampleError:
            both = np.zeros(1, dtype=np.int64)
        if len(both) % 2 == 0 and (both[0::2] == 8).all():
            return _without_tags(content)
    parts, at = [], 0
    while at < len(content):
        tag, at = _varint(content, at, len(content))
        begin = at
        size, at = _varint(content, at, len(content))
        if tag == 8:
            parts.append(content[begin:at])
        elif tag == 10 and size <= len(content) - at:
            parts.append(content[at : at + size])
            at += size
        else:
            raise NotExampleError(f"at byte {begin - 1:,} of a list there are no integers")
    return b"".join(parts)


def _without_tags(content: bytes) -> bytes:
    """Return the varints of a list in which every other varint is the tag 8."""
    data = np.frombuffer(content, dtype=np.uint8)
    numbers = np.cumsum(np.concatenate([[0], data[:-1] < 128]))  # of the varint that a byte belongs to
    found: bytes = data[numbers % 2 == 1].tobytes()
    return found


def _bytes(lists: Sequence[bytes]) -> Column:
    """Return the bytes of BytesLists of one item each."""
    parts = []
    for number, content in enumerate(lists):
        try:
            items = list(_fields(content, 0, len(content)))
            if len(items) != 1 or items[0][0] != 1:
                raise NotExampleError(f"a list of bytes has {len(items):,} items, expected one")
        except NotExampleError as error:
            raise NotExampleError(str(error), number) from None
        parts.append(content[items[0][1] : items[0][2]])
    counts = np.array([len(part) for part in parts], dtype=np.int64)
    return Column(np.frombuffer(b"".join(parts), dtype=np.uint8), counts)
