"""Every error of the service, and the texts of its refusals."""

from collections.abc import Iterable
from typing import Final

from hushsum.delta import DeltaId
from hushsum.errors import HushsumError, Reason
from hushsum.plan import Plan
from hushsum_proto.answers import Answer, Refusal, ServiceReason, Status
from hushsum_proto.messages import PROTOCOL_VERSIONS


class AggregatorError(HushsumError):
    """The root of the service's errors."""


# What an operator has to fix.


class ConfigError(AggregatorError):
    """An unknown setting, or a value that is not allowed."""


class MemoryLimitError(AggregatorError):
    """More memory is in use than the operator, or the container, allows: the service drains and stops."""


class ReleasingStoppedError(AggregatorError):
    """Releasing has stopped: the text says why, and what an operator can do. Nothing is drawn again."""


# What the caller did wrong.


class UnauthenticatedError(AggregatorError):
    """A call from a caller that this service does not accept."""


class ForbiddenError(AggregatorError):
    """A call from a known caller that may not do what it asked for."""


class WindowOrderError(AggregatorError):
    """A window that cannot be sealed or released now: the text names the window that comes first."""


class WindowNotBegunError(WindowOrderError):
    """A window that begins ``wait_ms`` from now, by the store's clock."""

    def __init__(self, window: int, wait_ms: int) -> None:
        super().__init__(f"window {window} does not accept submissions yet: it starts in {wait_ms / 1000:g} s")
        self.wait_ms = wait_ms


class WindowNotOverError(WindowOrderError):
    """A window that may be sealed ``wait_ms`` from now at the earliest, by the store's clock."""

    def __init__(self, window: int, wait_ms: int) -> None:
        super().__init__(f"window {window} is not over by the store's clock: it can be sealed in {wait_ms / 1000:g} s")
        self.wait_ms = wait_ms


# What fails in the service, or in what it depends on.


class ClaimLostError(AggregatorError):
    """These clients of a round take part in another round of the same window, through another gateway."""

    def __init__(self, clients: frozenset[str]) -> None:
        super().__init__(
            f"{len(clients)} participants of the round are in another round of the window, at another gateway"
        )
        self.clients = clients


class LogError(AggregatorError):
    """The log cannot be used: not our file, a newer format, or an entry that must not be skipped."""


class LogUnavailableError(LogError):
    """The log cannot be reached now. Whether the last operation is done is not known; it may be tried again."""


class LogGapError(LogError):
    """The log does not hold the position that a fold needs next.

    ``found`` is the next position that the log holds, or its end.
    """

    def __init__(self, partition: int, position: int, found: int) -> None:
        if found > position:
            what = (
                f"entries {position} to {found - 1} are missing and not yet folded: the store is from before they were "
                "erased, as after every outcome, or the log has lost them. Restore a newer store, or the log"
            )
        else:
            what = (
                f"the log ends at {found}, but the fold has processed {position - 1}: the log is an older copy, or was "
                "made anew. Restore the log"
            )
        super().__init__(f"partition {partition}: {what}; no entry is skipped. Without either the plan cannot go on")
        self.partition = partition
        self.position = position
        self.found = found


class StoreError(AggregatorError):
    """The store cannot be used: not our file, a newer format, or contradictory contents."""


class StoreUnavailableError(StoreError):
    """The store cannot be reached now. Whether the last operation is done is not known; it may be tried again."""


class OpenFilesError(StoreUnavailableError):
    """The process, or the machine, has as many files open as allowed; it passes when connections end."""


class FencedError(StoreError):
    """A write by a process that has lost its partition or its lease to another one: nothing was written."""


class StaleCheckpointError(StoreError):
    """A checkpoint older than the stored one: another worker owns this partition."""


class OutcomeExistsError(StoreError):
    """A window already has its outcome; the one that was drawn again is the same, and is dropped."""


class ReceiptsError(AggregatorError):
    """The receipts cannot be trusted: damaged in the middle, of a newer format, or fewer than the store knows."""


class ForeignReceiptsError(ReceiptsError):
    """The receipts of this store are missing, or have been replaced by others."""


class FoldsBehindError(AggregatorError):
    """A fold in another process did not get far enough in the given time; asking again helps."""


class PartitionStoppedError(AggregatorError):
    """A partition's fold has stopped; the error that stopped it is the cause."""


RETRY_AFTER_MS: Final = 200
NOT_BEGUN_MS_MAX: Final = 5000  # a clock may be set
FAILED: Final = "internal error; see the service's log"
NOT_YET: Final = "its result is not known yet"
NO_BUDGET: Final = (
    "budget exceeded: the ledger cannot pay for this window"  # the remaining budget would disclose others' submissions
)
NOT_CHARGED: Final = "the ledger is unavailable, and a window must be charged before its submissions are accepted"


class RefusedError(AggregatorError):
    """A delta, or a whole call, is refused; ``counted``: the metrics include it already."""

    def __init__(self, refusal: Refusal, *, counted: bool = False) -> None:
        super().__init__(refusal.detail)
        self.refusal = refusal
        self.counted = counted


