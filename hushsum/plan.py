"""The plan: the immutable contract of one collection, and the canonical bytes whose hash is its id.

A plan says what a record is, how it is sketched, what privacy is promised with the exact parameters of the mechanism
that keeps the promise, and when windows end. It is made once (:meth:`Plan.from_toml`, or :class:`Plan` with the same
tables) and then travels as its canonical bytes: devices and later starts load those and verify, and never recalibrate.
"""

import hashlib
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from hushsum import canonical
from hushsum.canonical import real_text
from hushsum.errors import CanonicalError, GuaranteeError, NotBuiltError, PlanError
from hushsum.families import FAMILIES, NOT_BUILT, Family, VectorRecords
from hushsum.packing import size_max
from hushsum.privacy.account import Limits
from hushsum.privacy.calibration import calibrate
from hushsum.privacy.guarantee import Guarantee
from hushsum.privacy.mechanism import Mechanism
from hushsum.privacy.verifier import verify
from hushsum.schedule import Schedule
from hushsum.schema import Table

PLAN_FORMAT: Final = 1
_PLAN_BYTES_MAX: Final = 16 * 2**20
_NAME_MAX: Final = 128
_DELTA_RECORDS_MAX: Final = 4096
_DELTA_HEADER_BYTES: Final = 96
_EMPTY: Final[Mapping[str, object]] = MappingProxyType({})


@dataclass(frozen=True)
class RecordNames:
    """What columns are called and measured in; empty, or one a column."""

    names: tuple[str, ...]
    units: tuple[str, ...]


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
    def from_table(cls, table: Table, family: Family) -> "PrivacySpec":
        """Reads ``[privacy]``; calibrates the mechanism where it is not written, verifies it where it is."""
        table.choice("mode", built=["central"], known=["local", "secure"], default="central")
        epsilon = table.real("epsilon", expected="a number above 0", above=0)
        table.only_default("participation", "protected", "'protected'")
        delta = table.real("delta", expected="a number from 0 to below 1", default="0")
        if delta:
            raise NotBuiltError(table.name("delta"), str(delta), "0 (pure ε)")
        unit = table.choice("unit", built=["record", "client"], default="record")
        records = _records_per_client(table, unit)
        total_epsilon = table.real("total_epsilon", expected="a number above 0", above=0)
        if total_epsilon < epsilon:
            expected = f"at least epsilon ({real_text(epsilon)}): the first release would pass the limit"
            raise PlanError(table.name("total_epsilon"), real_text(total_epsilon), expected)
        total_delta = table.real("total_delta", expected="a number from 0 to below 1", above=-1, default="0")
        if not 0 <= total_delta < 1:
            raise PlanError(table.name("total_delta"), real_text(total_delta), "a number from 0 to below 1")
        population = table.text("population", "")
        mechanism = _mechanism(table, family, epsilon=epsilon, unit=unit, records=records)
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
            "mechanism": {
                "name": self.mechanism.name,
                "scale": real_text(self.mechanism.scale),
                "count_scale": self.mechanism.count_scale,
            },
        }
        if self.records_per_client is not None:
            fields["records_per_client"] = self.records_per_client
        return fields


