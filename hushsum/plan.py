"""The plan: the immutable contract of one collection, and the canonical bytes whose hash is its id.

A plan says what a record is, how it is sketched, what privacy is promised with the exact parameters of the mechanism
that keeps the promise, and when windows end. It is made once (:meth:`Plan.from_toml`, or :class:`Plan` with the same
tables) and then travels as its canonical bytes: devices and later starts load those and verify, and never recalibrate.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import exp, prod
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy.typing as npt

from hushsum import canonical
from hushsum.canonical import real, real_text, shown
from hushsum.collection import Collection
from hushsum.delta_sizes import DeltaSizes, ReportSizes, UploadSizes
from hushsum.errors import CanonicalError, PlanError, PlanWarning, RecordError, warn
from hushsum.families import FAMILIES, Family, RecordSchema, VectorRecords, alternatives
from hushsum.notebook import pairs_html
from hushsum.parameters import Parameters
from hushsum.plan_keys import KEYS
from hushsum.privacy.accountant import Limits
from hushsum.privacy.exact_numbers import numeral
from hushsum.privacy.guarantee import Guarantee
from hushsum.privacy.local_mode import ReportSpace
from hushsum.privacy.modular_words import Words
from hushsum.privacy.spec import PrivacySpec
from hushsum.schedule import Schedule
from hushsum.schema import Table, tables_of

PLAN_FORMAT: Final = 1
#: Bytes of a bundle: the canonical bytes and the arrays beside them.
BUNDLE_BYTES_MAX: Final = 24 * 2**20
_PLAN_BYTES_MAX: Final = 4 * 2**20
_BREAK: Final = b"\n"  # canonical bytes never hold one
_COUNTERS_MAX: Final = 2**31
_EPSILON_USUAL: Final = 10
_SHOWN_MAX: Final = 8  # items of a list
_SKETCH_BYTES_USUAL: Final = 256 * 2**20
_EMPTY: Final[Mapping[str, object]] = MappingProxyType({})


@dataclass(frozen=True, init=False)
class Plan:
    """The immutable contract of one collection. Its tables are those of a plan file.

    Args:
        name: What people call it, 1 to 128 characters.
        record: ``dim``, ``lower``, ``upper``, and optionally ``names``, ``units`` and ``classes``; or ``kind = "set"``.
        sketch: ``family`` and the family's own keys.
        privacy: ``epsilon``, ``total_epsilon``, and optionally the rest.
        window: ``length``, ``epoch``, ``lateness``, ``late``, ``min_clients``, ``min_reports``; all optional.
        parameters: The arrays that the sketch names by their digests (:func:`hushsum.parameters.digest`), and no other;
            of made :class:`hushsum.parameters.Parameters`, those that it names are taken.

    Raises:
        PlanError: With the key, what came and what was expected.
    """

    name: str
    collection: Collection
    family: Family
    privacy: PrivacySpec
    window: Schedule
    parameters: Parameters

    def __init__(
        self,
        *,
        name: str,
        record: Mapping[str, object],
        sketch: Mapping[str, object],
        privacy: Mapping[str, object],
        window: Mapping[str, object] = _EMPTY,
        parameters: Iterable[npt.ArrayLike] | Parameters = (),
    ) -> None:
        self._set({"name": name, "record": record, "sketch": sketch, "privacy": privacy, "window": window}, parameters)
        for text in self.warnings():
            warn(PlanWarning(text))

    def _set(self, tables: Mapping[str, object], parameters: Iterable[npt.ArrayLike] | Parameters) -> None:
        name, top = tables["name"], Table(tables)
        top.refuse_unknown(KEYS)
        if not top.text("name"):
            raise PlanError("name", name, "1 to 128 characters")
        arrays = parameters if isinstance(parameters, Parameters) else Parameters.of(parameters)
        collection = Collection.from_table(top.table("record"))
        families = [
            FAMILIES[kind.choice("family", built=list(FAMILIES))].from_table(kind, collection.schema, arrays)
            for kind in alternatives(top.table("sketch"))
        ]
        family = families[0]  # all have the same counters
        if (total := max(1, len(collection.classes)) * prod(family.shape)) > _COUNTERS_MAX:
            raise PlanError("record.classes", f"{total} counters in all classes", f"at most {_COUNTERS_MAX}")
        schedule = Schedule.from_table(top.table("window"))
        size = total + max(1, len(collection.classes))
        space = ReportSpace(family.name, family.shape[0], prod(family.shape[1:]), len(collection.classes))

        def promised(family: Family) -> PrivacySpec:
            privacy = top.table("privacy")
            return PrivacySpec.from_table(privacy, family.sensitivity, schedule, size, space, family)

        family, promise = _least_noise(families, promised) if len(families) > 1 else (family, promised(family))
        promise.check_window(schedule)
        fields = {"name": name, "collection": collection, "family": family, "privacy": promise, "window": schedule}
        used = arrays.only(family.digests)
        if arrays is not parameters and len(used) < len(arrays):
            _refuse_unused(arrays, used)
        for field, value in {**fields, "parameters": used}.items():
            object.__setattr__(self, field, value)  # frozen for everybody else
        self.sizes.check()

    @classmethod
    def from_fields(cls, fields: object, parameters: Iterable[npt.ArrayLike] | Parameters = ()) -> "Plan":
        """A plan from nested tables, as TOML or JSON gave them."""
        top = Table(fields)
        top.refuse_unknown(KEYS)
        tables = {key: top.value(key) for key in ("name", "record", "sketch", "privacy")}
        tables["window"] = top.value("window") if top.has("window") else _EMPTY
        top.finish()
        plan = cls.__new__(cls)
        plan._set(tables, parameters)  # noqa: SLF001 -- of its own class: a plan that is read is not warned of
        return plan

    @classmethod
    def from_toml(cls, source: str | PathLike[str], parameters: Iterable[npt.ArrayLike] | Parameters = ()) -> "Plan":
        """A plan from a TOML file (a path), or from TOML text (a string with a line break in it).

        Warns:
            PlanWarning: Of each of :meth:`warnings`.

        Raises:
            PlanError: With the key, what came and what was expected.
        """
        try:
            text = source if isinstance(source, str) and "\n" in source else Path(source).read_text(encoding="utf-8")
            fields = tables_of(text)
        except ValueError as error:
            raise PlanError("plan", str(source), f"TOML ({shown(error)})") from error
        plan = cls.from_fields(fields, parameters)
        for text in plan.warnings():
            warn(PlanWarning(text))
        return plan

    @classmethod
    def from_bytes(cls, data: bytes) -> "Plan":
        """A compiled plan from the bytes of its ``plan.json``, with its arrays.

        Raises:
            PlanError: Not the canonical bytes of a plan of this version, or not the arrays that it names.
        """
        data, broken, arrays = data.partition(_BREAK)
        if len(data) > _PLAN_BYTES_MAX or len(data) + len(arrays) >= BUNDLE_BYTES_MAX:
            most = f"at most {_PLAN_BYTES_MAX} bytes, and {BUNDLE_BYTES_MAX} with arrays"
            raise PlanError("plan", f"{len(data)} + {len(arrays)} bytes", most)
        try:
            fields = canonical.decode(data)
        except CanonicalError as error:
            raise PlanError("plan", data[:40], f"a compiled plan ({error})") from error
        if not isinstance(fields, dict) or fields.get("format") != PLAN_FORMAT:
            came = fields.get("format") if isinstance(fields, dict) else fields
            raise PlanError("format", came, f"{PLAN_FORMAT}, the only format that this version supports")
        parameters = Parameters.from_bytes(arrays)
        plan = cls.from_fields({key: value for key, value in fields.items() if key != "format"}, parameters)
        if plan.to_bytes() != data:
            raise PlanError("plan", data[:40], "a compiled plan in canonical form with every key")
        if len(plan.parameters) != len(parameters) or (broken and not arrays):
            raise PlanError(
                "parameters", f"{len(parameters)} arrays", f"the {len(plan.parameters)} that the plan refers to"
            )
        return plan

    def warnings(self) -> Iterator[str]:
        """Warnings about probable mistakes, one sentence each; given for plan files, not for compiled plans."""
        if self.privacy.epsilon > _EPSILON_USUAL:
            odds = exp(min(float(self.privacy.epsilon), 700.0))
            times = f"{odds:,.0f}" if odds < 1e9 else f"{odds:.0e}"
            yield (
                f"privacy.epsilon: {numeral(self.privacy.epsilon, up=True)} is above {_EPSILON_USUAL}, a weak "
                f"guarantee: a release may make a fact about one unit {times} times as likely as before"
            )
        if isinstance(self.record, VectorRecords):
            for key, bandwidth, columns in _bandwidths(self.family.to_fields(), self.record.dim):
                widest = max(self.record.upper[column] - self.record.lower[column] for column in columns)
                if bandwidth > widest:
                    yield (
                        f"{key}: {numeral(bandwidth, up=True)} exceeds the range of all its columns "
                        f"({numeral(widest, up=True)} at most): the kernel cannot distinguish records"
                    )
        if self.family.name == "partition":
            from hushsum.families.partition import Partition  # which is loaded by such plans alone

            assert isinstance(self.family, Partition), "by its name"
            if text := self.family.crowded():
                yield f"sketch.buckets: {text}"
        if (size := 8 * prod(self.counters_shape)) > _SKETCH_BYTES_USUAL:
            yield (
                f"sketch: its counters take {size / 2**20:,.0f} MiB (more than {_SKETCH_BYTES_USUAL >> 20}) per window "
                "in the aggregator and in each release; fewer rows or buckets take less"
            )

    def delta_warning(self, records: int) -> str:
        """A warning if δ is too large for the expected number of records per window; else an empty string."""
        delta = self.privacy.delta
        if delta * records <= 1:
            return ""
        return (
            f"privacy.delta: {numeral(delta, up=True)} is above 1/{records:,}: a mechanism that publishes one record "
            "in full with this probability would satisfy it"
        )

    def to_fields(self) -> dict[str, object]:
        """Every key, canonical: what :meth:`to_bytes` encodes."""
        return {
            "format": PLAN_FORMAT,
            "name": self.name,
            "record": self.collection.to_fields(),
            "sketch": {"family": self.family.name, **self.family.to_fields()},
            "privacy": self.privacy.to_fields(),
            "window": self.window.to_fields(),
        }

    def to_bytes(self) -> bytes:
        """The canonical bytes, of which the id is a hash."""
        return self._bytes

    @cached_property
    def bundle(self) -> bytes:
        """What travels and is stored: the canonical bytes; a line break and the arrays after them, if it has some."""
        return self._bytes + (_BREAK + self.parameters.to_bytes() if len(self.parameters) else b"")

    @property
    def record(self) -> RecordSchema:
        """The schema of a record."""
        return self.collection.schema

    @property
    def vectors(self) -> VectorRecords:
        """The schema of a record, for what works on vectors alone.

        Raises:
            RecordError: This plan's records are sets.
        """
        if isinstance(self.record, VectorRecords):
            return self.record
        raise RecordError(f"plan {self.name!r} collects sets of ids, expected a plan of vectors")

    @property
    def classes(self) -> tuple[str, ...]:
        """Labels, in the order of their sketches; empty: no classes."""
        return self.collection.classes

    def replace_privacy(self, **changes: object) -> "Plan":
        """The same plan with other keys of ``[privacy]``, calibrated anew: another plan, with another id.

        A total that is not changed itself, and that a larger ε or δ alone would pass, is raised to it. Gaussian noise
        stays Gaussian, unless ``noise`` or ``mechanism`` is among the changes; other noise is chosen anew.

        Args:
            changes: Keys and values; None leaves a key out, such as ``min_clients_share``.
                With another ``mode``, those that belong to the old one alone are left out.

        Raises:
            PlanError: With the key, what came and what was expected.
        """
        fields = self.to_fields()
        del fields["format"]
        return Plan.from_fields({**fields, "privacy": self.privacy.changed(changes)}, self.parameters)

    @cached_property
    def _bytes(self) -> bytes:
        return canonical.encode(self.to_fields())

    @cached_property
    def id(self) -> bytes:
        """SHA-256 of the canonical bytes: 32 bytes."""
        return plan_id_of(self._bytes)

    @property
    def hex_id(self) -> str:
        """The id as 64 hexadecimal digits."""
        return self.id.hex()

    @property
    def counters_shape(self) -> tuple[int, ...]:
        """``(classes, *shape)``, of one class's counters; without classes there is one. Of reports (1, R, outputs)."""
        return self.sizes.counters_shape

    @property
    def count_counters(self) -> int:
        """Count counters of a sketch: one for each class, or none where the sums of rows tell the number of records."""
        return self.counters_shape[0] if self.privacy.mechanism.count_scale else 0

    @cached_property
    def guarantee(self) -> Guarantee:
        """The guarantee of each release of this plan."""
        return self.privacy.guarantee(self.family.sensitivity)

    @property
    def limits(self) -> Limits:
        """The limits of the plan's population, as the plan declares them."""
        return self.privacy.limits

    @property
    def words(self) -> Words:
        """The vector that a client submits, masked or noised: how many bits each counter has, and how they are packed.

        Raises:
            GuaranteeError: The clients of the plan submit no such vector.
        """
        return self.sizes.words

    @cached_property
    def sizes(self) -> UploadSizes:
        """How large what its clients send can be."""
        return UploadSizes(self.family, max(1, len(self.classes)), self.privacy)

    @property
    def delta_sizes(self) -> DeltaSizes:
        """How large its deltas can be."""
        return self.sizes.delta

    @property
    def report_sizes(self) -> ReportSizes | None:
        """How large its batches of reports can be; None where its clients send none."""
        return self.sizes.reports

    @property
    def delta_records_max(self) -> int:
        """Records that one delta may hold, at most 4096, or reports of one batch; a client splits what is larger."""
        return self.sizes.records_max

    @property
    def delta_bytes_max(self) -> int:
        """Bytes that one packed delta, or one batch of reports, can need, at most 16 MiB."""
        return self.sizes.bytes_max

    @property
    def upload_bytes_max(self) -> int:
        """Bytes of the largest message that a device sends: a delta, a batch of reports, or a noised submission."""
        return self.sizes.upload_bytes_max

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy is read and verified anew from the bundle: as immutable as this."""
        return Plan.from_bytes, (self.bundle,)

    def __hash__(self) -> int:
        return hash(self.id)

    def summary(self) -> Iterator[tuple[str, str]]:
        """What it collects, how, and its guarantee: names and values for people."""
        yield "id", self.hex_id[:12]
        if isinstance(self.record, VectorRecords):
            names = self.collection.names or tuple(f"number {number}" for number in range(self.record.dim))
            bounds = zip(names, self.record.lower, self.record.upper, strict=True)
            yield "columns", _some([f"{name} {real_text(low)} to {real_text(high)}" for name, low, high in bounds])
        else:
            yield "records", f"sets of ids below {self.record.universe:,}"
        yield "classes", _some(self.classes)
        yield "sketch", self.sketch_text
        delta = f", delta {numeral(self.privacy.delta, up=True)}" if self.privacy.delta else ""
        bound = self.privacy.records_per_client
        unit = self.privacy.unit + (f" of at most {bound:,} records" if bound else "")
        yield "guarantee", f"epsilon {numeral(self.privacy.epsilon, up=True)}{delta} per {unit}"
        if self.window.horizon is not None:
            windows = self.window.windows_per_client
            each = "" if windows is None else f"; a client is counted in at most {windows:,} of them"
            yield "releases", f"cumulative: one epsilon for {self.window.horizon:,} outcomes{each}"
        yield "budget", f"epsilon {numeral(self.privacy.total_epsilon, up=False)} in all"
        yield "mode", self.privacy.mode

    @property
    def sketch_text(self) -> str:
        """The family and its plain keys, such as ``hashed, kernel euclidean, bandwidth 2, rows 512``."""
        plain = {key: value for key, value in self.family.to_fields().items() if isinstance(value, str | int)}
        return ", ".join([self.family.name, *(f"{key} {value}" for key, value in plain.items())])

    def _repr_html_(self) -> str:
        return pairs_html(f"Plan {self.name}", self.summary())

    def __repr__(self) -> str:
        promise = f"ε={numeral(self.privacy.epsilon, up=True)}"
        promise += f", δ={numeral(self.privacy.delta, up=True)}" if self.privacy.delta else ""
        return f"Plan({self.name!r}, id={self.hex_id[:12]}, family={self.family.name!r}, {promise})"


def _least_noise(families: Sequence[Family], promised: Callable[[Family], PrivacySpec]) -> tuple[Family, PrivacySpec]:
    """The family with the least noise in its worst answer, and its promise; of equals the first.

    Each is calibrated by itself, so that the choice of the family and that of the mechanism do not wait for each other.

    Raises:
        PlanError: None of them can have the promise: why not the first.
    """
    found, refused = [], []
    for family in families:
        try:
            found.append((family, promised(family)))
        except PlanError as error:
            refused.append(error)
    if not found:
        raise refused[0]
    return min(found, key=lambda made: made[0].answer_variance(made[1].mechanism.noise_variance))


def plan_id_of(bundle: bytes) -> bytes:
    """The id that a bundle claims, unread: SHA-256 of its canonical bytes, which name the arrays after them."""
    return hashlib.sha256(bundle.partition(_BREAK)[0]).digest()


def _some(items: Sequence[str]) -> str:
    more = f", and {len(items) - _SHOWN_MAX:,} more" if len(items) > _SHOWN_MAX else ""
    return ", ".join(items[:_SHOWN_MAX]) + more


def _refuse_unused(arrays: Parameters, used: Parameters) -> None:
    digest = next(name for name in arrays.arrays if name not in used.arrays)
    named = ", ".join(used.arrays) or "none"
    raise PlanError("parameters", digest, f"only arrays that the plan refers to by digest: {named}")


def _bandwidths(fields: Mapping[str, Any], dim: int) -> Iterator[tuple[str, Fraction, Sequence[int]]]:
    """Keys and values of the bandwidths that are in the unit of the records, and the columns that each is for."""
    if "transforms" in fields:
        return
    for number, group in enumerate(fields.get("groups", ())):
        if "bandwidth" in group:
            yield f"sketch.groups[{number}].bandwidth", real(group["bandwidth"]), group["columns"]
    if "bandwidth" in fields:
        yield "sketch.bandwidth", real(fields["bandwidth"]), range(dim)
