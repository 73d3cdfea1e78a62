"""What a gateway makes of what is sent, by the mode of its plan: a client's delta, or reports that are nobody's.

What the anonymity of reports costs: nobody can say who sent a batch, so a client's contribution bound is kept by its
own device alone, and a name is limited by its rates alone (:mod:`aggregator.callers.rate_limits`): where names are only
declared, a liar takes another one. What remains to be seen: positions in the log tell roughly in which order groups of
entries were committed, and an entry that was alone in its group has nobody to be mistaken for
(:mod:`aggregator.commits`).
Whoever reads this process's memory or the network sees who sends; a shuffler (``shuffle_min``) keeps even that from the
aggregator.
"""

from functools import lru_cache
from typing import Final, Protocol

from aggregator.callers.client_limits import SendLimits
from aggregator.callers.rate_limits import BATCH_COST_MIN, RateLimits
from aggregator.callers.senders import Sender, anonymous
from aggregator.flights import Sent
from aggregator.fold.sums import NOBODY
from aggregator.fold.verdicts import RememberedKind
from aggregator.fold_view import Glance
from aggregator.inspection import Seen
from aggregator.ports import Runtime
from aggregator.refusals import RefusedError, of_fold, wrong_plan
from hushsum.delta import DeltaId
from hushsum.directory import Directory, Role
from hushsum.errors import Reason
from hushsum.labels import SHUFFLED
from hushsum.plan import Plan
from hushsum.signatures import ED25519
from hushsum_proto.answers import Refusal
from hushsum_proto.convert import entry_to_bytes
from hushsum_proto.entries import DeltaEntry, ReportsEntry, partition_of, partition_of_sum
from hushsum_proto.messages import Authenticity

_BEFORE_WINDOW: Final = 42  # bytes of a batch: format, plan, stream, a sequence number of 0
_VARINT_BYTES_MAX: Final = 10
_GOES_ON: Final = 0x80  # of a byte of a varint that is not its last

_partition_of = lru_cache(maxsize=1024)(partition_of)  # a session sends many deltas under one id


class Submissions(Protocol):
    """What is sent to one plan's gateway."""

    def sender(self, client_id: str, plan_id: bytes, data: bytes, shuffled: Authenticity | None) -> Sender:
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

    def check(self, glance: Glance, seen: Seen, records: int) -> None:
        """Refuses early what its fold, which is here, would refuse for what is counted of its sender.

        Raises:
            RefusedError: It would. What is counted in a window only grows until that is over.
        """

    def check_records(self, records: int) -> None:
        """Refuses too few of them.

        Raises:
            RefusedError: They are.
        """

    def entry(self, sent: Sent, now_ms: int) -> bytes:
        """The entry of the log that holds it."""


class ClientDeltas:
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

    def sender(self, client_id: str, plan_id: bytes, data: bytes, shuffled: Authenticity | None) -> Sender:
        """Its client."""
        del plan_id
        if shuffled is not None:
            raise _signed_for_nothing()
        if self._sends is None:
            return Sender(client_id)
        return Sender(client_id, self._sends.take(client_id, len(data)))

    def partition(self, sender: str, id: DeltaId, partitions: int) -> int:
        """That of its client."""
        del id
        return _partition_of(sender, partitions)

    def check(self, glance: Glance, seen: Seen, records: int) -> None:
        """Refuses what is beyond the client's bound, and of noised deltas every one but the first."""
        if glance.kind is not RememberedKind.UNKNOWN:
            return
        if self._once and glance.contributed:
            raise RefusedError(of_fold(Reason.SECOND_DELTA, seen.id, self._plan))
        if self._bound is not None and glance.contributed + records > self._bound:
            raise RefusedError(of_fold(Reason.TOO_MANY_RECORDS, seen.id, self._plan))

    def check_records(self, records: int) -> None:
        """Any number is enough."""

    def entry(self, sent: Sent, now_ms: int) -> bytes:
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

    def sender(self, client_id: str, plan_id: bytes, data: bytes, shuffled: Authenticity | None) -> Sender:
        """Nobody."""
        self._check_envelope(plan_id, data)
        if self._shufflers is None:
            if shuffled is not None:
                raise _signed_for_nothing()
            return self._paid(client_id, data)
        if self._sends is None:
            _check_shuffled(self._shufflers, data, shuffled)
            return Sender(NOBODY)
        # To check a signature costs something too: who has none of a shuffler pays for it.
        taken = self._sends.take(client_id, len(data))
        try:
            _check_shuffled(self._shufflers, data, shuffled)
            taken.give_back()
        finally:
            taken.let_go()
        return Sender(NOBODY)

    def _paid(self, client_id: str, data: bytes) -> Sender:
        """Nobody, once it is paid for: to look at its bytes costs the more, the more there are, be they good or not."""
        cost = max(BATCH_COST_MIN, self._reports(data))
        return anonymous(client_id, len(data), cost, rates=self._limits, sends=self._sends, runtime=self._runtime)

    def partition(self, sender: str, id: DeltaId, partitions: int) -> int:
        """That of its stream, which was drawn for it alone."""
        del sender
        return partition_of_sum(id, partitions)

    def check(self, glance: Glance, seen: Seen, records: int) -> None:
        """There is no sender of whom anything could be counted."""

    def check_records(self, records: int) -> None:
        """Refuses a shuffled batch that is smaller than the plan says."""
        if records < self._least:
            detail = f"{records} reports, expected at least {self._least} in a shuffled batch"
            raise RefusedError(Refusal.of(Reason.TOO_FEW_REPORTS, detail))

    def entry(self, sent: Sent, now_ms: int) -> bytes:
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


def submissions_of(
    plan: Plan,
    *,
    limits: RateLimits | None,
    shufflers: Directory | None,
    runtime: Runtime,
    sends: SendLimits | None = None,
) -> Submissions:
    """What is sent to a plan's gateway.

    Args:
        plan: What is collected.
        limits: Of reports; needed where it collects them.
        shufflers: Needed where those come through one.
        runtime: The clock.
        sends: How many bytes each client may send; None: any.
    """
    if plan.privacy.reports is None:
        return ClientDeltas(plan, sends)
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