@dataclass(frozen=True, init=False)
class Plan:
    """The immutable contract of one collection. Its tables are those of a plan file.

    Args:
        name: What people call it, 1 to 128 characters.
        record: ``kind``, ``dim``, ``lower``, ``upper``, and optionally ``names`` and ``units``.
        sketch: ``family`` and the family's own keys.
        privacy: ``epsilon``, ``total_epsilon``, and optionally the rest.
        window: ``length``, ``epoch``, ``lateness``; all optional.

    Raises:
        PlanError: With the key, what came and what was expected.
    """

    name: str
    record: VectorRecords
    columns: RecordNames
    family: Family
    privacy: PrivacySpec
    window: Schedule

    def __init__(
        self,
        *,
        name: str,
        record: Mapping[str, object],
        sketch: Mapping[str, object],
        privacy: Mapping[str, object],
        window: Mapping[str, object] = _EMPTY,
    ) -> None:
        top = Table({"name": name, "record": record, "sketch": sketch, "privacy": privacy, "window": window})
        if not 1 <= len(top.text("name")) <= _NAME_MAX:
            raise PlanError("name", name, f"1 to {_NAME_MAX} characters")
        schema, columns = _record(top.table("record"))
        family = _family(top.table("sketch"), schema)
        promise = PrivacySpec.from_table(top.table("privacy"), family)
        schedule = Schedule.from_table(top.table("window"))
        fields = {"name": name, "record": schema, "columns": columns, "family": family, "privacy": promise}
        for field, value in {**fields, "window": schedule}.items():
            object.__setattr__(self, field, value)  # frozen for everybody else

    @classmethod
    def from_fields(cls, fields: object) -> "Plan":
        """A plan from nested tables, as TOML or JSON gave them."""
        top = Table(fields)
        arguments: dict[str, Any] = {key: top.value(key) for key in ("name", "record", "sketch", "privacy")}
        arguments["window"] = top.value("window") if top.has("window") else _EMPTY
        top.finish()
        return cls(**arguments)

    @classmethod
    def from_toml(cls, source: str | PathLike[str]) -> "Plan":
        """A plan from a TOML file (a path), or from TOML text (a string with a line break in it).

        Raises:
            PlanError: With the key, what came and what was expected.
        """
        text = source if isinstance(source, str) and "\n" in source else Path(source).read_text(encoding="utf-8")
        try:
            return cls.from_fields(tomllib.loads(text, parse_float=Decimal))
        except tomllib.TOMLDecodeError as error:
            raise PlanError("plan", str(source)[:80], f"TOML ({error})") from error

    @classmethod
    def from_bytes(cls, data: bytes) -> "Plan":
        """A made plan from its canonical bytes (``plan.json``).

        Raises:
            PlanError: Not the canonical bytes of a plan of this version.
        """
        if len(data) > _PLAN_BYTES_MAX:
            raise PlanError("plan", f"{len(data)} bytes", f"at most {_PLAN_BYTES_MAX} bytes")
        try:
            fields = canonical.decode(data)
        except CanonicalError as error:
            raise PlanError("plan", data[:40], f"the canonical bytes of a plan ({error})") from error
        if not isinstance(fields, dict) or fields.get("format") != PLAN_FORMAT:
            came = fields.get("format") if isinstance(fields, dict) else fields
            raise PlanError("format", came, f"{PLAN_FORMAT}: this version reads no other")
        plan = cls.from_fields({key: value for key, value in fields.items() if key != "format"})
        if plan.to_bytes() != data:
            raise PlanError("plan", data[:40], "every key of the format, defaults too, in its canonical form")
        return plan

    def to_fields(self) -> dict[str, object]:
        """Every key, canonical: what :meth:`to_bytes` encodes."""
        return {
            "format": PLAN_FORMAT,
            "name": self.name,
            "record": {
                "kind": "vector",
                "dim": self.record.dim,
                "lower": [real_text(bound) for bound in self.record.lower],
                "upper": [real_text(bound) for bound in self.record.upper],
                "classes": [],
                "names": list(self.columns.names),
                "units": list(self.columns.units),
            },
            "sketch": {"family": self.family.name, **self.family.to_fields()},
            "privacy": self.privacy.to_fields(),
            "window": self.window.to_fields(),
        }

    def to_bytes(self) -> bytes:
        """The canonical bytes."""
        return self._bytes

    def replace_privacy(self, **changes: object) -> "Plan":
        """The same plan with other keys of ``[privacy]``, calibrated anew: another plan, with another id."""
        fields = self.to_fields()
        privacy = dict(self.privacy.to_fields())
        del fields["format"], privacy["mechanism"]
        return Plan.from_fields({**fields, "privacy": {**privacy, **changes}})

    @cached_property
    def _bytes(self) -> bytes:
        return canonical.encode(self.to_fields())

    @cached_property
    def id(self) -> bytes:
        """SHA-256 of the canonical bytes: 32 bytes."""
        return hashlib.sha256(self._bytes).digest()

    @property
    def hex_id(self) -> str:
        """The id as 64 hexadecimal digits."""
        return self.id.hex()

    @property
    def counters_shape(self) -> tuple[int, ...]:
        """(classes, *shape of one class's counters); without classes there is one."""
        return (1, *self.family.shape)

    @property
    def guarantee(self) -> Guarantee:
        """What each release of this plan promises."""
        return Guarantee(
            epsilon=self.privacy.epsilon,
            delta=self.privacy.delta,
            unit=self.privacy.unit,
            relation="add/remove",
            mode="central",
            mechanism=self.privacy.mechanism,
            records_per_client=self.privacy.records_per_client,
        )

    @property
    def limits(self) -> Limits:
        """The limits of the plan's population, as the plan declares them."""
        return Limits(
            population=self.privacy.population,
            unit=self.privacy.unit,
            relation="add/remove",
            epsilon=self.privacy.total_epsilon,
            delta=self.privacy.total_delta,
        )

    @property
    def delta_records_max(self) -> int:
        """Records that one delta may hold; a client splits what is larger."""
        return min(_DELTA_RECORDS_MAX, self.privacy.records_per_client or _DELTA_RECORDS_MAX)

    @cached_property
    def delta_bytes_max(self) -> int:
        """Bytes that one packed delta can need."""
        rows, width = self.family.shape[0], self.family.shape[1]
        return _DELTA_HEADER_BYTES + max(size_max(rows, width, n) for n in range(1, self.delta_records_max + 1))

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return f"Plan({self.name!r}, id={self.hex_id[:12]}, family={self.family.name!r}, ε={self.privacy.epsilon})"


