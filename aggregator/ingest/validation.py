"""What a gateway makes of what is sent, by the mode of its plan: a client's delta, or reports that are nobody's.

What the anonymity of reports costs: nobody can say who sent a batch, so a client's contribution bound is kept by its
own device alone, and a name is limited by its rates alone (:mod:`aggregator.rate_limits`): where names are only
declared, a liar takes another one. What remains to be seen: positions in the log tell roughly in which order groups of
entries were committed, and an entry that was alone in its group has nobody to be mistaken for
(:mod:`aggregator.ingest.group_commit`). Whoever reads this process's memory or the network sees who sends; a shuffler
(``shuffle_min``) keeps even that from the aggregator.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple, Protocol

from aggregator.errors import RefusedError, of_fold, wrong_plan
from aggregator.fold.fold import NOBODY
from aggregator.fold.state import RememberedKind
from aggregator.ingest.inflight import Submission
from aggregator.ingest.window_tracker import WindowTracker
from aggregator.interfaces import FoldPeek, FoldReader
from aggregator.rate_limits import BATCH_COST_MIN, QuotaReservation, RateLimits, SendLimits, anonymous
from aggregator.runtime import Runtime
from hushsum.delta import Delta, DeltaId, read_header
from hushsum.delta_batch import reader_of
from hushsum.directory import Directory, Role
from hushsum.errors import DeltaError, Reason
from hushsum.labels import SHUFFLED
from hushsum.local import batches, silo
from hushsum.plan import Plan
from hushsum.signatures import ED25519
from hushsum_proto.answers import Refusal
from hushsum_proto.convert import entry_to_bytes
from hushsum_proto.entries import DeltaEntry, ReportsEntry, partition_of, partition_of_sum
from hushsum_proto.messages import Authenticity


class ParsedDelta(NamedTuple):
    """What is known of one delta.

    Attributes:
        id: Its id.
        window: Its window.
        records: How many it holds, after every check of its bytes; None where those are still to be made.
    """

    id: DeltaId
    window: int
    records: int | None


class DeltaParser:
    """Looks at deltas of one plan.

    Args:
        plan: What is collected.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._reader = reader_of(plan)
        self._check = _check_of(plan) if self._reader is None else self._reader.check

    def see(self, deltas: Sequence[bytes]) -> Sequence[ParsedDelta | None]:
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
            None if state else ParsedDelta(DeltaId(stream, sequence), window, records)
            for stream, sequence, window, records, state in rows
        ]

    def first_look(self, plan_id: bytes, data: bytes) -> ParsedDelta:
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
        return ParsedDelta(header.id, header.window, None)

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


_BEFORE_WINDOW: Final = 42  # bytes of a batch: format, plan, stream, a sequence number of 0
_VARINT_BYTES_MAX: Final = 10
_GOES_ON: Final = 0x80  # of a byte of a varint that is not its last

_partition_of = lru_cache(maxsize=1024)(partition_of)  # a session sends many deltas under one id


class SubmissionPolicy(Protocol):
    """What is sent to one plan's gateway."""

    def sender(self, client_id: str, plan_id: bytes, data: bytes, shuffled: Authenticity | None) -> QuotaReservation:
        """Under whose name it goes on.

        Args:
            client_id: Who sent it, as its authenticator has it.
            plan_id: As the envelope names it.
            data: As it came; nothing of it was looked at.
            shuffled: Who says to have shuffled it.

        Raises:
            RefusedError: Its sender may not send it, or not now.
        """

    def partition(self, sender: str, id: DeltaId, partitions: int) -> int:
        """The partition that it belongs to."""

    def check(self, peek: FoldPeek, seen: ParsedDelta, records: int) -> None:
        """Refuses early what its fold, which is here, would refuse for what is counted of its sender.

        Raises:
            RefusedError: It would. What is counted in a window only grows until that is over.
        """

    def check_records(self, records: int) -> None:
        """Refuses too few of them.

        Raises:
            RefusedError: They are.
        """

    def entry(self, sent: Submission, now_ms: int) -> bytes:
        """The entry of the log that holds it."""


