"""Errors and warnings of the device SDK: the caller's first, then the device's, the network's and the service's."""

from collections.abc import Mapping, Sequence

from hushsum.errors import BudgetError, HushsumError, HushsumWarning
from hushsum.privacy.relations import Cost


class EdgeError(HushsumError):
    """Base class of the errors of the device SDK."""


class SettingsError(EdgeError):
    """An invalid setting."""


class ClientStateError(EdgeError):
    """A client that was used before ``async with`` or after it."""


class EventTimeError(EdgeError):
    """An event time that is neither whole milliseconds nor an aware datetime, or of a window that is too long ago."""


class PolicyError(EdgeError):
    """A plan that this device's policy does not allow.

    Args:
        rule: The rule's name, such as ``max_epsilon``.
        asked: What the plan asks for.
        allowed: What the policy allows.
    """

    def __init__(self, rule: str, asked: str, allowed: str) -> None:
        super().__init__(f"policy rule {rule} allows {allowed}, but the plan has {asked}; nothing was contributed")
        self.rule = rule
        self.asked = asked
        self.allowed = allowed


class AccountError(EdgeError, BudgetError):
    """This device's ledger has no budget for its reports of a window: the batch was not added.

    Args:
        window: Its index.
        left: What the account still allows.
        why: What the account says.
    """

    def __init__(self, window: int, left: Cost, why: str) -> None:
        super().__init__(f"window {window}: this device's ledger: {why}; this batch was not added")
        self.window = window
        self.left = left


class NoPartError(EdgeError):
    """This device does not, or no longer, participate in a window (secure sums and silos).

    Args:
        window: Its index.
        why: Half a sentence.
    """

    def __init__(self, window: int, why: str) -> None:
        super().__init__(f"this device does not participate in window {window}: {why}")
        self.window = window
        self.why = why


class SpoolError(EdgeError):
    """The spool cannot be used: damaged, of a newer format, of another client, or not writable."""


class SpoolInUseError(SpoolError):
    """Another process, or another client of this process, has the spool open."""


class SpoolFullError(SpoolError):
    """The spool has no space for this batch: the batch was not added."""


class UnreachableError(EdgeError):
    """No service answered within the timeout."""


class FlushTimeoutError(UnreachableError, TimeoutError):
    """Some deltas had no definitive answer within the timeout. They stay in the spool and are sent later."""


class NotCountedError(EdgeError):
    """Something that this client sent is not counted; do not send it again.

    Attributes:
        late: Deltas that came after their window was sealed.
        unknown: Deltas whose window's data is erased: the service cannot tell whether it had counted them.
        refused: Deltas that were refused for good, by the reason's name.
        details: One of the service's sentences for each reason.
        windows: With a secure sum, or of a silo: why a window is in no sum that is known of, by its index.
        erased: What was erased of earlier plans, because their windows are over: a sentence for each.
    """

    def __init__(
        self,
        *,
        late: int = 0,
        unknown: int = 0,
        refused: Mapping[str, int] | None = None,
        details: Mapping[str, str] | None = None,
        windows: Mapping[int, str] | None = None,
        erased: Sequence[str] = (),
    ) -> None:
        self.late, self.unknown = late, unknown
        self.refused, self.details = dict(refused or {}), dict(details or {})
        self.windows = dict(windows or {})
        self.erased = tuple(erased)
        parts = [f"{_deltas(late)} arrived after their window was sealed (late)"] if late else []
        if unknown:
            erased = "of an ended window whose data is erased, which the service may have counted before (unknown)"
            parts.append(f"{_deltas(unknown)} {erased}")
        for reason, count in self.refused.items():
            parts.append(f"{_deltas(count)} refused for {reason} ({self.details.get(reason, '')})")
        parts += [f"window {window}: {why}" for window, why in self.windows.items()]
        parts += self.erased
        super().__init__(f"not counted: {'; '.join(parts)}")


def _deltas(count: int) -> str:
    return f"{count} delta{'' if count == 1 else 's'}"


class SessionRefusedError(EdgeError):
    """The service refused the session; unsent data stays in the spool."""


class AuthenticationError(SessionRefusedError):
    """The service rejected this client's identity or credentials; the message is the service's."""


class PlanChangedError(SessionRefusedError):
    """The service collects another plan than that of this spool; a new client on it may take that plan up.

    Attributes:
        next_attempt_ms: When a new client may do so at the earliest, by this device's clock in ms since 1970 UTC: one
            that starts before hears of the other plan again, and stops. None where the policy takes up no new plan.
    """

    next_attempt_ms: int | None = None


class EdgeWarning(HushsumWarning):
    """Base class of the warnings of the device SDK."""


class AbsentWarning(EdgeWarning):
    """Records were dropped because this client does not participate in their window (secure sums and silos).

    It did not run there, has submitted for the window already, or cannot pay for it. That it takes part is visible, and
    must not depend on its having records.
    """


class NotCountedWarning(EdgeWarning):
    """A client ended before a flush raised the :class:`NotCountedError` that this has the text of."""


class ClockWarning(EdgeWarning):
    """This device's clock and the service's differ by more than a window's lateness."""
