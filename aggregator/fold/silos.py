"""Noised whole deltas in a fold: one a client and window, and never a second one, whatever that holds.

Each carries the noise of its client, so that one more of the same client would be another draw about the same records.
That a client takes part is public: how many do is the number of contributions, each of which is 1.
"""

from collections.abc import Callable

from aggregator.fold.open_window import OpenWindow
from aggregator.fold.stream_table import StreamTable
from aggregator.fold.streams import StreamState
from aggregator.fold.tally_table import TallyTable
from aggregator.fold.verdicts import VerdictKind
from hushsum.delta import DeltaHeader
from hushsum.errors import DeltaError, Reason
from hushsum.local.silo import unpack
from hushsum.plan import Plan
from hushsum_proto.entries import DeltaEntry


class SiloFold:
    """Counts the noised whole deltas of one partition.

    Args:
        plan: Of the fold.
        streams: Of the fold.
        contributions: Of the fold.
        window: The sum of an open window.
    """

    def __init__(
        self, plan: Plan, streams: StreamTable, contributions: TallyTable, window: Callable[[int], OpenWindow]
    ) -> None:
        self._plan, self._streams, self._contributions, self._window = plan, streams, contributions, window

    def add(
        self, entry: DeltaEntry, header: DeltaHeader, stream: StreamState, sign: bytes
    ) -> tuple[VerdictKind, Reason | None]:
        """Counts what has a new id and an open window, if it is its client's first; remembers the id in either case.

        Args:
            entry: What stands in the log.
            header: Of its delta.
            stream: The state of its stream.
            sign: The digest of its delta.
        """
        reason = None
        if self._contributions.get(header.window, entry.client_id):
            reason = Reason.SECOND_DELTA
        else:
            try:
                delta = unpack(entry.delta, self._plan)
            except DeltaError as error:
                return VerdictKind.REFUSED, error.reason  # of its bytes alone: found again in any other copy
            self._contributions.add(header.window, entry.client_id, 1)
            self._window(header.window).add_all(delta.counters, delta.counts)
        stream.record(header.id.sequence, sign, header.window, reason)
        self._streams.put((entry.client_id, header.id.stream), stream)
        return (VerdictKind.COUNTED, None) if reason is None else (VerdictKind.REFUSED, reason)