def _record(table: Table) -> tuple[VectorRecords, RecordNames]:
    table.choice("kind", built=["vector"], known=["set"], default="vector")
    dim = table.integer("dim", low=1, high=2**16)
    lower, upper = table.reals("lower", length=dim), table.reals("upper", length=dim)
    for column, (low, high) in enumerate(zip(lower, upper, strict=True)):
        if low >= high:
            expected = f"above record.lower[{column}] = {real_text(low)}"
            raise PlanError(table.name(f"upper[{column}]"), real_text(high), expected)
    table.only_default("classes", [], "[] (no classes)")
    columns = RecordNames(table.texts("names", lengths=(0, dim)), table.texts("units", lengths=(0, dim)))
    table.finish()
    return VectorRecords(dim, lower, upper), columns


def _family(table: Table, record: VectorRecords) -> Family:
    name = table.choice("family", built=list(FAMILIES), known=NOT_BUILT)
    return FAMILIES[name].from_table(table, record)


def _records_per_client(table: Table, unit: str) -> int | None:
    if unit == "client":
        return table.integer("records_per_client", low=1, high=2**31)
    if table.has("records_per_client"):
        raise PlanError(table.name("records_per_client"), "a value", "nothing: it belongs to unit 'client' alone")
    return None


def _mechanism(table: Table, family: Family, *, epsilon: Fraction, unit: str, records: int | None) -> Mechanism:
    written = table.optional_table("mechanism")
    if written is None:
        return calibrate(family.sensitivity, epsilon=epsilon, delta=Fraction(0), unit=unit, records_per_client=records)
    mechanism = Mechanism(
        name=written.choice("name", built=["discrete-laplace"], known=["discrete-gaussian"]),
        scale=written.real("scale", expected="an exact number above 0, as a string", above=0),
        count_scale=written.integer("count_scale", low=1),
    )
    written.finish()
    try:
        verify(mechanism, family.sensitivity, epsilon=epsilon, delta=Fraction(0), unit=unit, records_per_client=records)
    except GuaranteeError as error:
        came = real_text(mechanism.scale)
        raise PlanError(written.name("scale"), came, f"a mechanism that supports the claim ({error})") from error
    return mechanism
