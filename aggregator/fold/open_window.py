"""The sum of a window that is not closed yet."""

import numpy as np
import numpy.typing as npt

from aggregator.fold.state import BLOCK, Block, Counters, WindowSum
from hushsum.delta import Delta, apply


class OpenWindow:
    """A window's sum, and which of its blocks the next checkpoint must write.

    Attributes:
        counters: (classes, ...) int64.
        counts: (classes,) int64.
        touched: (classes, blocks).
    """

    def __init__(self, sums: WindowSum) -> None:
        self.counters, self.counts = sums.counters, sums.counts
        assert self.counters.flags.c_contiguous, "a copy would be counted instead"
        classes, blocks = len(self.counts), -(-self.counters[0].size // BLOCK)
        self.touched: npt.NDArray[np.bool_] = np.zeros((classes, blocks), np.bool_)
        self._edges = np.arange(blocks + 1) * BLOCK

    def add(self, delta: Delta, count_scale: int) -> None:
        """Counts a delta."""
        apply(delta, self.counters, self.counts, count_scale)
        for run in delta.runs:
            # Indices increase, so that a block's are those between its two edges.
            places = np.searchsorted(run.increments.indices, self._edges)
            self.touched[run.class_index] |= places[1:] > places[:-1]

    def add_all(self, counters: Counters, counts: Counters) -> None:
        """Adds to every counter: those of all classes one after another, and (classes,) count counters; signed."""
        self.counters += counters.reshape(self.counters.shape)
        self.counts += counts
        self.touched[:] = True

    def close(self) -> None:
        """It changes no more."""
        self.counters.setflags(write=False)
        self.counts.setflags(write=False)

    def take_blocks(self, window: int) -> list[Block]:
        """Copies of the blocks that were touched since the last call."""
        flat = self.counters.reshape(len(self.counters), -1)
        blocks = [
            Block(window, int(row), int(number), flat[row, number * BLOCK : (number + 1) * BLOCK].copy())
            for row, number in np.argwhere(self.touched)
        ]
        self.touched[:] = False
        return blocks
