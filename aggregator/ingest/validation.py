"""The trust mode of a plan, as a gateway sees it: how a submission is validated, whose it is, and what it costs.

Anonymous reports have a price: nobody can tell who sent a batch, so a client's contribution bound is kept by its own
device alone, and a name is limited by its rates alone (:mod:`aggregator.rate_limits`); where names are only declared, a
liar takes another one. Two things remain visible: positions in the log tell roughly in which order groups of entries
were committed, and an entry that was alone in its group cannot be mistaken for another one
(:mod:`aggregator.ingest.group_commit`). Whoever reads this process's memory or the network sees the senders; a shuffler
(``shuffle_min``) hides them even from the aggregator.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from aggregator.errors import RefusedError, of_fold, rate_limited, wrong_plan
from aggregator.fold.fold import NOBODY
from aggregator.fold.verdicts import RememberedKind
from aggregator.ingest.inflight import ReceivedDelta
from aggregator.interfaces import FoldPeek
from aggregator.rate_limits import BATCH_COST_MIN, QuotaReservation, RateCharge, RateLimits, SendLimits
from aggregator.runtime import Runtime
from hushsum.delta import Delta, DeltaId, read_header
from hushsum.delta_decoder import reader_of
from hushsum.errors import DeltaError, Reason
from hushsum.labels import SHUFFLED
from hushsum.local import report_batch, silo
from hushsum.plan import Plan
from hushsum.signing import ED25519, Directory, Role
from hushsum_proto.answers import Refusal
from hushsum_proto.convert import entry_to_bytes
from hushsum_proto.entries import DeltaEntry, ReportsEntry, partition_of, partition_of_sum
from hushsum_proto.messages import Authenticity


def id_in(data: bytes) -> DeltaId | None:
    """The id in a delta's header, for the refusal of bytes that were not validated; None where it cannot be read."""
    try:
        return read_header(data).id
    except DeltaError:
        return None


class ParsedDelta(NamedTuple):
    """The header of a delta; ``records`` is None while the checks of its body are still to be made."""

    id: DeltaId
    window: int
    records: int | None


def checked_header(plan: Plan, plan_id: bytes, data: bytes) -> ParsedDelta:
    """The header of a delta or batch of this plan, no larger than one can be; its body is not looked at.

    Raises:
        DeltaError: ``too_large``, or as :func:`hushsum.delta.read_header`.
        RefusedError: The envelope or the header names another plan.
    """
    if len(data) > plan.upload_bytes_max:
        raise DeltaError(Reason.TOO_LARGE, f"{len(data)} bytes, expected at most {plan.upload_bytes_max}")
    header = read_header(data)
    for named in (plan_id, header.plan_id):
        if named != plan.id:
            raise RefusedError(wrong_plan(named, plan))
    return ParsedDelta(header.id, header.window, None)


