"""What a gateway reads of packed deltas, many at once where compiled loops run (:mod:`hushsum.delta_batch`)."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from aggregator.refusals import RefusedError, wrong_plan
from hushsum.delta import Delta, DeltaId, read_header
from hushsum.delta_batch import reader_of
from hushsum.errors import DeltaError, Reason
from hushsum.local import batches, silo
from hushsum.plan import Plan


class Seen(NamedTuple):
    """What is known of one delta.

    Attributes:
        id: Its id.
        window: Its window.
        records: How many it holds, after every check of its bytes; None where those are still to be made.
    """

    id: DeltaId
    window: int
    records: int | None


class Inspection:
    """Looks at deltas of one plan.

    Args:
        plan: What is collected.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._reader = reader_of(plan)
        self._check = _check_of(plan) if self._reader is None else self._reader.check

    def see(self, deltas: Sequence[bytes]) -> Sequence[Seen | None]:
        """Each delta that passes every check of :meth:`hushsum.delta.Delta.unpack`; None: it may break one of them."""
        reader = self._reader
        if reader is None:
            return [None] * len(deltas)
        batch, first = reader.batch(deltas), 0
        while first < len(deltas):
            first = reader.read(batch, first)
        columns = batch.streams, batch.headers[:, 0], batch.headers[:, 1], batch.spans[:, 2], batch.states
        rows = zip(*(column.tolist() for column in columns), strict=True)
        return [
            None if state else Seen(DeltaId(stream, sequence), window, records)
            for stream, sequence, window, records, state in rows
        ]

    def first_look(self, plan_id: bytes, data: bytes) -> Seen:
        """The header of one delta, no larger than one can be.

        Args:
            plan_id: As the envelope names it.
            data: The packed delta.

        Raises:
            DeltaError: ``too_large``, or as :func:`hushsum.delta.read_header`.
            RefusedError: It is of another plan.
        """
        if len(data) > self._plan.upload_bytes_max:
            raise DeltaError(Reason.TOO_LARGE, f"{len(data)} bytes, expected at most {self._plan.upload_bytes_max}")
        header = read_header(data)
        for named in (plan_id, header.plan_id):
            if named != self._plan.id:
                raise RefusedError(wrong_plan(named, self._plan))
        return Seen(header.id, header.window, None)

    def records(self, data: bytes) -> int:
        """The records of one delta, or the reports of a batch, after the same checks; 0 of a noised whole delta.

        Raises:
            DeltaError: The first that it breaks.
        """
        return self._check(data)


def _check_of(plan: Plan) -> Callable[[bytes], int]:
    """Every check of a packed delta that needs only the plan; gives the number of its records, where it says one."""
    local = plan.privacy.local
    if local is None:
        return lambda data: Delta.unpack(data, plan).records
    if local.reports:
        return lambda data: len(batches.unpack(data, plan).reports)

    def check_noised(data: bytes) -> int:
        silo.unpack(data, plan)
        return 0

    return check_noised


def id_in(data: bytes) -> DeltaId | None:
    """The id of a delta that is refused before anything of it was believed, where one can be read."""
    try:
        return read_header(data).id
    except DeltaError:
        return None
