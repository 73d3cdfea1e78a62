"""The sums of windows that are not closed yet, or not stored."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from aggregator.fold.state import BLOCK, Block, Counters, WindowSum
from hushsum.delta import Delta, apply
from hushsum.local.batches import ReportBatch


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

    def add_reports(self, batch: ReportBatch) -> None:
        """Counts reports: each is the index of a counter, and they ascend."""
        batch.count_into(self.counters, self.counts)
        if len(batch.reports) < len(self._edges):
            self.touched[0, batch.reports // BLOCK] = True
            return
        places = np.searchsorted(batch.reports, self._edges)
        self.touched[0] |= places[1:] > places[:-1]

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


class OpenWindows:
    """The sums of a partition's open windows, and of those that were closed since they were last taken.

    Args:
        shape: Of a window's counters, (classes, ...).
        sums: Of windows that are open.
    """

    def __init__(self, shape: tuple[int, ...], sums: Mapping[int, WindowSum]) -> None:
        self._shape = shape
        self._open = {window: OpenWindow(of) for window, of in sums.items()}
        self._closed: dict[int, OpenWindow] = {}

    def of(self, window: int) -> OpenWindow:
        """The sum of an open window: zeroes where nothing has come to it."""
        if window not in self._open:
            sums = WindowSum(np.zeros(self._shape, np.int64), np.zeros(self._shape[:1], np.int64))
            self._open[window] = OpenWindow(sums)
        return self._open[window]

    def close(self, through: int) -> None:
        """Every window up to this one changes no more."""
        for window in sorted(window for window in self._open if window <= through):
            self._closed[window] = self._open.pop(window)
            self._closed[window].close()

    def take_touched(self) -> tuple[dict[int, Counters], tuple[Block, ...]]:
        """Copies of the count counters of windows, and of the blocks, that were touched since the last call."""
        touched = {window: of for window, of in (*self._closed.items(), *self._open.items()) if of.touched.any()}
        counts = {window: of.counts.copy() for window, of in touched.items()}
        blocks = tuple(block for window, of in touched.items() for block in of.take_blocks(window))
        self._closed.clear()
        return counts, blocks
