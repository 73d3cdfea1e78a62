"""Many entries of the log at once, as :mod:`hushsum_proto.convert` reads each: speed alone.

What is not in the form that this version writes is said to be None here, and protobuf's word on it holds.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from types import ModuleType
from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum import compiled
from hushsum_proto.batches import BATCH_ENTRIES_MAX
from hushsum_proto.entries import ENTRY_FORMAT, DeltaEntry

_FEW: Final = 4  # entries that are read sooner one by one
_HEAD: Final = bytes([0x08, ENTRY_FORMAT, 0x32])  # the version, and the tag of a batch
_ENTRY_TAG: Final = 0x0A
_FEWEST_BYTES: Final = 2  # of an entry in a batch: its tag and its size
_delta_entry: Final[Callable[[tuple[str, bytes, int]], DeltaEntry]] = partial(tuple.__new__, DeltaEntry)


def delta_entries(entries: Sequence[bytes]) -> Sequence[DeltaEntry | None]:
    """The delta of each entry; None of those that :func:`hushsum_proto.convert.entry_from_bytes` is to be asked about.

    Args:
        entries: The bytes of each.
    """
    loops = _loops() if len(entries) >= _FEW else None
    if loops is None:
        return [None] * len(entries)
    data, offsets = _joined(entries)
    found = np.zeros((len(entries), loops.COLUMNS), np.int64)
    loops.scan_entries(np.frombuffer(data, np.uint8), offsets, found)
    client, client_end, delta, delta_end, arrived = found.T.tolist()
    text = data.decode("latin-1")  # the ids are ASCII, so that a part of it is what a part of the bytes decodes to
    clients = map(text.__getitem__, map(slice, client, client_end))
    deltas = map(data.__getitem__, map(slice, delta, delta_end))
    read: list[DeltaEntry | None] = list(map(_delta_entry, zip(clients, deltas, arrived, strict=True)))
    for place in np.flatnonzero(found[:, loops.CLIENT_END] == 0).tolist():
        read[place] = None
    return read


def single_entries(values: Sequence[bytes]) -> list[bytes] | None:
    """The one entry of each message; None unless each is a message without a tag, in this format, of one entry.

    Args:
        values: Whole messages.
    """
    loops = _loops() if len(values) >= _FEW else None
    if loops is None:
        return None
    data, offsets = _joined(values)
    found = np.empty((len(values), 2), np.int64)
    if not loops.scan_singles(np.frombuffer(data, np.uint8), offsets, found):
        return None
    return list(map(data.__getitem__, map(slice, *found.T.tolist())))


def batch_entries(value: bytes) -> tuple[bytes, ...] | None:
    """The entries of a message without a tag, in this format; None where protobuf is to be asked.

    Args:
        value: The whole message.
    """
    if value[:3] != _HEAD:
        return None
    size, at = _size(value, 3)
    if at + size != len(value) or size < _FEWEST_BYTES or value[at] != _ENTRY_TAG:
        return None
    size, first = _size(value, at + 1)
    if first + size == len(value):
        return (value[first:],)
    loops = _loops()
    if loops is None or first + size > len(value):
        return None
    found = np.empty((min(len(value) // _FEWEST_BYTES, BATCH_ENTRIES_MAX), 2), np.int64)
    count = loops.scan_batch(np.frombuffer(value, np.uint8), found)
    return tuple(map(value.__getitem__, map(slice, *found[:count].T.tolist()))) if count else None


def warm_up() -> None:
    """Compiles the loops, or loads what was compiled before."""
    delta_entries([b""] * _FEW)
    single_entries([b""] * _FEW)
    batch_entries(_HEAD + bytes([4, _ENTRY_TAG, 0, _ENTRY_TAG, 0]))


def _joined(parts: Sequence[bytes]) -> tuple[bytes, npt.NDArray[np.int64]]:
    """All of them, and (n + 1,) where each begins and the last one ends."""
    offsets = np.zeros(len(parts) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)), out=offsets[1:])
    return b"".join(parts), offsets


def _size(value: bytes, at: int) -> tuple[int, int]:
    """A length in as few bytes as it needs, and where it ends; what is none reaches beyond the value."""
    nothing = len(value) + 1, at
    size = 0
    for place, octet in enumerate(value[at : at + 4]):
        size |= (octet & 0x7F) << 7 * place
        if octet < 0x80:  # the last one
            return nothing if place and not octet else (size, at + place + 1)
    return nothing


def _loops() -> ModuleType | None:
    return _compiled() if compiled.enabled() else None


@cache
def _compiled() -> ModuleType:
    from hushsum_proto import entry_loops

    return entry_loops
