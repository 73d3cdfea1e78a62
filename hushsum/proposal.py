"""A plan from public bounds and a few answers: family, kernel, bandwidth, rows and buckets. No data is read here.

What is measured on real data in docs/accuracy.md decides; what depends on how records lie is decided for records that
lie as plainly as can be: normal about the middle of the bounds, which are six standard deviations wide, or sixteen
where places are compared (outliers and classes of 3 columns and more). From the same arguments comes the same plan.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import ROUND_DOWN, ROUND_UP, Context, Decimal
from fractions import Fraction
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hushsum import kernels
from hushsum.canonical import real, real_text
from hushsum.errors import CanonicalError, PlanError, RecordError
from hushsum.families.partition import Partition
from hushsum.local.predicted_error import best_width
from hushsum.plan import Plan
from hushsum.privacy.guarantee import CENTRAL, LOCAL, SECURE
from hushsum.privacy.spec import records_per_client_of
from hushsum.public_random import PublicSeed, PublicStream
from hushsum.schema import Table

DENSITY: Final = "density"
OUTLIERS: Final = "outliers"
CLASSES: Final = "classes"
HISTOGRAM: Final = "histogram"
REGRESSION: Final = "regression"
#: What a plan can be proposed for, each with a sentence.
QUESTIONS: Final[Mapping[str, str]] = {
    DENSITY: "how many records are near a point",
    OUTLIERS: "how unusual a point is: how few records are near it",
    CLASSES: "how many records of each label are near a point",
    HISTOGRAM: "how many records are in each cell of a grid; heavy cells, synthetic records",
    REGRESSION: "a linear model of the target column, fitted to the release",
}
SILO: Final = "silo"
REPORT: Final = "report"
#: Who may see what, each with a sentence.
TRUSTED: Final[Mapping[str, str]] = {
    CENTRAL: "one server (or you, in process) adds exact counters and draws the noise",
    SECURE: "the server sees only the sum of a cohort of clients, with their noise in it",
    SILO: "no server is trusted: each client adds the whole noise to its own counters",
    REPORT: "no server is trusted: each record becomes a randomised report of a few bytes",
}
WHY_BOUNDS: Final = (
    "bounds must not be taken from the data: its minimum and maximum are values of single records, and a plan is "
    "public; give bounds that are known without the data (a sensor's range, a form's limits); values beyond them are "
    "clipped"
)
#: Where nothing is said of their number.
RECORDS: Final = 100_000

_DEVIATIONS: Final = 6  # of the assumed records, from one bound to the other
_DEVIATIONS_LOCAL: Final = 16  # where a kernel that is too wide finds no difference between places
_LOCAL: Final = frozenset({OUTLIERS, CLASSES})
_SEED: Final = 22
_ASSUMED: Final = (512, 64)  # records, queries
_MEAN_KERNEL: Final = 0.03  # that of the data sets of docs/accuracy.md is 0.012 to 0.086
_MEAN_KERNEL_MAX: Final = 0.2
_ANSWER: Final = 200  # ε times a typical answer, in records, below which a wider kernel is proposed
_SOBOL_DIM: Final = 20  # up to which Sobol rows were seen to err less than independent ones
_SOBOL_ROWS: Final = 64  # in 8 sets: sets of fewer than 8 rows were no better for classes
_LAPLACIAN_SHARE: Final = 0.1  # of the wanted mean kernel, which a bandwidth as wide as the columns must leave
_HERMITE_DIM: Final = 2  # in 3 dimensions the bound on its bias exceeds the error of hashed rows
_HERMITE_DIM_LOCAL: Final = 3  # the order of the answers counts there, not their intervals
_ORDER_LOCAL: Final = 1  # in 3 dimensions: a count for each cell, which has the least noise
_ORDERS: Final = ((2000, 6), (300, 4), (0, 3))  # from so large an ε times an answer on
_ROWS: Final = (16, 1024)
_ROW_ANSWER: Final = 2  # ε times an answer for each row
_ROW_ANSWER_CLASSES: Final = 32  # classes have the same hash functions: much of their error is common to all
_BUCKETS: Final = 1024  # RACE, section 6
_BUCKETS_CLASSES: Final = 8192  # with few rows there is room for them, and fewer records collide
_NOISED_SIZES: Final = {"rows": 800, "buckets": 128}  # every client sends all counters
_REPORT_ROWS: Final = 4000  # each report names one row: more of them cost memory alone
_COUNTERS_MAX: Final = 2**25  # 256 MiB, of which a plan would be warned
_NOISED_COUNTERS: Final = 2**17
_CELL_RECORDS: Final = 15  # ε times the records in a cell, on average: noise of a tenth of them
_AXIS_CELLS_MAX: Final = 100
_FINE_CELLS: Final = (4096, 2048, 1024, 512)  # of a single column, in levels down to 16 cells: for ranges and quantiles
_COARSEST_CELLS: Final = 16
_REGRESSION_ROWS: Final = 96  # about 100 rows are the best at ε = 1 (hushsum.estimators)
_MEAN_LOSS: Final = 0.15  # of power 4: that of a model that fits is 0.125
_NOISED_DELTA: Final = Fraction(1, 10**6)
_SECURE_DELTA: Final = Fraction(1, 10**9)  # above what a secure sum itself may fail by
_OFF_CENTRE_MAX: Final = Fraction(1, 10)
_USUAL_COHORT: Final = 100

Bounds = Mapping[str, object] | Sequence[object]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Proposal:
    """A proposed plan, and why it is as it is.

    Attributes:
        tables: The tables of the plan file, as they are written there.
        reasons: By the full name of a key (``sketch.rows``), why it has its value: half a sentence.
        question: One of :data:`QUESTIONS`.
        records: How many records are expected, of one class where there are classes.
        density: The mean kernel at a typical query, if records lie as is assumed.
    """

    tables: Mapping[str, Any]
    reasons: Mapping[str, str]
    question: str
    records: int
    density: float

    @cached_property
    def plan(self) -> Plan:
        """The plan.

        Warns:
            PlanWarning: Of what was asked for, such as a large ε; never of what is chosen here.
        """
        return Plan(**self.tables)

    def to_toml(self, *comments: str) -> str:
        """The text of the plan file, with a comment above each key that was chosen.

        Args:
            comments: Lines for its top.
        """
        lines = [f"# {line}" for line in comments]
        lines += [f"name = {_toml(self.tables['name'])}"]
        nested: list[str] = []
        for table in ("record", "sketch", "privacy"):
            lines += ["", f"[{table}]"]
            for key, value in self.tables[table].items():
                if reason := self.reasons.get(f"{table}.{key}"):
                    lines.append(f"# {reason}")
                if isinstance(value, Mapping):
                    nested += ["", f"[{table}.{key}]", *(f"{name} = {_toml(item)}" for name, item in value.items())]
                    lines.pop()
                    nested.insert(-len(value), f"# {reason}")
                else:
                    lines.append(f"{key} = {_toml(value)}")
        return "\n".join([*lines, *nested]) + "\n"


def propose(  # noqa: PLR0913 -- one argument a question
    bounds: Bounds,
    *,
    epsilon: object,
    total_epsilon: object,
    question: str = DENSITY,
    trust: str = CENTRAL,
    delta: object = None,
    total_delta: object = None,
    records: int | None = None,
    records_per_client: int | None = None,
    clients: int | None = None,
    classes: Sequence[str] = (),
    target: str | None = None,
    bandwidth: object = None,
    name: str = "data",
) -> Proposal:
    """The plan that is likely to answer a question best: from public bounds and what is said here alone.

    Args:
        bounds: For each column, by its name, its public lower and upper bound: ``{"x": (0, 10)}``; without names a
            list of pairs.
        epsilon: ε of one release.
        total_epsilon: The most that all releases of this population may spend in all.
        question: One of :data:`QUESTIONS`.
        trust: One of :data:`TRUSTED`.
        delta: δ; None: 0, and 10⁻⁶ where clients draw the noise of whole sketches.
        total_delta: None: the least that pays for a release.
        records: Expected in one release, from public knowledge; None: :data:`RECORDS`.
        records_per_client: For unit ``client``, the most records of one; None: unit ``record``.
        clients: Expected in a window, for ``trust`` of ``secure``: cohorts are no larger.
        classes: All labels that records may have.
        target: For ``regression`` the column to predict; None: the last.
        bandwidth: Of the kernel, as a share of the width of the bounds, from public knowledge: 0.05 if records that
            differ by a twentieth of a column's range are alike. None: from the number of records and of columns. Not
            for ``histogram`` and ``regression``, which have no kernel.
        name: Of the plan.

    Raises:
        PlanError: A key of the plan that these answers lead to cannot be had.
        RecordError: A bound is missing, or no pair of numbers.
        ValueError: Answers that contradict each other, or none of those that there are.
    """
    _check(question, trust, records, clients, classes)
    ends = read_bounds(bounds)
    names = list(ends) if isinstance(bounds, Mapping) else []
    pairs = list(ends.values())
    if question == REGRESSION:
        names, pairs = _target_last(names, pairs, target)
    elif target is not None:
        raise ValueError(f"target: allowed only with question {REGRESSION!r}, got {question!r}")
    if bandwidth is not None and question in {HISTOGRAM, REGRESSION}:
        raise ValueError(f"bandwidth: not supported with question {question!r}, which has no kernel")
    epsilon, total = _real("privacy.epsilon", epsilon), _real("privacy.total_epsilon", total_epsilon)
    privacy, why = _privacy(epsilon, total, trust, delta, total_delta, records_per_client, clients)
    _check_privacy(privacy)
    chosen = _Choice(
        question=question,
        trust=trust,
        epsilon=epsilon,
        concentrated=_delta(delta, trust) > 0,
        unit_records=records_per_client or 1,
        records=max(1, (records or RECORDS) // max(1, len(classes))),
        classes=max(1, len(classes)),
        pairs=tuple(pairs),
        names=tuple(names),
        bandwidth=None if bandwidth is None else _share(bandwidth),
    )
    sketch, reasons, density = chosen.sketch()
    record: dict[str, object] = {"kind": "vector", "dim": len(pairs)}
    record |= {"names": names} if names else {}
    record |= {"lower": [low for low, _ in pairs], "upper": [high for _, high in pairs]}
    record |= {"classes": list(classes)} if classes else {}
    reasons |= {
        "record.lower": "public bounds of each column, never from private data; records beyond them are clipped",
        "record.classes": "all labels that are counted; records with other labels are dropped",
    }
    tables = {"name": name, "record": record, "sketch": sketch, "privacy": privacy}
    return Proposal(tables, reasons | why, question, chosen.records, density)


def bounds_of(columns: Sequence[str], bounds: Bounds) -> Bounds:
    """The bounds of these columns, in the order in which the bounds are given.

    Raises:
        RecordError: Bounds without names, or a column without bounds, or bounds of no column.
    """
    if not isinstance(bounds, Mapping):
        raise RecordError(f"bounds: got a list, expected them by the names of the columns: {', '.join(columns)}")
    given = {str(column): pair for column, pair in bounds.items()}
    for column in columns:
        if given.get(column) is None:
            raise RecordError(f"bounds: column {column!r} has none; {WHY_BOUNDS}. Or leave the column out")
    for column in given:
        if column not in columns:
            raise RecordError(f"bounds: no column {column!r}; there are {', '.join(columns)}")
    return given


def read_bounds(bounds: Bounds) -> dict[str, tuple[Fraction, Fraction]]:
    """The bounds of each column as exact numbers, by its name or, of a list, by its number.

    Raises:
        RecordError: There are none, or one is missing or no pair of a lower and an upper number.
    """
    items = bounds.items() if isinstance(bounds, Mapping) else ((f"number {i}", pair) for i, pair in enumerate(bounds))
    found = {}
    for column, pair in items:
        if pair is None:
            raise RecordError(f"bounds: column {column!r} has none; {WHY_BOUNDS}")
        ends = tuple(pair) if isinstance(pair, Sequence | np.ndarray) and not isinstance(pair, str) else ()
        if len(ends) != 2:
            raise RecordError(f"bounds: column {column!r} has {pair!r}, expected a lower and an upper bound")
        if any(end is None or (isinstance(end, float) and not math.isfinite(end)) for end in ends):
            raise RecordError(f"bounds: column {column!r} has {pair!r}, expected two finite numbers; {WHY_BOUNDS}")
        low, high = (_real(f"bounds of column {column!r}", end) for end in ends)
        if low >= high:
            raise RecordError(f"bounds: column {column!r} has {pair!r}, expected a lower bound below the upper bound")
        found[str(column)] = low, high
    if not found:
        raise RecordError(f"bounds: got none, expected one pair for each column; {WHY_BOUNDS}")
    return found


@dataclass(frozen=True)
class _Choice:
    """What decides about ``[sketch]``."""

    question: str
    trust: str
    epsilon: Fraction
    concentrated: bool
    unit_records: int
    records: int
    classes: int
    pairs: tuple[tuple[Fraction, Fraction], ...]
    names: tuple[str, ...]
    bandwidth: Fraction | None

    @property
    def dim(self) -> int:
        return len(self.pairs)

    @property
    def noised(self) -> bool:
        """Whether each client sends every counter."""
        return self.trust in {SILO, SECURE}

    @property
    def strength(self) -> float:
        """ε for one record of a unit."""
        return float(self.epsilon) / self.unit_records

    @property
    def widths(self) -> list[Fraction]:
        return [high - low for low, high in self.pairs]

    def sketch(self) -> tuple[dict[str, object], dict[str, str], float]:
        """``[sketch]``, reasons, and the mean kernel."""
        if self.trust == REPORT and self.question in {HISTOGRAM, REGRESSION}:
            raise ValueError(f"trust: reports cannot answer {self.question!r}; 'central', 'secure' and 'silo' can")
        if self.question == HISTOGRAM:
            return self._histogram()
        if self.question == REGRESSION:
            return self._regression()
        return self._near()

    def _near(self) -> tuple[dict[str, object], dict[str, str], float]:
        """Kernel sums: how much is near a point."""
        wanted = min(_MEAN_KERNEL_MAX, max(_MEAN_KERNEL, _ANSWER / (self.strength * self.records)))
        keys, reasons = self._scaled()
        unit = Fraction(1) if keys else self.widths[0]
        kernel, family = self._kernel(wanted)
        if self.bandwidth is None:
            share, density = _bandwidth(kernel, self.dim, wanted, self._deviations)
        else:
            share, density = self.bandwidth, _mean_kernel(kernel, self.dim, self._deviations)(float(self.bandwidth))
        near = self.strength * self.records * density
        sketch: dict[str, object] = {"family": family, "kernel": kernel, "bandwidth": _rounded(unit * share)}
        why = {
            "sketch.family": self._why(family, kernel),
            "sketch.bandwidth": f"how far near is: with it about {100 * density:.2g} % of the records are near a "
            f"typical point, if the bounds are {self._deviations} of their standard deviations wide",
        }
        if family == "hermite":
            orders = _ORDERS if self.dim <= _HERMITE_DIM else ((0, _ORDER_LOCAL),)
            sketch["order"] = next(order for least, order in orders if near >= least)
            why["sketch.order"] = "a higher order has less bias and more noise"
            sketch["weights"] = "auto"
            why["sketch.weights"] = "how finely each moment is stored: auto takes what has the least noise"
        else:
            sketch |= self._sizes(near)
            is_sobol = self.dim <= _SOBOL_DIM and (self.question != CLASSES or int(str(sketch["rows"])) >= _SOBOL_ROWS)
            sketch["draws"] = "sobol" if is_sobol else "independent"
            why["sketch.rows"] = (
                "more rows reduce the hashing error; with delta = 0 the noise grows with their square root"
            )
            why["sketch.buckets"] = "counters a row"
            why["sketch.draws"] = (
                "how rows are drawn: Sobol points reduce the error, up to 20 columns"
                if is_sobol or self.dim > _SOBOL_DIM
                else f"how rows are drawn: Sobol points reduce the error of {_SOBOL_ROWS} rows and more"
            )
        return sketch | keys, why | reasons, density

    @property
    def _deviations(self) -> int:
        """How many standard deviations of the assumed records the bounds are wide."""
        return _DEVIATIONS_LOCAL if self.question in _LOCAL and self.dim > _HERMITE_DIM else _DEVIATIONS

    def _kernel(self, wanted: float) -> tuple[str, str]:
        """Kernel and family. The euclidean kernel falls with 1 over the distance: distant records drown near ones."""
        is_local = self.question in _LOCAL
        most = _HERMITE_DIM_LOCAL if is_local else _HERMITE_DIM
        if self.dim <= most and self.trust != REPORT and self._cells_fit():
            return "gaussian", "hermite"
        if is_local and _mean_kernel("laplacian", self.dim, self._deviations)(1.0) >= _LAPLACIAN_SHARE * wanted:
            return "laplacian", "hashed"
        return "euclidean", "hashed"

    def _cells_fit(self) -> bool:
        """Whether the counters of the fast Gauss transform are not too many for a bandwidth that was given."""
        if self.bandwidth is None:
            return True
        order = _ORDERS[0][1] if self.dim <= _HERMITE_DIM else _ORDER_LOCAL
        counters: int = self.classes * ((math.ceil(1 / self.bandwidth) + 1) * order) ** self.dim
        return counters <= (_NOISED_COUNTERS if self.noised else _COUNTERS_MAX)

    def _why(self, family: str, kernel: str) -> str:
        if family == "hermite":
            if self.dim > _HERMITE_DIM:
                return "the fast Gauss transform: in 3 dimensions it compares places with the least noise"
            return "the fast Gauss transform: the most accurate in 1 and 2 dimensions"
        if kernel == "laplacian":
            return "locality-sensitive hashing; the laplacian kernel decays fast, so that distant records do not count"
        return "locality-sensitive hashing, for vectors of any dimension"

    def _sizes(self, near: float) -> dict[str, object]:
        """Rows and buckets: ε times an answer over 2 was the best number of rows, for classes over 32; powers of 2."""
        if self.trust == REPORT:
            ratio = Fraction(math.exp(min(self.strength, 20.0)))
            return {"rows": _REPORT_ROWS, "buckets": best_width(ratio, self.classes)}
        if self.noised:
            return dict(_NOISED_SIZES)
        least, most = _ROWS
        is_classes = self.question == CLASSES
        each = _ROW_ANSWER_CLASSES if is_classes else _ROW_ANSWER
        rows = most if self.concentrated else 1 << int(math.log2(min(most, max(least, near / each))))
        buckets = _BUCKETS_CLASSES if is_classes and not self.concentrated else _BUCKETS
        while rows * buckets * self.classes > _COUNTERS_MAX:
            rows, buckets = (rows, buckets // 2) if buckets > 128 else (rows // 2, buckets)
        return {"rows": rows, "buckets": buckets}

    def _histogram(self) -> tuple[dict[str, object], dict[str, str], float]:
        """A grid with a counter for each cell, whose noise is a tenth of its records on average, or less."""
        most = min(_NOISED_COUNTERS if self.noised else _COUNTERS_MAX, 2**24) // self.classes
        wanted = min(float(most), max(2.0**self.dim, self.strength * self.records / _CELL_RECORDS))
        cells = min(_AXIS_CELLS_MAX, math.floor(wanted ** (1 / self.dim) + 1e-9))
        if cells < 2:
            raise ValueError(
                f"question: a histogram of {self.dim} columns has at least 2^{self.dim} cells, at most {most:,} fit; "
                f"take fewer columns, or the question {DENSITY!r}"
            )
        levels = 1
        for fine in _FINE_CELLS if self.dim == 1 and self.trust == CENTRAL else ():
            depth = (fine // _COARSEST_CELLS).bit_length()
            if wanted >= fine * depth:  # each level has its share of ε, so that the noise is that many times larger
                cells, levels = fine, depth
                break
        keys, reasons = self._scaled()
        side = _exactly(Fraction(1) if keys else self.widths[0], cells)
        probe = {"family": "partition", "bandwidth": side, "rows": 1, "buckets": 2, **keys}
        counts = _axis_cells(self._probed(probe))
        if max(counts) > cells:  # rounded to float32, the bounds reach a little into one cell more
            probe["bandwidth"] = side = _exactly(Fraction(1) if keys else self.widths[0], cells, wider=True)
            counts = _axis_cells(self._probed(probe))
        buckets = max(2, math.prod(counts))
        reasons |= {
            "sketch.family": "a grid of cells: 1 if a record is in the cell of the query, else 0",
            "sketch.bandwidth": f"the side of a cell: {' x '.join(map(str, counts))} cells",
            "sketch.rows": "one row, because each cell has its own counter",
            "sketch.buckets": "one for each cell: with fewer, cells would share counters",
        }
        sketch = {"family": "partition", "cells": "grid", "bandwidth": side, "rows": 1, "buckets": buckets, **keys}
        if levels > 1:
            sketch["levels"] = levels
            reasons["sketch.levels"] = (
                "cells of 1, 2, 4, ... sides: a range is a few of them, so that ranges and quantiles err less"
            )
        return sketch, reasons, min(0.5, 1 / math.prod(counts))

    def _regression(self) -> tuple[dict[str, object], dict[str, str], float]:
        """A linear model without intercept, of columns in units of their assumed standard deviation."""
        if self.dim < 2:
            raise ValueError("question: a regression needs at least two columns, the last of which is the target")
        for number, (low, high) in enumerate(self.pairs):
            if abs(low + high) > 2 * _OFF_CENTRE_MAX * (high - low):
                column = repr(self.names[number]) if self.names else f"number {number}"
                middle = real_text((low + high) / 2)
                raise ValueError(
                    f"bounds: column {column} has {real_text(low)} and {real_text(high)}, but a model without "
                    f"intercept needs 0 in the middle: subtract {middle} from its values and its bounds"
                )
        radius = _rounded(Fraction(1.2 * math.sqrt(self.dim)))
        sketch: dict[str, object] = {"family": "paired", "loss": "regression", "radius": radius}
        sketch["rows"] = max(_REGRESSION_ROWS, -(-self.dim * (self.dim + 1) // 3))
        factors = [_down(_DEVIATIONS / width) for width in self.widths]
        sketch["transforms"] = [{"kind": "scale", "factor": factors}]
        reasons = {
            "sketch.family": "losses of linear models; the last column is the target. Fit with "
            "hushsum.estimators.LinearRegressor.from_release(release)",
            "sketch.radius": "1.2 times the length of a typical record after scaling; longer records are shortened",
            "sketch.rows": "enough for the sums of products of columns; the noise grows with their square root",
            "sketch.transforms": "each column in units of a sixth of its bounds; coefficients are in these units",
        }
        return sketch, reasons, _MEAN_LOSS

    def _scaled(self) -> tuple[dict[str, object], dict[str, str]]:
        """A transform that makes all columns equally wide, where they are not."""
        if len(set(self.widths)) == 1:
            return {}, {}
        factors = [_down(1 / width) for width in self.widths]
        reason = "makes each column about 1 wide: the bandwidth is in that unit. Queries are scaled, too"
        return {"transforms": [{"kind": "scale", "factor": factors}]}, {"sketch.transforms": reason}

    def _probed(self, sketch: Mapping[str, object]) -> Partition:
        lower, upper = ([pair[end] for pair in self.pairs] for end in (0, 1))
        record = {"dim": self.dim, "lower": lower, "upper": upper}
        privacy = {"epsilon": 1, "total_epsilon": 1}
        family = Plan.from_fields({"name": "probe", "record": record, "sketch": sketch, "privacy": privacy}).family
        assert isinstance(family, Partition), "as it was written"
        return family


def _check(question: str, trust: str, records: int | None, clients: int | None, classes: Sequence[str]) -> None:
    for key, value, known in (("question", question, QUESTIONS), ("trust", trust, TRUSTED)):
        if value not in known:
            raise ValueError(f"{key}: got {value!r}, expected one of {', '.join(map(repr, known))}")
    for key, number in (("records", records), ("clients", clients)):
        if number is not None and number < 1:
            raise ValueError(f"{key}: got {number}, expected a number from 1")
    if question == CLASSES and not classes:
        raise ValueError("classes: got none, expected all labels that records may have")
    if classes and question == REGRESSION:
        raise ValueError("classes: not supported with question 'regression'")


def _target_last(
    names: list[str], pairs: list[tuple[Fraction, Fraction]], target: str | None
) -> tuple[list[str], list[tuple[Fraction, Fraction]]]:
    if target is None:
        return names, pairs
    if target not in names:
        raise ValueError(f"target: no column {target!r}; there are {', '.join(names) or 'no names'}")
    at = names.index(target)
    return [*names[:at], *names[at + 1 :], target], [*pairs[:at], *pairs[at + 1 :], pairs[at]]


def _privacy(
    epsilon: Fraction,
    total: Fraction,
    trust: str,
    delta: object,
    total_delta: object,
    records_per_client: int | None,
    clients: int | None,
) -> tuple[dict[str, object], dict[str, str]]:
    chosen = _delta(delta, trust)
    table: dict[str, object] = {"epsilon": epsilon, "total_epsilon": total}
    if trust != CENTRAL:
        table = {"mode": SECURE if trust == SECURE else LOCAL, **table}
    least = max(chosen * Fraction(6, 5), _SECURE_DELTA) if trust == SECURE else chosen
    in_all = least if total_delta is None else _real("privacy.total_delta", total_delta)
    table |= {"delta": chosen} if chosen else {}
    table |= {"total_delta": in_all} if in_all else {}
    if records_per_client is not None:
        table |= {"unit": "client", "records_per_client": records_per_client}
    if trust == SECURE:
        table["secure"] = {"cohort": min(_USUAL_COHORT, clients or _USUAL_COHORT), "dropout": Fraction(1, 10)}
    elif trust != CENTRAL:
        table["local"] = {"form": trust}
    return table, {
        "privacy.mode": TRUSTED[trust],
        "privacy.epsilon": "of one release: a smaller ε protects more and has larger errors",
        "privacy.total_epsilon": "limit on the total of all releases of this population",
        "privacy.unit": "what is protected: all records of a client in a window, at most this number",
        "privacy.secure": "clients of a round, and the fraction of them that may drop out",
        "privacy.local": TRUSTED[trust],
    }


def _check_privacy(privacy: Mapping[str, object]) -> None:
    """Refuses numbers that no plan may have, before sizes are computed from them."""
    table = Table(privacy, "privacy")
    for key in ("epsilon", "total_epsilon"):
        table.real(key, expected="a number above 0", above=0)
    records_per_client_of(table, table.choice("unit", built=["record", "client"], default="record"))


def _delta(delta: object, trust: str) -> Fraction:
    if delta is None:
        return _NOISED_DELTA if trust in {SILO, SECURE} else Fraction(0)
    return _real("privacy.delta", delta)


def _bandwidth(kernel: str, dim: int, wanted: float, deviations: int) -> tuple[Fraction, float]:
    """The bandwidth of columns 1 wide with the wanted mean kernel, at most 1 and of two digits; and the mean kernel."""
    mean = _mean_kernel(kernel, dim, deviations)
    low, high = -12.0, 0.0
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if mean(2.0**middle) >= wanted else (middle, high)
    found = Fraction(Context(prec=2, rounding=ROUND_UP).create_decimal(Decimal(2.0**high)))
    return found, mean(float(found))


def _mean_kernel(kernel: str, dim: int, deviations: int) -> Callable[[float], float]:
    """From a bandwidth of columns 1 wide, which are so many standard deviations, to the mean kernel."""
    n, m = _ASSUMED
    normals = PublicStream(PublicSeed(_SEED), "proposal").normal((n + m) * dim).reshape(n + m, dim)
    points = np.clip(0.5 + normals / deviations, 0.0, 1.0)
    measure = kernels.manhattan_distances if kernel == "laplacian" else kernels.euclidean_distances
    distances, of = measure(points[:n], points[n:]), _KERNELS[kernel]
    return lambda bandwidth: float(of(distances, bandwidth).mean())


_KERNELS: Final[Mapping[str, Callable[[Floats, float], Floats]]] = {
    "gaussian": kernels.gaussian,
    "laplacian": kernels.laplacian,
    "euclidean": kernels.euclidean,
}


def _axis_cells(family: Partition) -> list[int]:
    grid = family.tables.grid
    assert grid is not None, "cells of a grid"
    counts: list[int] = grid.counts.tolist()
    return counts


def _exactly(width: Fraction, cells: int, *, wider: bool = False) -> Fraction:
    """The side of so many cells, rounded up to six digits; wider by a few millionths if asked."""
    side = width / cells * (1 + Fraction(5, 10**6) * wider)
    context = Context(prec=6, rounding=ROUND_UP)
    return Fraction(context.divide(Decimal(side.numerator), Decimal(side.denominator)))


def _rounded(value: Fraction) -> Fraction:
    """To two digits."""
    return Fraction(Context(prec=2).divide(Decimal(value.numerator), Decimal(value.denominator)))


def _down(value: Fraction) -> Fraction:
    """To four digits, towards 0: a column is never made wider than it should be."""
    return Fraction(Context(prec=4, rounding=ROUND_DOWN).divide(Decimal(value.numerator), Decimal(value.denominator)))


def _share(bandwidth: object) -> Fraction:
    share = _real("bandwidth", bandwidth)
    if not 0 < share <= 1:
        raise ValueError(f"bandwidth: got {bandwidth!r}, expected a share of the bounds' width, above 0 and at most 1")
    return share


def _real(key: str, value: object) -> Fraction:
    try:
        return real(value.item() if isinstance(value, np.generic) else value)
    except CanonicalError as error:
        raise PlanError(key, value, "a number, such as 0.5") from error


def _toml(value: object) -> str:
    """A value as TOML writes it; numbers exactly."""
    if isinstance(value, Fraction):
        text = real_text(value)
        return json.dumps(text) if "/" in text else text
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return str(value)