class SubmissionPolicy(ABC):
    """How submissions of one plan are validated, whose they are, and what they cost."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan

    @abstractmethod
    def reserve(self, received: ReceivedDelta) -> QuotaReservation:
        """Charges the sender before anything of the bytes is validated; the reservation names the delta's owner.

        Raises:
            RefusedError: Its sender may not send it, or not now.
        """

    def parse_many(self, deltas: Sequence[bytes]) -> Sequence[ParsedDelta | None]:
        """Each delta that passes every check of its bytes; None: :meth:`parse` and :meth:`records` decide."""
        return [None] * len(deltas)

    def parse(self, plan_id: bytes, data: bytes, parsed: ParsedDelta | None) -> ParsedDelta:
        """The header of a delta of this plan; ``parsed`` is what :meth:`parse_many` says of it.

        Raises:
            DeltaError: ``too_large``, or as :func:`hushsum.delta.read_header`.
            RefusedError: It is of another plan.
        """
        if parsed is None:
            return checked_header(self._plan, plan_id, data)
        if plan_id != self._plan.id:
            raise RefusedError(wrong_plan(plan_id, self._plan))
        return parsed

    @abstractmethod
    def records(self, data: bytes) -> int:
        """The records or reports of one delta, after every check of its bytes; 0 where it does not say.

        Raises:
            DeltaError: The first check that fails.
            RefusedError: It holds too few.
        """

    @abstractmethod
    def partition(self, owner: str, id: DeltaId, partitions: int) -> int:
        """The partition that it belongs to."""

    def check_contribution(self, peek: FoldPeek, id: DeltaId, records: int) -> None:
        """Refuses early what its fold, which is in this process, would refuse for the client's contributions.

        Raises:
            RefusedError: It would. What is counted in a window only grows until that is over.
        """
        del peek, id, records  # a batch of reports has no client

    @abstractmethod
    def entry(self, owner: str, window: int, data: bytes, now_ms: int) -> bytes:
        """The entry of the log that holds it."""


# A session sends many deltas under one id.
_partition_of = lru_cache(maxsize=1024)(partition_of)


class AttributedDeltas(SubmissionPolicy):
    """Each delta belongs to the client that sent it; ``sends`` limits its bytes."""

    def __init__(self, plan: Plan, sends: SendLimits | None = None) -> None:
        super().__init__(plan)
        self._sends = sends

    def reserve(self, received: ReceivedDelta) -> QuotaReservation:
        if received.shuffled is not None:
            raise _unexpected_signature()
        if self._sends is None:
            return QuotaReservation(received.client_id)
        return self._sends.take(received.client_id, len(received.data), prepaid=received.prepaid)

    def partition(self, owner: str, id: DeltaId, partitions: int) -> int:
        del id
        return _partition_of(owner, partitions)

    def entry(self, owner: str, window: int, data: bytes, now_ms: int) -> bytes:
        del window
        return entry_to_bytes(DeltaEntry(owner, data, now_ms))


class ExactDeltas(AttributedDeltas):
    """Sparse deltas of exact counters; a plan may bound the records of one client in a window."""

    def __init__(self, plan: Plan, sends: SendLimits | None = None) -> None:
        super().__init__(plan, sends)
        self._bound = plan.privacy.records_per_client
        self._reader = reader_of(plan)

    def parse_many(self, deltas: Sequence[bytes]) -> Sequence[ParsedDelta | None]:
        reader = self._reader
        if reader is None:
            return super().parse_many(deltas)
        batch, first = reader.batch(deltas), 0
        while first < len(deltas):
            first = reader.read(batch, first)
        columns = batch.streams.tolist(), batch.headers.tolist(), batch.spans.tolist(), batch.states.tolist()
        return [
            None if state else ParsedDelta(DeltaId(stream, sequence), window, records)
            for stream, (sequence, window), (_, _, records), state in zip(*columns, strict=True)
        ]

    def records(self, data: bytes) -> int:
        return Delta.unpack(data, self._plan).records if self._reader is None else self._reader.check(data)

    def check_contribution(self, peek: FoldPeek, id: DeltaId, records: int) -> None:
        if peek.kind is not RememberedKind.UNKNOWN:
            return
        if self._bound is not None and peek.contributed + records > self._bound:
            raise RefusedError(of_fold(Reason.TOO_MANY_RECORDS, id, self._plan))
        if peek.is_barred:
            raise RefusedError(of_fold(Reason.TOO_MANY_WINDOWS, id, self._plan))


class SiloDeltas(AttributedDeltas):
    """Noised whole deltas: one a client and window."""

    def records(self, data: bytes) -> int:
        silo.unpack(data, self._plan)
        return 0

    def check_contribution(self, peek: FoldPeek, id: DeltaId, records: int) -> None:
        del records
        if peek.kind is RememberedKind.UNKNOWN and peek.contributed:
            raise RefusedError(of_fold(Reason.SECOND_DELTA, id, self._plan))


def reserve_anonymous(
    received: ReceivedDelta, reports: int, *, rates: RateLimits, sends: SendLimits | None, runtime: Runtime
) -> QuotaReservation:
    """Charges a batch of so many reports to its sender; the reservation's owner is nobody.

    Raises:
        RefusedError: Its sender has to wait; then it has cost nothing.
    """
    client_id = received.client_id
    reservation = QuotaReservation(NOBODY)
    if sends is not None:
        reservation = sends.take(client_id, len(received.data), owner=NOBODY, prepaid=received.prepaid)
    wait_ms = rates.wait_ms(client_id, reports, runtime.monotonic())
    if wait_ms != 0:
        reservation.cancel()
        raise RefusedError(rate_limited(wait_ms))
    reservation.charges += (RateCharge(rates, client_id, reports),)
    return reservation


_BEFORE_WINDOW: Final = 42  # bytes of a batch: format, plan, stream, a sequence number of 0
_VARINT_BYTES_MAX: Final = 10
_GOES_ON: Final = 0x80  # of a byte of a varint that is not its last


class AnonymousReports(SubmissionPolicy):
    """Batches of reports: the sender's rate or its shuffler's signature is checked, then the sender is dropped.

    Nothing after :meth:`reserve` knows a client, an address or a time: the entry's time is its window's start. Until
    the answer, the reservation alone knows whose rate a refusal of the service's own is given back to.

    ``limits`` is for the reports of each client, ``sends`` for its bytes. Where the plan has a shuffler, ``shufflers``
    has its key; its batches come from many clients and are unlimited.
    """

    def __init__(
        self,
        plan: Plan,
        limits: RateLimits,
        shufflers: Directory | None,
        runtime: Runtime,
        sends: SendLimits | None = None,
    ) -> None:
        super().__init__(plan)
        local, sizes = plan.privacy.local, plan.report_sizes
        assert local is not None, "a plan of reports"
        assert sizes is not None, "a plan of reports"
        assert (shufflers is None) == (not local.shuffle_min), "checked at the start"
        self._width = sizes.width
        self._least = local.shuffle_min
        self._limits = limits
        self._shufflers = shufflers
        self._runtime = runtime
        self._sends = sends

    def reserve(self, received: ReceivedDelta) -> QuotaReservation:
        data = received.data
        # What no batch of this plan can be costs nothing to see, and so costs its sender nothing.
        if len(data) > self._plan.upload_bytes_max:
            detail = f"{len(data)} bytes, expected at most {self._plan.upload_bytes_max}"
            raise RefusedError(Refusal.of(Reason.TOO_LARGE, detail))
        if received.plan_id != self._plan.id:
            raise RefusedError(wrong_plan(received.plan_id, self._plan))
        if self._shufflers is not None:
            return self._reserve_shuffled(self._shufflers, received)
        if received.shuffled is not None:
            raise _unexpected_signature()
        # Validating costs the more, the more reports there are.
        reports = max(BATCH_COST_MIN, self._report_count(data))
        return reserve_anonymous(received, reports, rates=self._limits, sends=self._sends, runtime=self._runtime)

    def _reserve_shuffled(self, shufflers: Directory, received: ReceivedDelta) -> QuotaReservation:
        reservation = QuotaReservation(NOBODY)
        if self._sends is not None:
            # Checking a signature costs something, too: a sender without a valid one pays for it.
            reservation = self._sends.take(
                received.client_id, len(received.data), owner=NOBODY, prepaid=received.prepaid
            )
        try:
            _check_shuffled(shufflers, received.data, received.shuffled)
        except BaseException:
            reservation.release()
            raise
        reservation.cancel()
        return QuotaReservation(NOBODY)

    def records(self, data: bytes) -> int:
        records = len(report_batch.unpack(data, self._plan).reports)
        if records < self._least:
            detail = f"{records} reports, expected at least {self._least} in a shuffled batch"
            raise RefusedError(Refusal.of(Reason.TOO_FEW_REPORTS, detail))
        return records

    def partition(self, owner: str, id: DeltaId, partitions: int) -> int:
        del owner
        return partition_of_sum(id, partitions)  # by its stream, which was drawn for this batch alone

    def entry(self, owner: str, window: int, data: bytes, now_ms: int) -> bytes:
        del owner, now_ms
        start_ms = self._plan.window.start_ms(window)
        return entry_to_bytes(ReportsEntry(data, self._shufflers is not None, start_ms))

    def _report_count(self, data: bytes) -> int:
        """An estimate from the size alone: at least 1, and at most two more than there are."""
        at, end = _BEFORE_WINDOW, min(len(data), _BEFORE_WINDOW + _VARINT_BYTES_MAX)
        while at < end and data[at] >= _GOES_ON:
            at += 1
        # The window's last byte, and one or more for the number of reports.
        return max(1, (len(data) - at - 2) // self._width)


def submission_policy_of(
    plan: Plan,
    *,
    limits: RateLimits | None,
    shufflers: Directory | None,
    runtime: Runtime,
    sends: SendLimits | None = None,
) -> SubmissionPolicy:
    """The policy of a plan's trust mode.

    Plans of reports need ``limits``, and ``shufflers`` if they have a shuffler.
    """
    if plan.privacy.reports is not None:
        assert limits is not None, "anonymous submissions are rate-limited"
        return AnonymousReports(plan, limits, shufflers, runtime, sends)
    return SiloDeltas(plan, sends) if plan.privacy.is_silo else ExactDeltas(plan, sends)


def _check_shuffled(shufflers: Directory, data: bytes, shuffled: Authenticity | None) -> None:
    if shuffled is None:
        what = "the plan accepts only shuffled reports"
    else:
        key = shufflers.keys.get(shuffled.key_id)
        if key is None or key.role is not Role.SHUFFLER or shuffled.suite != ED25519:
            what = "the batch is not signed by a shuffler in the key registry"
        elif not key.public_key.verifies(shuffled.tag, SHUFFLED, data):
            what = "the shuffler's signature does not match the batch"
        else:
            return
    raise RefusedError(Refusal.of(Reason.UNSHUFFLED, f"{what}; send reports to the shuffler"))


def _unexpected_signature() -> RefusedError:
    return RefusedError(Refusal.of(Reason.MALFORMED, "shuffler's signature not expected: the plan has no shuffler"))
