"""What a client tells: its status, where every record and delta is in one of the counts, and its events."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from edge_client.errors import NotCountedError
from hushsum.delta import DeltaId
from hushsum.errors import Reason
from hushsum.usable_records import RecordProblems
from hushsum_proto.answers import Answer, AnyReason, Refusal
from hushsum_proto.answers import Status as AnswerStatus

if TYPE_CHECKING:
    from hushsum.privacy.accountant import Account
    from hushsum.secure_sum.client import ClientStep


_DETAILS: Final = {
    AnswerStatus.LATE: "a delta is late: its window was sealed before it came, and it counts nowhere",
    AnswerStatus.UNKNOWN: (
        "a delta is unknown: the data of its window is erased, so the service cannot tell whether it was counted, and "
        "its records are not sent again"
    ),
}


class EventKind(StrEnum):
    """The closed set of kinds of events."""

    CONNECTED = "connected"
    DISCONNECTED = "disconnected"
    ACKNOWLEDGED = "acknowledged"
    COUNTED = "counted"
    LATE = "late"
    MOVED = "moved"
    UNKNOWN = "unknown"
    REFUSED = "refused"
    NOT_COUNTED = "not counted"
    RECORDS_DROPPED = "records dropped"
    RECORDS_CLIPPED = "records clipped"
    SPOOL_FULL = "spool full"
    CLOCK_OFF = "clock off"
    PLAN_CHANGED = "plan changed"
    PLAN_REFUSED = "plan refused"
    STOPPED = "stopped"


@dataclass(frozen=True)
class Event:
    """Something that happened to a client.

    Attributes:
        kind: What it was. The answers to a delta have the names of the counts in :class:`Status`. ``moved``: a delta
            came late and is bound to a later window (``window.late = "next"``). ``not counted``: with a secure sum, or
            of a silo, a window is in no sum; or what waited under an earlier plan was erased, because its windows are
            over, or cannot be read. ``plan changed``: this client began under the service's new plan. ``plan refused``:
            it did not, and keeps its plan; the detail says why. ``spool full``: a batch was refused whole, for the
            spool has reached its limit, or its disk takes no more. ``clock off``: the device's clock and the service's
            differ by more than a window's lateness. ``stopped``: the service has ended the session for good (another
            plan, or it does not accept who this is), or the spool cannot be used.
        detail: One sentence for people.
        delta: Of an answer: the delta's id.
        reason: Of ``refused``: the reason's name.
        window: Of ``not counted``: the window's index; None for an earlier plan.
        attempt: Of ``disconnected``: attempts that have failed since the last answer.
        next_attempt_ms: Of ``disconnected``: when it connects again, by this device's clock in ms since 1970 UTC; None
            where nothing waits to be sent. Of ``stopped``, because another plan is collected: when a new client may
            take that plan up; None where the policy takes up no new plan.
        error: Of ``stopped``: what every method raises from now on.
    """

    kind: EventKind
    detail: str = ""
    delta: DeltaId | None = None
    reason: str | None = None
    window: int | None = None
    attempt: int = 0
    next_attempt_ms: int | None = None
    error: Exception | None = None

    @classmethod
    def of_answer(cls, answer: Answer) -> Self:
        """A delta's definitive answer, which is durable in the spool."""
        refusal = answer.refusal
        reason = None if refusal is None else reason_name(refusal.reason)
        detail = _DETAILS.get(answer.status, f"a delta is {answer.status.value}")
        detail = detail if refusal is None else explain(refusal)
        return cls(EventKind(answer.status.value), detail, delta=answer.id, reason=reason)


#: Is called with every event, on the client's event loop: it must return at once, and must not call the client.
OnEvent = Callable[[Event], None]


class RoundProgress(NamedTuple):
    """How far a client has come in a round of a secure sum: the round's id, and the client's last step."""

    round: bytes
    step: "ClientStep"


_WINDOWS_MAX: Final = 64  # windows that may be open at a time


@dataclass(eq=False)
class NotCounted:
    """What counts nowhere, and is to be raised: refusals by reason with one detail each, answers, windows, erasures."""

    refused: Counter[str] = field(default_factory=Counter)
    details: dict[str, str] = field(default_factory=dict)
    answers: Counter[AnswerStatus] = field(default_factory=Counter)
    windows: dict[int, str] = field(default_factory=dict)
    erased: list[str] = field(default_factory=list)

    def add(self, other: "NotCounted") -> None:
        self.refused += other.refused
        self.details = {**other.details, **self.details}
        self.answers += other.answers
        self.windows = {**other.windows, **self.windows}
        for window in sorted(self.windows)[:-_WINDOWS_MAX]:
            del self.windows[window]
        self.erased += other.erased

    @property
    def error(self) -> NotCountedError | None:
        """None where there is nothing."""
        if not (self.refused or self.answers or self.windows or self.erased):
            return None
        return NotCountedError(
            late=self.answers[AnswerStatus.LATE],
            unknown=self.answers[AnswerStatus.UNKNOWN],
            refused=self.refused,
            details={name: self.details[name] for name in self.refused},
            windows=self.windows,
            erased=self.erased,
        )


