"""What a device allows: it refuses a plan that promises less than its owner asks for, whatever the service says."""

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from edge_client.errors import PolicyError, SettingsError
from hushsum.canonical import real, real_text
from hushsum.errors import CanonicalError, GuaranteeError
from hushsum.plan import Plan
from hushsum.privacy.verifier import verify


@dataclass(frozen=True)
class Policy:
    """The rules of one device. A rule that is not set allows everything; the mechanism is verified always.

    Attributes:
        max_epsilon: The largest ε of a window and unit that a plan may have; a number above 0, or its exact text such
            as ``"0.5"`` or ``"1/3"``.

    Raises:
        SettingsError: A rule holds no number above 0.
    """

    max_epsilon: float | Fraction | Decimal | str | None = None

    def __post_init__(self) -> None:
        try:
            limit = self.epsilon_limit
        except CanonicalError as error:
            raise SettingsError(f"max_epsilon: got {self.max_epsilon!r}, expected a number above 0") from error
        if limit is not None and limit <= 0:
            raise SettingsError(f"max_epsilon: got {self.max_epsilon!r}, expected a number above 0")

    @property
    def epsilon_limit(self) -> Fraction | None:
        """``max_epsilon``, exactly."""
        return None if self.max_epsilon is None else real(self.max_epsilon)

    def check(self, plan: Plan) -> None:
        """Refuses a plan that these rules do not allow, or whose mechanism does not support what it claims.

        Raises:
            PolicyError: With the rule, what the plan asks for, and what is allowed.
        """
        privacy = plan.privacy
        limit = self.epsilon_limit
        if limit is not None and privacy.epsilon > limit:
            asked = f"epsilon {real_text(privacy.epsilon)} per window and {privacy.unit}"
            raise PolicyError("max_epsilon", asked, f"at most {real_text(limit)}")
        try:
            verify(
                privacy.mechanism,
                plan.family.sensitivity,
                epsilon=privacy.epsilon,
                delta=privacy.delta,
                unit=privacy.unit,
                records_per_client=privacy.records_per_client,
            )
        except GuaranteeError as error:
            allowed = "only a mechanism that supports what the plan claims"
            raise PolicyError("mechanism", f"one that does not ({error})", allowed) from error
