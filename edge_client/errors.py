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


class RefusedError(EdgeError):
    """Deltas were refused for good: their records are not counted, and sending them again cannot help.

    Args:
        refused: Number of deltas by the reason's name, at least one.
        details: One of the service's sentences for each reason.
    """

    def __init__(self, refused: Mapping[str, int], details: Mapping[str, str]) -> None:
        each = "; ".join(f"{count} for {reason} ({details.get(reason, '')})" for reason, count in refused.items())
        super().__init__(f"the service refused {sum(refused.values())} deltas: {each}")
        self.refused = dict(refused)
        self.details = dict(details)


class NotCountedError(EdgeError):
    """Windows of a plan with a secure sum, or of a silo, are in no sum that is known of.

    Args:
        windows: Why, by the window's index, at least one.
    """

    def __init__(self, windows: Mapping[int, str]) -> None:
        each = "; ".join(f"window {window}: {why}" for window, why in windows.items())
        super().__init__(f"{len(windows)} windows were not counted: {each}")
        self.windows = dict(windows)


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


class UncountedWarning(EdgeWarning):
    """Deltas are counted nowhere: they came after their window's seal, or their window is over and forgotten."""


class ClockWarning(EdgeWarning):
    """This device's clock and the service's differ by more than a window's lateness."""


class RefusalWarning(EdgeWarning):
    """A client was closed before some refusals were raised: call ``flush`` to have them raised."""