class Unreported:
    """What counts nowhere, and that no flush has raised yet. Of several flushes at once each is told.

    A flush that ends without raising it (it took too long, or was cancelled) leaves all of it to the next.
    """

    def __init__(self) -> None:
        self._rest = NotCounted()
        self._of_flushes: list[NotCounted] = []

    def add_answer(self, answer: Answer) -> None:
        """Adds a definitive answer, if its delta does not count."""
        if answer.status in (AnswerStatus.LATE, AnswerStatus.UNKNOWN):
            self._add(NotCounted(answers=Counter([answer.status])))
        if answer.status is AnswerStatus.REFUSED and answer.refusal is not None:
            name = reason_name(answer.refusal.reason)
            self._add(NotCounted(refused=Counter([name]), details={name: explain(answer.refusal)}))

    def add_windows(self, windows: Mapping[int, str]) -> None:
        """Adds windows that are in no sum, with the reasons."""
        if windows:
            self._add(NotCounted(windows=dict(windows)))

    def add_erased(self, what: str) -> None:
        """Adds what was erased of an earlier plan, a sentence without its full stop."""
        self._add(NotCounted(erased=[what]))

    @contextmanager
    def flush(self) -> Iterator[NotCounted]:
        """While a flush runs: what it raises, which is all that is unreported, and all that is added meanwhile."""
        told = NotCounted()
        told.add(self._rest)
        self._of_flushes.append(told)
        try:
            yield told
        finally:
            self._of_flushes.remove(told)

    def take(self) -> NotCountedError | None:
        """The error of what is unreported; nothing is left but for the flushes that run. None without any."""
        taken, self._rest = self._rest, NotCounted()
        return taken.error

    def _add(self, more: NotCounted) -> None:
        for each in (self._rest, *self._of_flushes):
            each.add(more)


RECORDS: Final = "records"
RECORDS_DROPPED: Final = "records_dropped"
RECORDS_CLIPPED: Final = "records_clipped"
RECORDS_ABSENT: Final = "records_absent"
RECORDS_REFUSED: Final = "records_refused"
DELTAS: Final = "deltas"
DELTAS_MOVED: Final = "deltas_moved"
REPORTS: Final = "reports"
SUBMISSIONS_SPENT: Final = "submissions_spent"
SUBMISSIONS_COUNTED: Final = "submissions_counted"
SUBMISSIONS_LOST: Final = "submissions_lost"
WINDOWS_UNSPENT: Final = "windows_unspent"
RECORDS_UNSPENT: Final = "records_unspent"
#: Answers to a delta that counts.
COUNTED: Final = frozenset({AnswerStatus.ACKNOWLEDGED, AnswerStatus.COUNTED})
_REFUSED: Final = "refused:"
#: Refusals that a client with one spool, which was never copied, does not get.
_OF_COPIES: Final = frozenset({Reason.ID_REUSED, Reason.ID_OF_ANOTHER_WINDOW, Reason.SECOND_DELTA})
_COPIED: Final = (
    "; this client has contributed from another spool: this one is a copy, or restored from a back-up, or two spools "
    "have the same client id. Further records of this spool may not be counted, and its ledger lacks the spends of the "
    "other one, so a window may be charged twice. Continue with the spool that was used last. If it is lost, create a "
    "new one, but not under a plan with a device ledger: a new ledger contains no spends"
)
_OTHER: Final = "other"  # a reason that only a newer service knows


