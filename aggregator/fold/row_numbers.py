"""Numbers of the rows of an array, by key: what compiled loops need in place of a dictionary."""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Key = TypeVar("Key", bound=Hashable)


class RowNumbers(dict[Key, int]):
    """Asked for a key that has no row, it gives it one, and lists it in :attr:`fresh`.

    Attributes:
        keys_of: The key of each row; None of a row that is free.
        fresh: Keys that got their row since :meth:`settle`.
    """

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self.keys_of: list[Key | None] = list(keys)
        super().__init__((key, row) for row, key in enumerate(self.keys_of) if key is not None)
        self.fresh: list[Key] = []
        self._free: list[int] = []

    def __missing__(self, key: Key) -> int:
        if self._free:
            row = self._free.pop()
            self.keys_of[row] = key
        else:
            row = len(self.keys_of)
            self.keys_of.append(key)
        self[key] = row
        self.fresh.append(key)
        return row

    def settle(self, is_used: Callable[[int], bool]) -> None:
        """Takes the rows of fresh keys back that nothing came to use."""
        for key in self.fresh:
            row = self[key]
            if not is_used(row):
                del self[key]
                self.keys_of[row] = None
                self._free.append(row)
        self.fresh.clear()


def grown(array: Int64, rows: int, empty: Int64) -> Int64:
    """The array (n, k) itself, or one with room for at least ``rows`` rows, the new ones ``empty`` (k,)."""
    if rows <= len(array):
        return array
    larger = np.empty((max(rows, 2 * len(array), 16), len(empty)), np.int64)
    larger[: len(array)] = array
    larger[len(array) :] = empty
    return larger
