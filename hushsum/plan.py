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
from functools import cached_property
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from hushsum import canonical
from hushsum.canonical import real_text, shown
from hushsum.errors import CanonicalError, NotBuiltError, PlanError
from hushsum.families import FAMILIES, NOT_BUILT, Family, VectorRecords
from hushsum.packing import size_max
from hushsum.privacy.account import Limits
from hushsum.privacy.guarantee import Guarantee
from hushsum.privacy.spec import PrivacySpec
from hushsum.schedule import Schedule
from hushsum.schema import Table

PLAN_FORMAT: Final = 1
_PLAN_BYTES_MAX: Final = 4 * 2**20
_DELTA_RECORDS_MAX: Final = 4096
_DELTA_HEADER_BYTES: Final = 96
_EMPTY: Final[Mapping[str, object]] = MappingProxyType({})


@dataclass(frozen=True)
class RecordNames:
    """What columns are called and measured in; empty, or one a column."""

    names: tuple[str, ...]
    units: tuple[str, ...]


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
        if not top.text("name"):
            raise PlanError("name", name, "1 to 128 characters")
        schema, columns = _record(top.table("record"))
        family = _family(top.table("sketch"), schema)
        promise = PrivacySpec.from_table(top.table("privacy"), family.sensitivity)
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
        try:
            text = source if isinstance(source, str) and "\n" in source else Path(source).read_text(encoding="utf-8")
            fields = tomllib.loads(text, parse_float=Decimal)
        except (ValueError, ArithmeticError, RecursionError) as error:
            raise PlanError("plan", str(source), f"TOML ({shown(error)})") from error
        return cls.from_fields(fields)

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
    if classes := table.texts("classes"):
        raise NotBuiltError(table.name("classes"), list(classes), "[] (no classes)")
    names = table.texts("names", lengths=(0, dim))
    columns = RecordNames(names, table.texts("units", lengths=(0, dim), distinct=False))
    table.finish()
    return VectorRecords(dim, lower, upper), columns


def _family(table: Table, record: VectorRecords) -> Family:
    name = table.choice("family", built=list(FAMILIES), known=NOT_BUILT)
    return FAMILIES[name].from_table(table, record)