class AttributedDeltas:
    """Deltas, and noised whole deltas: each under its client's id.

    Args:
        plan: What is collected.
        sends: How many bytes each client may send; None: any.
    """

    def __init__(self, plan: Plan, sends: SendLimits | None = None) -> None:
        self._plan = plan
        self._sends = sends
        self._bound = plan.privacy.records_per_client if plan.privacy.local is None else None
        self._once = plan.privacy.local is not None

    def sender(self, client_id: str, plan_id: bytes, data: bytes, shuffled: Authenticity | None) -> QuotaReservation:
        """Its client."""
        del plan_id
        if shuffled is not None:
            raise _signed_for_nothing()
        if self._sends is None:
            return QuotaReservation(client_id)
        return QuotaReservation(client_id, self._sends.take(client_id, len(data)))

    def partition(self, sender: str, id: DeltaId, partitions: int) -> int:
        """That of its client."""
        del id
        return _partition_of(sender, partitions)

    def check(self, peek: FoldPeek, seen: ParsedDelta, records: int) -> None:
        """Refuses what is beyond the client's bound, and of noised deltas every one but the first."""
        if peek.kind is not RememberedKind.UNKNOWN:
            return
        if self._once and peek.contributed:
            raise RefusedError(of_fold(Reason.SECOND_DELTA, seen.id, self._plan))
        if self._bound is not None and peek.contributed + records > self._bound:
            raise RefusedError(of_fold(Reason.TOO_MANY_RECORDS, seen.id, self._plan))

    def check_records(self, records: int) -> None:
        """Any number is enough."""

    def entry(self, sent: Submission, now_ms: int) -> bytes:
        """With the client's id and the time."""
        return entry_to_bytes(DeltaEntry(sent.key.client_id, sent.data, now_ms))


class AnonymousReports:
    """Batches of reports. Their sender's rate is looked at, or the signature of their shuffler; then it is forgotten.

    Nothing after :meth:`sender` knows a client, an address or a time: the entry's is its window's start. While an
    answer is waited for, memory alone knows whose rate a refusal of the service's own is given back to.

    Args:
        plan: What is collected.
        limits: How much each client may send. A shuffler's batches are those of many clients, and not limited.
        shufflers: Whose signature a batch must have; None where the plan has no shuffler.
        runtime: The clock of the limits.
        sends: How many bytes each client may send; None: any.
    """

    def __init__(
        self,
        plan: Plan,
        limits: RateLimits,
        shufflers: Directory | None,
        runtime: Runtime,
        sends: SendLimits | None = None,
    ) -> None:
        local, sizes = plan.privacy.local, plan.report_sizes
        assert local is not None, "a plan of reports"
        assert sizes is not None, "a plan of reports"
        assert (shufflers is None) == (not local.shuffle_min), "checked at the start"
        self._plan = plan
        self._window = plan.window
        self._width = sizes.width
        self._least = local.shuffle_min
        self._limits = limits
        self._shufflers = shufflers
        self._runtime = runtime
        self._sends = sends

    def sender(self, client_id: str, plan_id: bytes, data: bytes, shuffled: Authenticity | None) -> QuotaReservation:
        """Nobody."""
        self._check_envelope(plan_id, data)
        if self._shufflers is None:
            if shuffled is not None:
                raise _signed_for_nothing()
            return self._paid(client_id, data)
        if self._sends is None:
            _check_shuffled(self._shufflers, data, shuffled)
            return QuotaReservation(NOBODY)
        # To check a signature costs something too: who has none of a shuffler pays for it.
        taken = self._sends.take(client_id, len(data))
        try:
            _check_shuffled(self._shufflers, data, shuffled)
            taken.give_back()
        finally:
            taken.let_go()
        return QuotaReservation(NOBODY)

    def _paid(self, client_id: str, data: bytes) -> QuotaReservation:
        """Nobody, once it is paid for: to look at its bytes costs the more, the more there are, be they good or not."""
        cost = max(BATCH_COST_MIN, self._reports(data))
        return anonymous(client_id, len(data), cost, rates=self._limits, sends=self._sends, runtime=self._runtime)

    def partition(self, sender: str, id: DeltaId, partitions: int) -> int:
        """That of its stream, which was drawn for it alone."""
        del sender
        return partition_of_sum(id, partitions)

    def check(self, peek: FoldPeek, seen: ParsedDelta, records: int) -> None:
        """There is no sender of whom anything could be counted."""

    def check_records(self, records: int) -> None:
        """Refuses a shuffled batch that is smaller than the plan says."""
        if records < self._least:
            detail = f"{records} reports, expected at least {self._least} in a shuffled batch"
            raise RefusedError(Refusal.of(Reason.TOO_FEW_REPORTS, detail))

    def entry(self, sent: Submission, now_ms: int) -> bytes:
        """With its window's start in place of the time."""
        del now_ms
        start_ms = self._window.start_ms(sent.window)
        return entry_to_bytes(ReportsEntry(sent.data, self._shufflers is not None, start_ms))

    def _check_envelope(self, plan_id: bytes, data: bytes) -> None:
        """Refuses what no batch of this plan can be, which costs nothing to see and so costs its sender nothing."""
        if len(data) > self._plan.upload_bytes_max:
            detail = f"{len(data)} bytes, expected at most {self._plan.upload_bytes_max}"
            raise RefusedError(Refusal.of(Reason.TOO_LARGE, detail))
        if plan_id != self._plan.id:
            raise RefusedError(wrong_plan(plan_id, self._plan))

    def _reports(self, data: bytes) -> int:
        """How many reports so many bytes hold, unread: at least 1; of a batch at most two more than there are."""
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
    """What is sent to a plan's gateway.

    Args:
        plan: What is collected.
        limits: Of reports; needed where it collects them.
        shufflers: Needed where those come through one.
        runtime: The clock.
        sends: How many bytes each client may send; None: any.
    """
    if plan.privacy.reports is None:
        return AttributedDeltas(plan, sends)
    assert limits is not None, "what is nobody's is limited"
    return AnonymousReports(plan, limits, shufflers, runtime, sends)


