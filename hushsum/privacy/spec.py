"""What a plan promises (``[privacy]``), read key by key, with the mechanism that keeps the promise."""

from dataclasses import dataclass
from fractions import Fraction

from hushsum.canonical import real_text
from hushsum.errors import GuaranteeError, NotBuiltError, PlanError
from hushsum.privacy.calibration import calibrate
from hushsum.privacy.mechanism import Mechanism
from hushsum.privacy.verifier import verify
from hushsum.schema import Table
from hushsum.sensitivity import Sensitivity


@dataclass(frozen=True)
class PrivacySpec:
    """What is promised (``[privacy]``) and the mechanism that keeps it.

    Attributes:
        epsilon: ε for each window and unit, as declared.
        delta: δ; 0 is pure differential privacy.
        unit: ``record`` or ``client``: whose data the promise protects.
        records_per_client: m, the contribution bound a window; None for unit ``record``.
        total_epsilon: The limit of the population's ledger.
        total_delta: Its limit on δ.
        population: Whose data it is; empty for the aggregator's single one.
        mechanism: The noise, with exact parameters.
    """

    epsilon: Fraction
    delta: Fraction
    unit: str
    records_per_client: int | None
    total_epsilon: Fraction
    total_delta: Fraction
    population: str
    mechanism: Mechanism

    @classmethod
    def from_table(cls, table: Table, sensitivity: Sensitivity) -> "PrivacySpec":
        """Reads ``[privacy]``; calibrates the mechanism where it is not written, verifies it where it is."""
        table.choice("mode", built=["central"], known=["local", "secure"], default="central")
        epsilon = table.real("epsilon", expected="a number above 0", above=0)
        table.choice("participation", built=["protected"], known=["public"], default="protected")
        delta = table.real("delta", expected="a number from 0 to below 1", default="0")
        if not 0 <= delta < 1:
            raise PlanError(table.name("delta"), real_text(delta), "a number from 0 to below 1")
        if delta:
            raise NotBuiltError(table.name("delta"), str(delta), "0 (pure ε)")
        unit = table.choice("unit", built=["record", "client"], default="record")
        records = _records_per_client(table, unit)
        total_epsilon = table.real("total_epsilon", expected="a number above 0", above=0)
        if total_epsilon < epsilon:
            expected = f"at least epsilon ({real_text(epsilon)}): the first release would pass the limit"
            raise PlanError(table.name("total_epsilon"), real_text(total_epsilon), expected)
        total_delta = table.real("total_delta", expected="a number from 0 to below 1", default="0")
        if not 0 <= total_delta < 1:
            raise PlanError(table.name("total_delta"), real_text(total_delta), "a number from 0 to below 1")
        population = table.text("population", "")
        mechanism = _mechanism(table, sensitivity, epsilon=epsilon, unit=unit, records=records)
        table.finish()
        return cls(epsilon, delta, unit, records, total_epsilon, total_delta, population, mechanism)

    def to_fields(self) -> dict[str, object]:
        """Every key of ``[privacy]``, canonical."""
        fields: dict[str, object] = {
            "mode": "central",
            "epsilon": real_text(self.epsilon),
            "delta": real_text(self.delta),
            "unit": self.unit,
            "total_epsilon": real_text(self.total_epsilon),
            "total_delta": real_text(self.total_delta),
            "population": self.population,
            "participation": "protected",
            "mechanism": self.mechanism.to_fields(),
        }
        if self.records_per_client is not None:
            fields["records_per_client"] = self.records_per_client
        return fields


def _records_per_client(table: Table, unit: str) -> int | None:
    if unit == "client":
        return table.integer("records_per_client", low=1, high=2**31)
    if table.has("records_per_client"):
        expected = "nothing: it belongs to unit 'client' alone"
        raise PlanError(table.name("records_per_client"), table.value("records_per_client"), expected)
    return None


def _mechanism(
    table: Table, sensitivity: Sensitivity, *, epsilon: Fraction, unit: str, records: int | None
) -> Mechanism:
    written = table.optional_table("mechanism")
    if written is None:
        return calibrate(sensitivity, epsilon=epsilon, delta=Fraction(0), unit=unit, records_per_client=records)
    mechanism = Mechanism.from_table(written)
    try:
        verify(mechanism, sensitivity, epsilon=epsilon, delta=Fraction(0), unit=unit, records_per_client=records)
    except GuaranteeError as error:
        came = real_text(mechanism.scale)
        raise PlanError(written.name("scale"), came, f"a mechanism that supports the claim ({error})") from error
    return mechanism
