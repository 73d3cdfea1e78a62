"""Many entries of the log at once, in columns, as :mod:`hushsum_proto.convert` reads each: speed alone.

What is not in the form that this version writes is said to be None here, and protobuf's word on it holds.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from types import ModuleType
from typing import Final, Self, overload

import numpy as np
import numpy.typing as npt

from hushsum import compiled
from hushsum_proto.batches import BATCH_ENTRIES_MAX
from hushsum_proto.entries import ENTRY_FORMAT, DeltaEntry

Int64 = npt.NDArray[np.int64]
_KEY_BYTES: Final = 8  # of a key, before the client's id
_ANY_TEXT: Final = "surrogatepass"  # a client id that is no text is refused by the fold, not here


class DeltaColumns(Sequence[tuple[int, DeltaEntry]]):
    """Deltas with their positions, as they lie in the bytes of the log; each becomes a value when it is read.

    Args:
        positions: (n,) in the log.
        data: What the entries lie in, among other bytes.
        columns: (n, 5): where the client's id and the delta begin and end, and the time of arrival.
    """

    def __init__(self, positions: Int64, data: bytes, columns: Int64) -> None:
        self.positions, self.data, self.columns = positions, data, columns

    @classmethod
    def of(cls, entries: Sequence[tuple[int, DeltaEntry]]) -> Self:
        """The columns of some values."""
        parts = [part for _, entry in entries for part in (entry.client_id.encode("utf-8", _ANY_TEXT), entry.delta)]
        ends = np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)))
        columns = np.zeros((len(entries), 5), np.int64)
        columns[:, 1], columns[:, 2], columns[:, 3] = ends[::2], ends[::2], ends[1::2]
        columns[1:, 0] = ends[1:-1:2]
        columns[:, 4] = [entry.arrived_ms for _, entry in entries]
        return cls(np.array([position for position, _ in entries], np.int64), b"".join(parts), columns)

    @property
    def delta_spans(self) -> Int64:
        """(n, 2) where each delta begins and ends."""
        return np.ascontiguousarray(self.columns[:, 2:4])

    def client_id(self, place: int) -> str:
        """The client of one delta."""
        first, last = self.columns[place, :2].tolist()
        return self.data[first:last].decode("utf-8", _ANY_TEXT)

    def client_ids(self, first: int, last: int) -> list[str]:
        """Those of the deltas ``first`` to before ``last``."""
        bounds = self.columns[first:last, :2].tolist()
        return [self.data[begin:end].decode("utf-8", _ANY_TEXT) for begin, end in bounds]

    def stream_keys(self, streams: npt.NDArray[np.uint64], first: int, last: int) -> Iterator[bytes]:
        """The keys, as of :func:`stream_key`, of the deltas ``first`` to before ``last``; ``streams`` are (n,)."""
        lengths = self.columns[first:last, 1] - self.columns[first:last, 0]
        keys = np.empty(int(lengths.sum()) + _KEY_BYTES * (last - first), np.uint8)
        ends = np.empty(last - first, np.int64)
        _compiled().write_keys(np.frombuffer(self.data, np.uint8), self.columns, streams, first, last, keys, ends)
        bounds = ends.tolist()
        return map(keys.tobytes().__getitem__, map(slice, [0, *bounds[:-1]], bounds))

    def __len__(self) -> int:
        return len(self.columns)

    @overload
    def __getitem__(self, index: int) -> tuple[int, DeltaEntry]: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[tuple[int, DeltaEntry]]: ...
    def __getitem__(self, index: int | slice) -> tuple[int, DeltaEntry] | Sequence[tuple[int, DeltaEntry]]:
        if isinstance(index, slice):
            return DeltaColumns(self.positions[index], self.data, self.columns[index])
        _, _, first, last, arrived_ms = self.columns[index].tolist()
        return int(self.positions[index]), DeltaEntry(self.client_id(index), self.data[first:last], arrived_ms)


def stream_key(client_id: str, stream: int) -> bytes:
    """One value for each stream of each client: its number, 8 bytes in little-endian order, and the client's id."""
    return stream.to_bytes(_KEY_BYTES, "little") + client_id.encode("utf-8", _ANY_TEXT)


def client_and_stream(key: bytes) -> tuple[str, int]:
    """What :func:`stream_key` made a key of."""
    return key[_KEY_BYTES:].decode("utf-8", _ANY_TEXT), int.from_bytes(key[:_KEY_BYTES], "little")


def delta_columns(positions: Int64, data: bytes, spans: Int64) -> tuple[DeltaColumns, list[int]] | None:
    """The deltas of some entries; None where loops do not run.

    Args:
        positions: (n,) in the log.
        data: What the entries lie in.
        spans: (n, 2) where each begins and ends.

    Returns:
        The deltas, and the places of entries that :func:`hushsum_proto.convert.entry_from_bytes` is to be asked about.
    """
    loops = _loops()
    if loops is None:
        return None
    found = np.zeros((len(spans), loops.COLUMNS), np.int64)
    # One layout of arrays: the loops are compiled once.
    is_whole = loops.scan_entries(np.frombuffer(data, np.uint8), np.ascontiguousarray(spans), found)
    odd = [] if is_whole else np.flatnonzero(found[:, loops.CLIENT_END] == 0).tolist()
    return DeltaColumns(positions, data, found), odd


def joined(parts: Sequence[bytes]) -> tuple[bytes, Int64]:
    """All of them, and (n, 2) where each begins and ends."""
    spans = np.zeros((len(parts), 2), np.int64)
    np.cumsum(np.fromiter(map(len, parts), np.int64, len(parts)), out=spans[:, 1])
    spans[1:, 0] = spans[:-1, 1]
    return b"".join(parts), spans


def message_entries(data: bytes, spans: Int64) -> Int64 | None:
    """The entries of unsigned messages: (k, 4) message, place in it, where it begins and ends.

    Args:
        data: What the messages lie in.
        spans: (n, 2) where each begins and ends.

    Returns:
        None unless each message has the form that is written here, and 1 to 65,536 entries.
    """
    loops = _loops()
    if loops is None:
        return None
    octets, spans = np.frombuffer(data, np.uint8), np.ascontiguousarray(spans)
    count = loops.count_entries(octets, spans, BATCH_ENTRIES_MAX)
    if count < 0:
        return None
    found = np.empty((count, loops.PLACES), np.int64)
    loops.find_entries(octets, spans, found)
    return found


def warm_up() -> None:
    """Compiles the loops, or loads what was compiled before."""
    data, spans = joined([bytes([0x08, ENTRY_FORMAT, 0x32, 2, 0x0A, 0])])
    message_entries(data, spans)
    delta_columns(np.zeros(1, np.int64), data, spans)


def _loops() -> ModuleType | None:
    return _compiled() if compiled.enabled() else None


@cache
def _compiled() -> ModuleType:
    from hushsum_proto import entry_loops

    return entry_loops
