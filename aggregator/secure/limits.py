"""How long a round of this process waits, and what it reads of a client."""

from dataclasses import dataclass
from typing import Final

from aggregator.windows import due_ms
from hushsum.plan import Plan
from hushsum.secure_sum.messages import HASH_BYTES, ID_BYTES_MAX, KEYS_BYTES, SEALED_BYTES, Kind, pack
from hushsum.secure_sum.parameters import RoundParameters
from hushsum.signatures import SIGNATURE_BYTES

_STEPS_LEFT: Final = 3  # signatures, shares, and the sum's way into the log


@dataclass(frozen=True)
class RoundSettings:
    """How long rounds wait.

    Attributes:
        step_s: For every client's message of a step.
        upload_s: For a client's vector, from the moment it may send it; and for all that are missing, from the moment
            that enough are whole.
        manual: Windows are sealed by hand, and not when they are due.
    """

    step_s: float
    upload_s: float
    manual: bool = False


@dataclass(frozen=True)
class RoundLimits:
    """The limits of one round.

    Attributes:
        settings: How long it waits.
        survivors_min: Vectors that are enough.
        message_bytes_max: What no message of a client is longer than; its vector is none.
        due_ms: When its window is sealed, by the wall clock; None: by hand.
    """

    settings: RoundSettings
    survivors_min: int
    message_bytes_max: int
    due_ms: int | None

    @property
    def least_left_s(self) -> float:
        """How long the window must still be open when the first vector is asked for."""
        return self.settings.upload_s + _STEPS_LEFT * self.settings.step_s

    def allow_vectors(self, now_ms: int) -> bool:
        """Whether it is open for so long."""
        return self.due_ms is None or self.due_ms - now_ms >= 1000 * self.least_left_s


def limits_of(plan: Plan, settings: RoundSettings, parameters: RoundParameters) -> RoundLimits:
    """The limits of a round of a plan."""
    advertisement = 2 + ID_BYTES_MAX + KEYS_BYTES + SIGNATURE_BYTES
    shares = HASH_BYTES + parameters.degree * SEALED_BYTES
    size = len(pack(parameters, Kind.SHARES)) + max(advertisement, shares)  # all other messages are shorter
    due = None if settings.manual else due_ms(plan.window, parameters.window)
    return RoundLimits(settings, parameters.members_min, size, due)
