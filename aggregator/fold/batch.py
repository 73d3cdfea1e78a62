"""Many deltas of a partition at once, in compiled loops: the same counters, states and verdicts as one by one.

The reader checks deltas and writes down what they add; the tables give each its stream's row; one loop then dedupes,
tallies and adds. Where the loop meets something else than a good delta of the window before it, it says so and stops.
"""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from aggregator.fold.state import ManyVerdicts, OpenWindow, Verdict
from aggregator.fold.streams import Int64, StreamTable, TallyTable
from hushsum.delta_decoder import Batch, DeltaReader, digests
from hushsum.plan import Plan
from hushsum_proto.entries import DeltaEntry

_ROOM: Final = 1024  # slots, where they run out
_NO_ROWS: Final = np.zeros(0, np.int64)
_NO_TALLIES: Final = np.zeros((0, 2), np.int64)
_NO_WINDOW: Final = (0, 0, np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros((1, 1), np.bool_))


class BatchFold:
    """Folds batches of deltas of one plan.

    Args:
        tallies: None where the plan asks for none.
        is_foreign: Whether a client belongs to another partition.
    """

    def __init__(
        self,
        plan: Plan,
        reader: DeltaReader,
        streams: StreamTable,
        tallies: TallyTable | None,
        window: Callable[[int], OpenWindow],
        is_foreign: Callable[[str], bool],
    ) -> None:
        from aggregator.fold import loops  # numba is imported when the first compiled loop is wanted

        self._loops = loops
        self._reader = reader
        self._streams = streams
        self._tallies = tallies
        self._window = window
        self._is_foreign = is_foreign
        bound = plan.privacy.records_per_client
        self._bound = -1 if bound is None else bound
        self._count_scale = plan.privacy.mechanism.count_scale
        self._open: int | None = None  # the window of the last delta that was added

    def apply(
        self,
        positions: Sequence[int],
        entries: Sequence[DeltaEntry],
        closed_through: int,
        one: Callable[[DeltaEntry, int], Verdict],
    ) -> ManyVerdicts:
        """Folds entries with the verdicts that ``one`` would give each: it folds the delta at one position."""
        deltas = [entry.delta for entry in entries]
        clients = [entry.client_id for entry in entries]
        batch, signs = self._reader.batch(deltas), digests(deltas)
        codes = np.zeros(len(entries), np.uint8)
        others: dict[int, Verdict] = {}
        at = 0
        while at < len(entries):
            end, lessons = self._reader.read(batch, at), self._reader.lessons
            rows = self._rows(batch, clients, at, end)
            while at < end and lessons == self._reader.lessons:
                at, why = self._loop(at, end, batch, signs, rows, closed_through, codes)
                if why == self._loops.UNUSUAL:
                    others[at] = one(entries[at], positions[at])
                    at += 1
                elif why == self._loops.OTHER_WINDOW:
                    self._open = int(batch.headers[at, 1])
                elif why == self._loops.NO_ROOM:
                    self._streams.make_room(_ROOM)
        return ManyVerdicts(codes.tobytes(), positions, clients, batch.streams, batch.headers, others)

    def _rows(self, batch: Batch, clients: Sequence[str], first: int, last: int) -> tuple[Int64, Int64]:
        """Of streams and tallies, at the places of the batch; zeroes before ``first``."""
        count = last - first
        owners = clients[first:last]
        rows = np.zeros(last, np.int64)
        keys = zip(owners, batch.streams[first:last].tolist(), strict=True)
        rows[first:] = self._streams.rows_of(keys, count, self._is_foreign)
        if self._tallies is None:
            return rows, _NO_ROWS
        tally_rows = np.zeros(last, np.int64)
        windows = zip(batch.headers[first:last, 1].tolist(), owners, strict=True)
        tally_rows[first:] = self._tallies.rows_of(windows, count)
        return rows, tally_rows

    def _loop(
        self,
        first: int,
        last: int,
        batch: Batch,
        signs: Int64,
        rows: tuple[Int64, Int64],
        closed_through: int,
        codes: npt.NDArray[np.uint8],
    ) -> tuple[int, int]:
        """One run of the loop; the arrays of tables are asked for anew, for one by one may have replaced them."""
        streams, tallies = self._streams, self._tallies
        is_tallied, records = (0, _NO_TALLIES) if tallies is None else (1, tallies.records)
        window = _NO_WINDOW
        if self._open is not None and self._open > closed_through:
            of = self._window(self._open)
            window = (1, self._open, of.counters.reshape(-1), of.counts, of.touched)
        stopped: tuple[int, int] = self._loops.fold(
            first,
            last,
            (batch.states, batch.headers, batch.spans, batch.ready, signs),
            (rows[0], streams.heads, streams.slots, streams.used),
            (rows[1], records),
            (closed_through, is_tallied, self._bound, self._count_scale),
            window,
            codes,
        )
        return stopped
