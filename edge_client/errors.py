"""Errors and warnings of the device SDK: the caller's first, then the device's, the network's and the service's."""

from collections.abc import Mapping

from hushsum.errors import BudgetError, HushsumError, HushsumWarning
from hushsum.privacy.relations import Cost


class EdgeError(HushsumError):
    """The root of what the device SDK raises on purpose."""


class SettingsError(EdgeError):
    """A setting that cannot be used: the value, and what was expected."""


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
        super().__init__(f"policy: rule {rule} allows {allowed}, the plan asks for {asked}; nothing was contributed")
        self.rule = rule
        self.asked = asked
        self.allowed = allowed


class AccountError(EdgeError, BudgetError):
    """This device's own account does not pay for its reports of a window: none of the batch was taken.

    Args:
        window: Its index.
        left: What the account still allows.
        why: What the account says.
    """

    def __init__(self, window: int, left: Cost, why: str) -> None:
        super().__init__(f"window {window}: this device's own account: {why}; nothing of this batch was taken")
        self.window = window
        self.left = left


class NoPartError(EdgeError):
    """This device takes no part in a window's secure sum, or submits nothing as a silo, or no more.

    Args:
        window: Its index.
        why: Half a sentence.
    """

    def __init__(self, window: int, why: str) -> None:
        super().__init__(f"this device takes no part in window {window}: {why}")
        self.window = window
        self.why = why


class SpoolError(EdgeError):
    """The spool cannot be used: it is damaged, newer, another client's, or its disk refuses."""


class SpoolInUseError(SpoolError):
    """Another process, or another client of this process, has the spool open."""


class SpoolFullError(SpoolError):
    """What waits for answers, and what this batch could take, are more than the limit; nothing of it was taken."""


class UnreachableError(EdgeError):
    """No service answered in the stated time."""


class FlushTimeoutError(UnreachableError, TimeoutError):
    """Some deltas had no definitive answer in the stated time. They stay in the spool and are sent on."""


class NotCountedError(EdgeError):
    """Something that this client sent is counted nowhere, and sending it again cannot help.

    Attributes:
        late: Deltas that came after their window was sealed.
        unknown: Deltas whose window is over and forgotten.
        refused: Deltas that were refused for good, by the reason's name.
        details: One of the service's sentences for each reason.
        windows: With a secure sum, or of a silo: why a window is in no sum that is known of, by its index.
    """

    def __init__(
        self,
        *,
        late: int = 0,
        unknown: int = 0,
        refused: Mapping[str, int] | None = None,
        details: Mapping[str, str] | None = None,
        windows: Mapping[int, str] | None = None,
    ) -> None:
        self.late, self.unknown = late, unknown
        self.refused, self.details = dict(refused or {}), dict(details or {})
        self.windows = dict(windows or {})
        parts = [f"{_deltas(late)} came after their window was sealed (late)"] if late else []
        parts += [f"{_deltas(unknown)} of a window that is over and forgotten (unknown)"] if unknown else []
        for reason, count in self.refused.items():
            parts.append(f"{_deltas(count)} refused for {reason} ({self.details.get(reason, '')})")
        parts += [f"window {window}: {why}" for window, why in self.windows.items()]
        super().__init__(f"counted nowhere: {'; '.join(parts)}")


def _deltas(count: int) -> str:
    return f"{count} delta{'' if count == 1 else 's'}"


class SessionRefusedError(EdgeError):
    """The service wants no session with this client; what is unsent stays in the spool."""


class AuthenticationError(SessionRefusedError):
    """The service does not accept who this client says it is, or what proves it: the text has the service's words."""


class PlanChangedError(SessionRefusedError):
    """Another plan is collected at the target than the one that this spool belongs to."""


class EdgeWarning(HushsumWarning):
    """The root of the SDK's own warnings."""


class AbsentWarning(EdgeWarning):
    """With a secure sum, or of a silo: records were left out of a window in which this client does not take part.

    It did not run there, has submitted for the window already, or cannot pay for it. That it takes part is visible, and
    must not depend on its having records.
    """


class NotCountedWarning(EdgeWarning):
    """A client ended before a flush raised the :class:`NotCountedError` that this has the text of."""


class ClockWarning(EdgeWarning):
    """This device's clock and the service's differ by more than a window's lateness."""
