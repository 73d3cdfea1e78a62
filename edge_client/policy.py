"""What a device allows: it refuses a plan that promises less than its owner asks for, whatever the service says."""

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Final

from edge_client.errors import PolicyError, SettingsError
from hushsum.canonical import real, real_text
from hushsum.errors import CanonicalError, GuaranteeError
from hushsum.plan import Plan
from hushsum.privacy.cohort import MALICIOUS
from hushsum.privacy.guarantee import CENTRAL, MODES, SECURE
from hushsum.privacy.relation import CLIENT, UNITS
from hushsum.privacy.spec import PARTICIPATIONS, PROTECTED
from hushsum.privacy.verifier import verify

_DELTA: Final = "a number from 0 to below 1"
_Number = float | Fraction | Decimal | str


@dataclass(frozen=True)
class Policy:
    """The rules of one device. A rule that is None allows everything; the mechanism is verified always.

    Numbers are exact: a float means its shortest text, and a text may be such as ``"0.5"`` or ``"1/3"``.

    Attributes:
        max_epsilon: The largest ε of a window and unit that a plan may have; above 0.
        max_delta: The largest δ; 0 demands pure plans, of which secure ones are none, for their protocol may fail. It
            has a default, for with a large δ a small ε says nothing.
        unit: Whom a plan must protect: ``client`` refuses plans that protect single records alone.
        participation: ``protected`` refuses plans under which it is no secret that this device takes part.
        mode: ``secure`` refuses plans whose service is trusted with what this device sends, and secure ones whose
            server is trusted to keep to the protocol. It allows one without a directory of clients, whose server is
            still trusted to pass on keys: ``directory`` refuses that.
        directory: True refuses secure plans that name no directory of clients: their server could put keys of its own
            in place of others' and open what this device sends. It says nothing of other plans.

    Raises:
        SettingsError: A rule holds what it must not.
    """

    max_epsilon: _Number | None = None
    max_delta: _Number | None = Fraction(1, 10**5)
    unit: str | None = None
    participation: str | None = None
    mode: str | None = None
    directory: bool = False

    def __post_init__(self) -> None:
        epsilon = _exact("max_epsilon", self.max_epsilon, "a number above 0")
        if epsilon is not None and epsilon <= 0:
            raise SettingsError(f"max_epsilon: got {self.max_epsilon!r}, expected a number above 0")
        delta = _exact("max_delta", self.max_delta, _DELTA)
        if delta is not None and not 0 <= delta < 1:
            raise SettingsError(f"max_delta: got {self.max_delta!r}, expected {_DELTA}")
        for name, came, known in (
            ("unit", self.unit, UNITS),
            ("participation", self.participation, PARTICIPATIONS),
            ("mode", self.mode, MODES),
        ):
            if came not in {None, *known}:
                raise SettingsError(f"{name}: got {came!r}, expected {' or '.join(map(repr, known))}")
        if not isinstance(self.directory, bool):
            raise SettingsError(f"directory: got {self.directory!r}, expected True or False")

    @property
    def epsilon_limit(self) -> Fraction | None:
        """``max_epsilon``, exactly."""
        return None if self.max_epsilon is None else real(self.max_epsilon)

    @property
    def delta_limit(self) -> Fraction | None:
        """``max_delta``, exactly."""
        return None if self.max_delta is None else real(self.max_delta)

    def check(self, plan: Plan) -> None:
        """Refuses a plan that these rules do not allow, or whose mechanism does not support what it claims.

        Raises:
            PolicyError: With the rule, what the plan asks for, and what is allowed.
        """
        privacy = plan.privacy
        for name, asked, limit in (
            ("epsilon", privacy.epsilon, self.epsilon_limit),
            ("delta", plan.guarantee.delta, self.delta_limit),  # with what a secure sum's failure takes
        ):
            if limit is not None and asked > limit:
                text = f"{name} {real_text(asked)} per window and {privacy.unit}"
                raise PolicyError(f"max_{name}", text, f"at most {real_text(limit)}")
        if self.unit == CLIENT and privacy.unit != CLIENT:
            asked_unit = f"unit {privacy.unit!r}, which protects single records"
            raise PolicyError("unit", asked_unit, "unit 'client', which protects all records of a client")
        if self.participation == PROTECTED != privacy.participation:
            asked_for = f"participation {privacy.participation!r}, under which it is no secret that a device takes part"
            raise PolicyError("participation", asked_for, "participation 'protected', of which no release tells")
        self._check_mode(plan)
        try:
            verify(privacy.mechanism, plan.family.sensitivity, privacy.claim)
        except GuaranteeError as error:
            allowed = "only a mechanism that supports what the plan claims"
            raise PolicyError("mechanism", f"one that does not ({error})", allowed) from error

    def _check_mode(self, plan: Plan) -> None:
        cohort = plan.privacy.cohort
        if self.mode == SECURE != plan.privacy.mode:
            asked = f"mode {plan.privacy.mode!r}, in which the service sees what a device sends"
            raise PolicyError("mode", asked, "mode 'secure', in which it sees sums of many devices alone")
        if self.mode == SECURE and cohort is not None and cohort.adversary != MALICIOUS:
            asked = f"a secure sum whose server is trusted to keep to the protocol (adversary {cohort.adversary!r})"
            raise PolicyError("mode", asked, f"mode 'secure' with adversary {MALICIOUS!r}: its server may lie")
        if self.mode == CENTRAL != plan.privacy.mode:
            raise PolicyError("mode", f"mode {plan.privacy.mode!r}", "mode 'central'")
        if self.directory and cohort is not None and not cohort.directory:
            asked = "a secure sum without a directory, whose server is trusted to pass on keys"
            raise PolicyError("directory", asked, "one whose plan names a directory of clients")


def _exact(rule: str, value: _Number | None, expected: str) -> Fraction | None:
    try:
        return None if value is None else real(value)
    except CanonicalError as error:
        raise SettingsError(f"{rule}: got {value!r}, expected {expected}") from error