def _check_shuffled(shufflers: Directory, data: bytes, shuffled: Authenticity | None) -> None:
    if shuffled is None:
        what = "the plan takes reports from its shuffler alone"
    else:
        key = shufflers.keys.get(shuffled.key_id)
        if key is None or key.role is not Role.SHUFFLER or shuffled.suite != ED25519:
            what = "this is not signed by a shuffler that is known here"
        elif not key.public_key.verifies(shuffled.tag, SHUFFLED, data):
            what = "this is not what the shuffler has signed"
        else:
            return
    raise RefusedError(Refusal.of(Reason.UNSHUFFLED, f"{what}; send it to the shuffler, which signs what it passes on"))


def _signed_for_nothing() -> RefusedError:
    return RefusedError(Refusal.of(Reason.MALFORMED, "a shuffler's signature, expected none: the plan has no shuffler"))


@dataclass(frozen=True)
class SubmissionValidator:
    """Looks at the deltas of one plan.

    Attributes:
        plan: What is collected.
        parser: Reads their bytes.
        window_tracker: Which windows take deltas.
        folds: What is known of ids.
        submissions: What the plan's mode makes of what is sent.
    """

    plan: Plan
    parser: DeltaParser
    window_tracker: WindowTracker
    folds: FoldReader
    submissions: SubmissionPolicy

    def checked(self, plan_id: bytes, data: bytes, seen: ParsedDelta | None) -> ParsedDelta:
        """What is seen of a delta of this plan, no larger than one can be, whose window takes deltas or did.

        Raises:
            DeltaError: What is wrong with its bytes.
            RefusedError: Another plan, or another window.
        """
        if seen is None:
            seen = self.parser.first_look(plan_id, data)
        elif plan_id != self.plan.id:
            raise RefusedError(wrong_plan(plan_id, self.plan))
        self.window_tracker.check(seen.window)
        return seen

    def peek(self, sent: Submission, seen: ParsedDelta) -> RememberedKind | None:
        """What a fold that is here knows of it; refuses what that would refuse itself, but later.

        Raises:
            DeltaError: What is wrong with its bytes.
            RefusedError: Its fold would refuse it, or it holds too little.
        """
        records = self.parser.records(sent.data) if seen.records is None else seen.records
        self.submissions.check_records(records)
        peek = self.folds.peek(sent.partition, sent.key.client_id, sent.key.id, sent.digest, sent.window)
        if peek is None:
            return None
        if peek.kind is RememberedKind.REFUSED:
            assert peek.reason is not None
            raise RefusedError(of_fold(peek.reason, sent.key.id, self.plan))
        self.submissions.check(peek, seen, records)
        return peek.kind