def refused(delta_id: DeltaId | None, refusal: Refusal) -> Answer:
    """The answer that refuses a delta."""
    return Answer(delta_id, Status.REFUSED, refusal)


def unavailable(delta_id: DeltaId | None, detail: str) -> Answer:
    """The answer if it is not known whether a delta is durable: the client may send it again."""
    return refused(delta_id, Refusal.of(ServiceReason.UNAVAILABLE, detail, RETRY_AFTER_MS))


def wrong_plan(came: bytes, plan: Plan) -> Refusal:
    """Refuses a delta or a question of another plan than the one that is collected here."""
    named = came.hex()[:12] if came else "none"
    return Refusal.of(Reason.WRONG_PLAN, f"plan {named}, expected {plan.hex_id[:12]}")


def check_plan(plan_id: bytes, plan: Plan) -> None:
    """Raises RefusedError for another plan; an empty id means the one that is collected here."""
    if plan_id and plan_id != plan.id:
        raise RefusedError(wrong_plan(plan_id, plan))


def common_version(spoken: Iterable[int]) -> int:
    """The highest protocol version that both sides know; RefusedError if there is none."""
    offered = list(spoken)
    common = set(offered) & set(PROTOCOL_VERSIONS)
    if not common:
        detail = f"protocol versions {offered[:8]}, expected one of {list(PROTOCOL_VERSIONS)}"
        raise RefusedError(Refusal.of(ServiceReason.PROTOCOL_VERSION, detail))
    return max(common)


def overloaded(detail: str) -> RefusedError:
    """A shared limit is reached; the detail names the limit, and nothing about the shares of clients."""
    return RefusedError(Refusal.of(ServiceReason.OVERLOADED, detail, RETRY_AFTER_MS))


def rate_limited(wait_ms: int | None, what: str = "reports") -> Refusal:
    """A client has sent more than it may.

    Args:
        wait_ms: As :meth:`aggregator.rate_limits.RateLimits.wait_ms` returns it, and not 0. None: a new client, while
            no more can be remembered. That is overload, which depends on others: the detail gives no number of them.
        what: What it has sent too much of.
    """
    if wait_ms is None:
        detail = "too many clients exceed their rates at once"
        return Refusal.of(ServiceReason.OVERLOADED, detail, RETRY_AFTER_MS)
    detail = f"rate limit of this client exceeded ({what}): retry in {wait_ms} ms"
    return Refusal.of(ServiceReason.RATE_LIMITED, detail, wait_ms)


def share_taken(what: str) -> Refusal:
    """A client holds as much of a shared resource as one client may; the text names the limit."""
    return Refusal.of(ServiceReason.RATE_LIMITED, f"at most {what}", RETRY_AFTER_MS)


def too_many_streams(most: int) -> Refusal:
    """A client has used as many streams in a window as one may; its device shows this text to the user."""
    detail = (
        f"this client has used {most} streams in this window, the maximum: reuse the spool file of each process, "
        "instead of creating one at each start"
    )
    return Refusal.of(ServiceReason.TOO_MANY_STREAMS, detail)


def not_begun(wait_ms: int) -> Refusal:
    """The window has not begun: nothing is charged or taken for it before."""
    detail = "the window has not started by the service's clock"
    return Refusal.of(ServiceReason.UNAVAILABLE, detail, min(max(wait_ms, RETRY_AFTER_MS), NOT_BEGUN_MS_MAX))


def never_open() -> Refusal:
    """The window was skipped, or the clock has not opened it."""
    return Refusal.of(ServiceReason.WINDOW_NOT_OPEN, "the window was never opened by a gateway", 1000)


def shutting_down() -> Refusal:
    """This process is stopping."""
    return Refusal.of(ServiceReason.SHUTTING_DOWN, "the service is shutting down; nothing was accepted", RETRY_AFTER_MS)


def used_before(reason: Reason, delta_id: DeltaId) -> Refusal:
    """The id is bound to other bytes, or to another window."""
    how = "in another window" if reason is Reason.ID_OF_ANOTHER_WINDOW else "with other bytes"
    return Refusal.of(
        reason, f"id {delta_id.stream:016x}/{delta_id.sequence} was already used {how}: expected a new id"
    )


def of_fold(reason: Reason, delta_id: DeltaId, plan: Plan) -> Refusal:
    """Refusals that only the fold can decide: by an id's history, or a client's contribution to a window."""
    if reason in {Reason.ID_REUSED, Reason.ID_OF_ANOTHER_WINDOW}:
        return used_before(reason, delta_id)
    if reason is Reason.TOO_MANY_RECORDS:
        bound = plan.privacy.records_per_client
        return Refusal.of(reason, f"more records of this client in this window than records_per_client = {bound}")
    if reason is Reason.TOO_MANY_WINDOWS:
        most = plan.window.windows_per_client
        return Refusal.of(reason, f"this client is counted in windows_per_client = {most} windows, and not in this one")
    if reason is Reason.SECOND_DELTA:
        return Refusal.of(
            reason, "another sketch delta of this client is counted in this window, expected one per window"
        )
    return Refusal.of(reason, "rejected by the fold")
