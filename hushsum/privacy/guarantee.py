"""What a release promises to one unit: (ε, δ), whose, between which neighbours, by which mechanism."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Self

from hushsum.canonical import real_text
from hushsum.errors import PlanError
from hushsum.privacy.calibration import round_up
from hushsum.privacy.cohort import Cohort
from hushsum.privacy.exact_numbers import numeral
from hushsum.privacy.local_mode import LocalMode
from hushsum.privacy.mechanisms import DISCRETE_GAUSSIAN, Mechanism
from hushsum.privacy.mode_statements import REPEATED, REPORTING, SUBMITTING, TAKING_PART, cohort_text, local_text
from hushsum.privacy.relations import ADD_REMOVE, CLIENT, RELATIONS, REPLACE, UNITS, ZERO_OUT, is_delta, is_positive
from hushsum.schedule import HORIZON_MAX
from hushsum.schema import Table

CENTRAL: Final = "central"
SECURE: Final = "secure"
LOCAL: Final = "local"
MODES: Final = (CENTRAL, SECURE, LOCAL)

_NEIGHBOURS: Final = {
    ADD_REMOVE: "adding or removing",
    ZERO_OUT: "emptying",
    REPLACE: "replacing",
}


@dataclass(frozen=True)
class Guarantee:
    """A differential privacy guarantee of one release.

    Args:
        epsilon: Above 0.
        delta: From 0 to below 1.
        unit: ``record`` or ``client``: who is protected.
        relation: ``add/remove``, ``zero-out`` or ``replace``: which data sets are neighbours.
        mode: ``central``: the aggregator is trusted and adds the noise. ``secure``: clients do, in shares, and it sees
            their sum alone. ``local``: nobody is, and each device draws it for itself.
        mechanism: What was drawn.
        records_per_client: m, the most records of one client in a window; None for unit ``record``.
        rho: What the counters' noise gives in zCDP, rounded up; None but for ``discrete-gaussian``.
        cohort: Of a secure sum, for mode ``secure`` alone; δ then holds its ``failure``.
        local: The form of mode ``local``, for it alone; with reports δ is 0 and the relation ``replace``.
        horizon: How many cumulative releases of one sequence it is of together; None: of one release.
        windows_per_client: In how many windows of such a sequence a client may be; for unit ``client`` alone.

    Raises:
        PlanError: A field is out of range; it names the field under ``guarantee``.
    """

    epsilon: Fraction
    delta: Fraction
    unit: str
    relation: str
    mode: str
    mechanism: Mechanism
    records_per_client: int | None
    rho: Fraction | None = None
    cohort: Cohort | None = None
    local: LocalMode | None = None
    horizon: int | None = None
    windows_per_client: int | None = None

    def __post_init__(self) -> None:
        if not is_positive(self.epsilon):
            raise PlanError("guarantee.epsilon", self.epsilon, "an exact number above 0")
        if not is_delta(self.delta):
            raise PlanError("guarantee.delta", self.delta, "an exact number from 0 to below 1")
        for field, value, known in (
            ("unit", self.unit, UNITS),
            ("relation", self.relation, RELATIONS),
            ("mode", self.mode, MODES),
        ):
            if value not in known:
                raise PlanError(f"guarantee.{field}", value, " or ".join(map(repr, known)))
        m = self.records_per_client
        if (m is not None) != (self.unit == CLIENT) or (m is not None and (type(m) is not int or m < 1)):
            raise PlanError("guarantee.records_per_client", m, "an integer of at least 1 with unit 'client', else None")
        if not is_positive(self.rho) if self.mechanism.name == DISCRETE_GAUSSIAN else self.rho is not None:
            raise PlanError("guarantee.rho", self.rho, "an exact number above 0 with discrete-gaussian, else None")
        self._check_cohort()
        self._check_local()
        self._check_sequence()

    def _check_cohort(self) -> None:
        cohort = self.cohort
        if (cohort is not None) != (self.mode == SECURE):
            raise PlanError("guarantee.secure", cohort, "a cohort with mode 'secure', else None")
        survivors = None if cohort is None else cohort.honest_survivors
        if self.mechanism.honest_survivors != survivors:
            came = self.mechanism.honest_survivors
            raise PlanError("guarantee.mechanism.honest_survivors", came, f"{survivors}, as the cohort has them")
        if cohort is None:
            return
        if self.relation != ZERO_OUT:
            raise PlanError("guarantee.relation", self.relation, "'zero-out' with mode 'secure'")
        if self.delta < cohort.failure:
            raise PlanError("guarantee.delta", self.delta, f"at least {real_text(cohort.failure)} with mode 'secure'")

    def _check_sequence(self) -> None:
        if (self.horizon is None) != (self.mechanism.factorisation is None):
            raise PlanError("guarantee.horizon", self.horizon, "a horizon with a factorisation, else none")
        windows = self.windows_per_client
        if (windows is not None) != (self.horizon is not None and self.unit == CLIENT):
            raise PlanError(
                "guarantee.windows_per_client", windows, "a number with a horizon and unit 'client', else none"
            )
        if self.horizon is not None and self.mode != CENTRAL:
            raise PlanError("guarantee.horizon", self.horizon, "none but in mode 'central'")

    def _check_local(self) -> None:
        local, mechanism = self.local, self.mechanism
        if (local is not None) != (self.mode == LOCAL):
            raise PlanError("guarantee.local", local, "a form with mode 'local', else None")
        if mechanism.randomises != (local is not None and local.reports):
            raise PlanError("guarantee.mechanism.name", mechanism.name, "a randomiser with reports, else noise")
        if local is None:
            if self.mode == CENTRAL and self.relation != ADD_REMOVE:
                raise PlanError("guarantee.relation", self.relation, "'add/remove' with mode 'central'")
            return
        if self.relation != (relation := REPLACE if local.reports else ZERO_OUT):
            raise PlanError("guarantee.relation", self.relation, f"{relation!r} with form {local.form!r}")
        if mechanism.randomises and (mechanism.name != local.randomiser or self.delta):
            raise PlanError("guarantee.local", local, "the mechanism's randomiser, and δ = 0")

    def statement(self, *, accounted: bool | None, windowed: bool = True) -> str:
        """The guarantee in plain words.

        Args:
            accounted: Whether a ledger was charged for this release; None: nothing is said of it, such as of a plan.
            windowed: Whether it is of a window, which might have been withheld.
        """
        parts = (
            self._promise(),
            self._participation(),
            self._means(),
            self._outcome() if windowed else "",
            "" if accounted is None else _accounting(accounted=accounted),
        )
        return " ".join(part for part in parts if part)

    def _promise(self) -> str:
        whose, others = "one record", "another"
        if self.records_per_client is not None:
            bound = f"at most {self.records_per_client} in a window"
            if self.windows_per_client is not None:
                bound = f"{bound}, in at most {self.windows_per_client} windows"
            whose, others = f"all records of one client ({bound})", "others"
        if self.relation == REPLACE:
            whose = f"{whose} by {others}"
            if self.local is not None and self.local.memoise:
                whose = f"{whose}{REPEATED[self.unit]}"
        shown = "this release can show" if self.local is None else "leaves its device, and of anything derived from it,"
        if self.horizon is not None:
            shown = f"all cumulative releases of its sequence together can show, {self.horizon} at most,"
        epsilon, delta = numeral(self.epsilon, up=True), numeral(self.delta, up=True)
        but = f", except with probability {delta}" if self.delta else ""
        return (
            f"ε = {epsilon}, δ = {delta}, unit {self.unit}, {self.relation}: "
            f"{_NEIGHBOURS[self.relation]} {whose} changes the probability of anything that {shown} by a "
            f"factor of at most {factor_text(self.epsilon)}{but}."
        )

    def _participation(self) -> str:
        if self.local is not None:
            return REPORTING if self.local.reports else SUBMITTING
        if self.relation != ZERO_OUT:
            return ""
        return TAKING_PART

    def _means(self) -> str:
        mechanism, every = self.mechanism, "on every counter, the number of records included"
        noise = f"{mechanism.name} of scale {real_text(mechanism.scale)} {every}"
        if self.rho is not None:
            deviation = f"{math.sqrt(mechanism.scale):.4g}"
            promised = f"{'' if self.horizon is None else 'the whole sequence is '}{numeral(self.rho, up=True)}-zCDP"
            noise = f"{mechanism.name} of standard deviation {deviation} {every}: {promised}"
        if self.cohort is not None:
            pure = self.rho is None and self.delta == self.cohort.failure
            return cohort_text(self.cohort, noise, pure=pure)
        if self.local is not None:
            return local_text(self.local, mechanism, noise, self.records_per_client)
        if self.horizon is not None:
            return (
                "The aggregator is trusted with the exact counters of all windows for as long as the sequence runs: it "
                "keeps the noise that later releases share, of which exact sums of earlier windows can be computed. "
                f"The noise is made of draws of {noise}."
            )
        return f"The aggregator is trusted with the exact counters and adds the noise once ({noise})."

    def _outcome(self) -> str:
        scale = self.mechanism.clients_scale
        if scale is None:
            return ""
        return (
            "Whether a window is released depends on a noisy number of clients (discrete-laplace of scale "
            f"{real_text(scale)}), which uses ε = {numeral(round_up(1 / scale), up=True)} of the total."
        )

    def to_fields(self) -> dict[str, object]:
        """Strings and integers, ready for the encoding; what not every guarantee has only where it is set."""
        fields: dict[str, object] = {
            "epsilon": real_text(self.epsilon),
            "delta": real_text(self.delta),
            "unit": self.unit,
            "relation": self.relation,
            "mode": self.mode,
            "mechanism": self.mechanism.to_fields(),
        }
        if self.records_per_client is not None:
            fields["records_per_client"] = self.records_per_client
        if self.rho is not None:
            fields["rho"] = real_text(self.rho)
        if self.cohort is not None:
            fields["secure"] = self.cohort.to_fields()
        if self.local is not None:
            fields["local"] = self.local.to_fields()
        for key in ("horizon", "windows_per_client"):
            if (value := getattr(self, key)) is not None:
                fields[key] = value
        return fields

    @classmethod
    def from_fields(cls, fields: object) -> Self:
        """Reads what :meth:`to_fields` wrote.

        Raises:
            PlanError: A field is missing, unknown or out of range.
        """
        table = Table(fields, "guarantee")
        guarantee = cls(
            epsilon=table.real("epsilon", expected="an exact number above 0", above=0),
            delta=table.real("delta", expected="an exact number from 0 to below 1"),
            unit=table.choice("unit", built=UNITS),
            relation=table.choice("relation", built=RELATIONS),
            mode=table.choice("mode", built=MODES),
            mechanism=Mechanism.from_table(table.table("mechanism")),
            records_per_client=table.integer("records_per_client", low=1) if table.has("records_per_client") else None,
            rho=table.real("rho", expected="an exact number above 0", above=0) if table.has("rho") else None,
            cohort=Cohort.from_table(table.table("secure")) if table.has("secure") else None,
            local=LocalMode.from_fields(table.table("local")) if table.has("local") else None,
            horizon=_steps(table, "horizon"),
            windows_per_client=_steps(table, "windows_per_client"),
        )
        table.finish()
        return guarantee


def _steps(table: Table, key: str) -> int | None:
    return table.integer(key, low=1, high=HORIZON_MAX) if table.has(key) else None


def factor_text(epsilon: Fraction) -> str:
    """By what a probability changes at most, such as ``e^1 = 2.72``."""
    power = numeral(epsilon, up=True)
    factor = f"e^{power}" if power.replace(".", "").isdigit() else f"e^({power})"
    return f"{factor} = {math.exp(epsilon):.3g}" if epsilon <= 20 else factor


def _accounting(*, accounted: bool) -> str:
    if accounted:
        return "It was charged to the ledger of its population."
    return (
        "It is unaccounted: no ledger was charged, so the total over several releases of the same data is not limited."
    )