@dataclass(frozen=True)
class SendStats:
    """What a client has written to its connections since it started.

    Attributes:
        first: Deltas that were sent at least once.
        again: Sends of a delta that had been sent before.
        bytes: Of packed deltas, resends too; of a plan with a secure sum, of masked vectors.
    """

    first: int = 0
    again: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Counts:
    """The counts of everything that was added to a client, by result.

    What was added and answered is kept in the spool and counts its whole life; what was sent counts since this client
    started.

    Attributes:
        records: Usable records that were added.
        records_dropped: Records that were left out, because they could not be read or had no label of the plan.
        records_clipped: Usable records outside the plan's bounds, which were moved to them.
        records_absent: With a secure sum, or of a silo: usable records that were left out, for in their window this
            client did not run, or it was spent or over already.
        records_refused: Records that were left out because they were more than the plan allows a client in the window,
            of batches whose first ones were added: usable ones; of reports, unusable ones too.
        records_unspent: With a secure sum, or of a silo: records that had been added and are in nothing that was
            submitted, for their window passed without it, or they came while it was under way.
        reports: Randomised reports that records became, those of dropped ones included, which tell nothing.
        deltas: Deltas that the records became.
        deltas_sent: Deltas that were sent at least once since this client started.
        deltas_resent: Further sends of those.
        bytes_sent: Of packed deltas, resends too; of a plan with a secure sum, of masked vectors.
        acknowledged: Deltas that were durable at the service before their window's seal. Each is counted exactly once,
            unless the fold's verdict says otherwise: this client's other spools had used up the window's bound of
            records, or the id had come before with other bytes.
        counted: Deltas of a closed window that the service had counted.
        deltas_moved: How often a delta came after its window's seal and was bound to a later window, under a new id, as
            plans with ``window.late = "next"`` say. Its answer there is counted as that of any delta.
        late: Deltas that came after their window's seal and count nowhere.
        unknown: Deltas whose window's data is erased, so that the service cannot tell whether it had counted them, or
            that were erased without an answer because their plan was replaced and their window is over. Their records
            are never sent again. Under ``window.time = "arrival"`` a service says this only of deltas that were sent
            before, and had no answer then.
        refused: Deltas that were refused for good, by the reason's name.
        submissions_spent: Windows whose privacy this device has spent, with a secure sum or as a silo: its masked
            vector, or its noised sum, was sent, or was about to be.
        submissions_counted: Of those, the ones whose sum is durable at the service.
        submissions_lost: Of those, the ones that count nowhere, or whose result is unknown.
        windows_unspent: Windows in which this client ran, and for which it never submitted.
    """

    records: int = 0
    records_dropped: int = 0
    records_clipped: int = 0
    records_absent: int = 0
    records_refused: int = 0
    deltas: int = 0
    deltas_sent: int = 0
    deltas_resent: int = 0
    bytes_sent: int = 0
    acknowledged: int = 0
    counted: int = 0
    late: int = 0
    unknown: int = 0
    records_unspent: int = 0
    submissions_spent: int = 0
    submissions_counted: int = 0
    submissions_lost: int = 0
    windows_unspent: int = 0
    reports: int = 0
    deltas_moved: int = 0
    refused: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def of(cls, kept: Mapping[str, int], sends: SendStats) -> Self:
        """From what the spool keeps, and what was sent since the start."""
        refused = {name.removeprefix(_REFUSED): count for name, count in kept.items() if name.startswith(_REFUSED)}
        counts: dict[str, Any] = {field.name: kept[field.name] for field in fields(cls) if field.name in kept}
        counts |= {"deltas_sent": sends.first, "deltas_resent": sends.again, "bytes_sent": sends.bytes}
        return cls(**counts, refused=MappingProxyType(refused))


@dataclass(frozen=True)
class Status(Counts):
    """The counts of a client, and the state of its connection.

    Attributes:
        queued: Deltas in the spool that have no definitive answer yet, under the current plan.
        waiting: Of the first 64 of those: deltas that are not sent before a later window begins, under plans with
            ``window.time = "arrival"``. The open window has no room for them (``records_per_client``), or they came
            late for it.
        held: Deltas, and with a secure sum or of a silo batches of records, that wait under earlier plans: they are
            sent if the service goes back to their plan, and erased once their windows are over.
        connected: Whether the service has accepted a connection that still stands. With secure sums each round has one.
        last_error: Why the last connection or attempt ended, or what has stopped the client; None where nothing did.
        next_attempt_ms: When it connects again, by this device's clock in ms since 1970 UTC; None where it is connected
            or has nothing to send.
        account: What this device has spent under all plans of its spool, and may still spend, by its own account: with
            secure sums and in local mode. None under plans of mode ``central``, under which the service spends.
        round: How far this client has come in a round of a secure sum; None where it is in none.
        windows_left: To how many more windows this client may add records, for the life of a plan that bounds them
            (``window.windows_per_client``). At 0 it has fallen silent: :meth:`EdgeClient.add` refuses records of any
            other window. None without such a bound.
        problems: What was wrong with some of the records that were added since this client started.
    """

    queued: int = 0
    waiting: int = 0
    held: int = 0
    connected: bool = False
    last_error: str | None = None
    next_attempt_ms: int | None = None
    account: "Account | None" = None
    round: RoundProgress | None = None
    windows_left: int | None = None
    problems: RecordProblems = field(default_factory=lambda: RecordProblems(0))

    @property
    def counts(self) -> Counts:
        """The counts alone."""
        return Counts(**{field.name: getattr(self, field.name) for field in fields(Counts)})


def submission_count_of(result: str) -> str:
    """The count of a window's submission with this result: an answer to a silo's delta, or the result of a round."""
    return SUBMISSIONS_COUNTED if result in COUNTED else SUBMISSIONS_LOST


def reason_name(reason: AnyReason | None) -> str:
    """The name under which refusals for a reason are counted."""
    return _OTHER if reason is None else reason.value


def explain(refusal: Refusal) -> str:
    """The service's words, and where they show that a spool was copied, what that means and what to do."""
    return f"{refusal.detail}{_COPIED}" if refusal.reason in _OF_COPIES else refusal.detail


def answer_name(answer: Answer) -> str:
    """The name under which the spool counts an answer."""
    reason = None if answer.refusal is None else answer.refusal.reason
    return _REFUSED + reason_name(reason) if answer.status is AnswerStatus.REFUSED else answer.status.value
