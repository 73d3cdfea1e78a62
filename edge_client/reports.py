"""From records to batches of randomised reports: the part of ``add`` that computes, under a plan of reports.

Nothing of a record is kept but its report, or leaves this function in another form. A batch has a stream of its own,
drawn at random: neither the spool's stream nor any other batch's is in it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from edge_client.changes import Add, Drawn, Int64s, Unbound
from edge_client.config import LARGE_BYTES
from edge_client.memo import keys_of
from hushsum.delta import DeltaId
from hushsum.entropy import Entropy, OsEntropy
from hushsum.local import encoding
from hushsum.local.batches import ReportBatch
from hushsum.plan import Plan

_HEADER_BYTES: Final = 128  # of a batch, generously
_STREAM_BYTES: Final = 8


@dataclass(frozen=True)
class Randomising:
    """How this device's records become reports.

    Attributes:
        plan: Of reports.
        secret: The spool's, for keys of memoised reports; None where the plan does not memoise.
        entropy: Of reports and of streams: the operating system's.
    """

    plan: Plan
    secret: bytes | None = field(default=None, repr=False)
    entropy: Entropy = field(default_factory=OsEntropy, repr=False)

    def addition(self, records: Any, window: int, labels: object) -> Add:
        """What the spool takes for some records: one report for each, unusable ones too.

        Args:
            records: n of them, as a family reads them.
            window: Of all of them.
            labels: For a plan with classes: n of them.

        Raises:
            RecordError: The array, or the number of labels, is wrong; nothing that one record decides.
        """
        plan = self.plan
        reports, dropped = encoding.reports(plan, records, labels, self.entropy)
        split = partial(self._batches, window)
        drawn = None
        if self.secret is not None:
            drawn = Drawn(keys_of(plan, records, labels, self.secret), reports, split)
        deltas = split(reports) if drawn is None else ()
        return Add(window, deltas, dropped, plan.privacy.records_per_client, charged=True, drawn=drawn)

    def _batches(self, window: int, reports: Int64s) -> tuple[Unbound, ...]:
        return tuple(self._batch(window, part) for part in _cut(reports, reports_max(self.plan)))

    def _batch(self, window: int, reports: Int64s) -> Unbound:
        id = DeltaId(int.from_bytes(self.entropy.read(_STREAM_BYTES), "big"), 0)
        data = ReportBatch(self.plan.id, window, id, reports).pack(self.plan)
        return Unbound(len(reports), partial(_bound_already, data))


def reports_max(plan: Plan) -> int:
    """The most reports of one batch of a device: what the plan allows, in one message of a stream."""
    sizes = plan.report_sizes
    assert sizes is not None, "a plan of reports"
    return min(sizes.records_max, (LARGE_BYTES - _HEADER_BYTES) // sizes.width)


def _cut(reports: Int64s, most: int) -> Iterator[Int64s]:
    for at in range(0, len(reports), most):
        yield reports[at : at + most]


def _bound_already(data: bytes, _: DeltaId) -> bytes:
    return data
