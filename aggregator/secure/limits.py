"""How long a round of this process waits, and what it reads of a client."""

from dataclasses import dataclass
from typing import Final

from aggregator.errors import ConfigError
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

    @property
    def least_left_s(self) -> float:
        """How long a window must still be open when the first vector is asked for."""
        return self.upload_s + _STEPS_LEFT * self.step_s

    def check(self, plan: Plan) -> None:
        """Refuses times in which no round of a plan would come to its end.

        Devices come within the first quarter of what lateness leaves beside the wait for a cohort.

        Raises:
            ConfigError: With what a round takes, and what the plan leaves.
        """
        cohort, left_ms = plan.privacy.cohort, plan.window.lateness_ms
        assert cohort is not None, "a plan in mode secure"
        open_s = 0.75 * (left_ms - cohort.wait_ms) / 1000
        if not self.manual and open_s < self.least_left_s:
            raise ConfigError(
                f"secure_upload_s: got {self.upload_s:g}: with {_STEPS_LEFT} steps of secure_step_s = {self.step_s:g} "
                f"a round may take {self.least_left_s:g} s, and after a window the lateness leaves it {open_s:g} "
                "s; expected smaller ones, or a plan with more lateness"
            )


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

    def allow_vectors(self, now_ms: int) -> bool:
        """Whether it is open for so long."""
        return self.due_ms is None or self.due_ms - now_ms >= 1000 * self.settings.least_left_s


def limits_of(plan: Plan, settings: RoundSettings, parameters: RoundParameters) -> RoundLimits:
    """The limits of a round of a plan."""
    advertisement = 2 + ID_BYTES_MAX + KEYS_BYTES + SIGNATURE_BYTES
    shares = HASH_BYTES + parameters.degree * SEALED_BYTES
    size = len(pack(parameters, Kind.SHARES)) + max(advertisement, shares)  # all other messages are shorter
    due = None if settings.manual else due_ms(plan.window, parameters.window)
    return RoundLimits(settings, parameters.members_min, size, due)
