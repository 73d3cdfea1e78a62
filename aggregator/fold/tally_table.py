"""Records by client and window, in an array that compiled loops read and write."""

from collections.abc import Iterable, Mapping
from typing import Final

import numpy as np

from aggregator.fold.row_numbers import Int64, RowNumbers, grown
from aggregator.fold.state import Contribution

_EMPTY: Final = np.array([-1, 0], np.int64)


class TallyTable:
    """What each client has contributed to each window, where a plan asks for it.

    Args:
        tallies: What there is.

    Attributes:
        records: (at least as many as rows, 2): how many, or −1 where the client is not in the window; whether that
            changed.
    """

    def __init__(self, tallies: Mapping[Contribution, int]) -> None:
        self._rows: RowNumbers[tuple[int, str]] = RowNumbers((key.window, key.client_id) for key in tallies)
        self.records: Int64 = grown(np.empty((0, 2), np.int64), len(tallies), _EMPTY)
        self.records[: len(tallies), 0] = list(tallies.values())

    def get(self, window: int, client_id: str) -> int:
        """Records of a client in a window; 0 where it is not in it."""
        row = self._rows.get((window, client_id))
        return 0 if row is None else max(int(self.records[row, 0]), 0)

    def add(self, window: int, client_id: str, records: int) -> None:
        """Counts a client in a window, with so many records more."""
        row = self.rows_of([(window, client_id)], 1)[0]
        self.records[row] = max(int(self.records[row, 0]), 0) + records, 1

    def rows_of(self, keys: Iterable[tuple[int, str]], count: int) -> Int64:
        """The row of each of ``count`` keys; one that is new gets one, until :meth:`settle` at least."""
        rows = np.fromiter(map(self._rows.__getitem__, keys), np.int64, count)
        self.records = grown(self.records, len(self._rows.keys_of), _EMPTY)
        return rows

    def settle(self) -> None:
        """Forgets rows that nothing was counted in."""
        self._rows.settle(lambda row: bool(self.records[row, 0] >= 0))

    def take_changed(self) -> dict[Contribution, int]:
        """What changed since the last call."""
        changed = np.flatnonzero(self.records[: len(self._rows.keys_of), 1])
        self.records[changed, 1] = 0
        found = {}
        for row, records in zip(changed.tolist(), self.records[changed, 0].tolist(), strict=True):
            key = self._rows.keys_of[row]
            assert key is not None, "a tally that is forgotten has not changed"
            found[Contribution(*key)] = records
        return found

    def forget(self, window: int) -> None:
        """Forgets windows up to this one."""
        kept = [row for row, key in enumerate(self._rows.keys_of) if key is not None and key[0] > window]
        self._rows = RowNumbers(key for row in kept if (key := self._rows.keys_of[row]) is not None)
        self.records = grown(self.records[kept], len(kept), _EMPTY)
