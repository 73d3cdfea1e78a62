"""Parameters and points to check every sketch family with: a new family needs an entry in EXAMPLES and no more."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import product
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
from scipy import sparse

from hushsum.families import FAMILIES, Family, Records, RecordSchema, SetRecords, VectorRecords
from hushsum.learned_hashes import given_hash
from hushsum.parameters import NO_PARAMETERS, Parameters, digest
from hushsum.schema import Table

Floats = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]
_CSR_MAX: Final = 10_000  # of a universe whose matrices are made


class Points(Protocol):
    """Records of one kind, and queries for them."""

    @property
    def record(self) -> RecordSchema:
        """Their schema."""
        ...

    def random(self, rng: np.random.Generator, n: int) -> Any:
        """n records, none of them bad."""
        ...

    def queries(self, rng: np.random.Generator, m: int) -> Any:
        """m queries."""
        ...

    def extreme(self) -> Any:
        """Records that might change the most counters, or by the most."""
        ...

    def inside(self) -> Any:
        """Those of the extreme ones that lie within the bounds."""
        ...

    def pairs(self, rng: np.random.Generator) -> tuple[Any, Any]:
        """Records and queries, pair by pair: random ones, equal, far apart, on the boundary, zero or alike."""
        ...

    def take(self, points: Any, which: Any) -> Any:
        """Those of a mask, or of indices."""
        ...

    def join(self, *parts: Any) -> Any:
        """One batch after the other."""
        ...

    def spoil(self, points: Any, which: list[int], rng: np.random.Generator) -> list[Any]:
        """The same batch with unusable records in some places, once for each way to be unusable."""
        ...

    def unusable_arrays(self) -> dict[str, Any]:
        """What is refused as a whole, by what is wrong with it: nothing that one record decides."""
        ...

    def unusable_queries(self) -> dict[str, Any]:
        """What is refused as queries, but as records drops one by one."""
        ...

    def odd_batches(self, points: Any) -> Iterator[tuple[str, Any, Any, Any]]:
        """Batches without a type for all records: a name, some records, one odd one alone, and all of them.

        The odd one came by mistake, or is of another form; each is to be read by itself.
        """
        ...


class Raising:
    """A record that cannot be read."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Floats:
        raise RuntimeError("not today")

    def __repr__(self) -> str:
        return "Raising()"


def objects(rows: list[Any]) -> npt.NDArray[np.object_]:
    """An array (n,) of whatever these are."""
    array = np.empty(len(rows), object)
    for place, row in enumerate(rows):
        array[place] = row
    return array


@dataclass(frozen=True)
class Vectors:
    """Vectors within the same bounds in each coordinate."""

    dim: int
    low: int
    high: int

    @property
    def record(self) -> VectorRecords:
        return VectorRecords(self.dim, (Fraction(self.low),) * self.dim, (Fraction(self.high),) * self.dim)

    def random(self, rng: np.random.Generator, n: int) -> Floats:
        return rng.uniform(self.low, self.high, (n, self.dim))

    def queries(self, rng: np.random.Generator, m: int) -> Floats:
        return self.random(rng, m)

    def extreme(self) -> Floats:
        """Corners, the centre, zero, and points beyond the bounds."""
        corners = [*product((self.low, self.high), repeat=min(self.dim, 4))]
        points = [[*corner] + [self.high] * (self.dim - len(corner)) for corner in corners]
        middle = (self.low + self.high) / 2
        beyond = [[1e300] * self.dim, [-1e300] * self.dim]
        return np.array([*points, [middle] * self.dim, [0.0] * self.dim, *beyond])

    def inside(self) -> Floats:
        return np.clip(self.extreme()[:-2], self.low, self.high)

    def pairs(self, rng: np.random.Generator) -> tuple[Floats, Floats]:
        """At distances where the kernel is steep, equal, corner to corner, along the boundary, and with zero."""
        side, x = self.high - self.low, self.random(rng, 5)
        steps = np.array([0.03, 0.1, 0.25, 0.5])[:, None] * side / np.sqrt(self.dim)
        y = np.clip(x[:4] + steps * rng.choice([-1.0, 1.0], (4, self.dim)), self.low, self.high)
        low, high = np.full((1, self.dim), self.low), np.full((1, self.dim), self.high)
        edge, zero = low + 0.2 * side * (np.arange(self.dim) == 0), np.zeros((1, self.dim))
        zero = np.clip(zero, self.low, self.high)
        return np.concatenate([x, low, low, high, zero]), np.concatenate([y, x[4:], high, edge, high, x[:1]])

    def take(self, points: Floats, which: Any) -> Floats:
        return np.asarray(points[which])

    def join(self, *parts: Floats) -> Floats:
        return np.concatenate(parts)

    def spoil(self, points: Floats, which: list[int], rng: np.random.Generator) -> list[Any]:
        batches: list[Any] = []
        for bad in (np.nan, np.inf, -np.inf):
            spoilt = points.copy()
            spoilt[which, rng.integers(0, points.shape[1], len(which))] = bad
            batches.append(spoilt)
        odd = (None, [1.0] * (points.shape[1] + 7), [2**64, None])
        return batches + [[bad if i in which else row for i, row in enumerate(points.tolist())] for bad in odd]

    def unusable_arrays(self) -> dict[str, Any]:
        dim, good = self.dim, np.ones((3, self.dim))
        return {
            "objects of another dimension": np.ones((3, dim + 7), object),
            "complex": good.astype(complex),
            "str": good.astype(str),
            "float16": good.astype(np.float16),
            "datetime": good.astype("M8[s]"),
            "a dimension more": np.ones((3, dim + 7)),
            "one point alone": np.ones(dim),
            "a number": 1.0,
            "three axes": good[None],
            "masked": np.ma.masked_array(good, mask=good > 2),
        }

    def unusable_queries(self) -> dict[str, Any]:
        dim = self.dim
        return {
            "object": np.ones((3, dim), object),
            "None": [[None] * dim],
            "ragged": [[1.0] * (dim + 7), [1.0] * (dim + 8)],
            "strings": [["1"] * dim],
        }

    def odd_batches(self, points: Floats) -> Iterator[tuple[str, Any, Any, Any]]:
        rows: dict[str, list[Any]] = {
            "floats": points.tolist(),
            "integers": np.rint(points).astype(int).tolist(),
            "arrays": list(points),
            "float32": list(points.astype(np.float32)),
            "float16": list(points.astype(np.float16)),
        }
        for name, one in self._odd(points).items():
            for kind, some in rows.items():
                yield f"{name} after {kind}", some, [one], [*some, one]
            tuples = tuple(map(tuple, rows["floats"]))
            yield f"{name} before tuples", tuples, (one,), (one, *tuples)
            yield f"{name} among objects", objects(rows["floats"]), objects([one]), objects([one, *rows["floats"]])

    def _odd(self, points: Floats) -> dict[str, Any]:
        dim, numbers = self.dim, points[0].tolist()
        return {
            "strings": ["1"] * dim,
            "bytes": [b"1"] * dim,
            "None": None,
            "a None": [None] * dim,
            "complex": [1j] * dim,
            "nested": [[1.0] * dim],
            "huge": [10**400] * dim,
            "larger than 64 bits": [2**70] * dim,
            "longer": [1.0] * (dim + 7),
            "empty": [],
            "a number": 1.0,
            "a date": np.array(["2020-01-01"] * dim, "M8[D]"),
            "masked": np.ma.masked_array(points[0], mask=[True] * dim),
            "raises": Raising(),
            "NaN": np.full(dim, np.nan, np.float32),
            "a float": numbers,
            "long double": points[0].astype(np.longdouble),
            "float16": points[0].astype(np.float16),
            "huge numbers": [2**63] * dim,
            "booleans": [True] * dim,
            "objects": points[0].astype(object),
        }


@dataclass(frozen=True)
class Regression(Vectors):
    """Vectors [x, y] whose queries are θ: one coordinate less."""

    reach: float = 0.4

    def queries(self, rng: np.random.Generator, m: int) -> Floats:
        return rng.uniform(-self.reach, self.reach, (m, self.dim - 1))

    def pairs(self, rng: np.random.Generator) -> tuple[Floats, Floats]:
        low, high = np.full((1, self.dim), self.low), np.full((1, self.dim), self.high)
        x = np.concatenate([self.random(rng, 5), low, high, np.zeros((1, self.dim))])
        y = np.concatenate([self.queries(rng, 5), *self.queries(rng, 2)[:, None], np.zeros((1, self.dim - 1))])
        return x, y


@dataclass(frozen=True)
class IdSets:
    """Sets of ids, as a list of arrays."""

    universe: int

    @property
    def record(self) -> SetRecords:
        return SetRecords(self.universe)

    def random(self, rng: np.random.Generator, n: int) -> list[Int64]:
        """From a few topics, so that sets overlap."""
        sizes = rng.integers(1, 40, n)
        starts = rng.integers(0, 3, n) * (self.universe // 4)
        return [
            np.sort(rng.choice(60, size, replace=False)) + start
            for size, start in zip(sizes.tolist(), starts.tolist(), strict=True)
        ]

    def queries(self, rng: np.random.Generator, m: int) -> list[Int64]:
        return self.random(rng, m)

    def extreme(self) -> list[Int64]:
        whole = np.arange(min(self.universe, 500))
        return [np.array([0]), np.array([self.universe - 1]), whole, whole[::2], whole + self.universe - len(whole)]

    def inside(self) -> list[Int64]:
        return self.extreme()

    def pairs(self, rng: np.random.Generator) -> tuple[list[Int64], list[Int64]]:
        """Random ones; equal; apart; nested runs; one id of two; interleaved progressions."""
        run = np.arange(100)
        a, b = self.random(rng, 3), self.random(rng, 3)
        x = [*a, a[0], run, run, np.array([5]), run * 2]
        y = [*b, a[0], run + 1000, run[20:70], np.array([5, 6]), run[:50] * 4]
        return x, y

    def take(self, points: list[Int64], which: Any) -> list[Int64]:
        indices = np.arange(len(points))[which]
        return [points[index] for index in indices.tolist()]

    def join(self, *parts: list[Int64]) -> list[Int64]:
        return [each for part in parts for each in part]

    def spoil(self, points: list[Int64], which: list[int], rng: np.random.Generator) -> list[Any]:
        ways: list[Callable[[], Any]] = [
            lambda: np.empty(0, np.int64),
            lambda: np.array([-1, 5]),
            lambda: np.array([0, self.universe]),
            lambda: np.array([0.0, np.nan]),
            lambda: np.array([[1, 2]]),
            lambda: [2**64],
            lambda: None,
        ]
        return [[way() if i in which else each for i, each in enumerate(points)] for way in ways]

    def unusable_arrays(self) -> dict[str, Any]:
        arrays: dict[str, Any] = {"an array": np.ones((3, 4)), "text": "1 2 3", "a number": 1.0}
        if self.universe <= _CSR_MAX:
            matrix = sparse.csr_matrix(np.eye(3, self.universe))
            arrays |= {"COO": matrix.tocoo(), "another width": matrix[:, :5].tocsr()}
        return arrays

    def unusable_queries(self) -> dict[str, Any]:
        arrays: dict[str, Any] = {
            "float": [np.array([1.0, 2.0])],
            "two axes": [np.array([[1, 2]])],
            "strings and numbers": [["1", 2]],
            "None": [None],
            "masked": [np.ma.masked_array([1, 2], mask=[False, True])],
        }
        if self.universe <= _CSR_MAX:
            arrays["explicit zeros"] = self._csr([np.array([1, 2])])
            arrays["explicit zeros"].data[1] = 0
        return arrays

    def odd_batches(self, points: list[Int64]) -> Iterator[tuple[str, Any, Any, Any]]:
        for name, one in self._odd().items():
            yield f"{name} after arrays", points, [one], [*points, one]
            yield f"{name} among objects", objects(points), objects([one]), objects([one, *points])
        if self.universe > _CSR_MAX:
            return
        for name, ids, entry in (
            ("a zero", [3, 4], 0),
            ("twice", [2, 2], 1),
            ("unsorted", [3, 2], 1),
            ("empty", [], 1),
        ):
            last, before = self._csr([np.array(ids, int)]), self._csr(points)
            last.data[:1] = entry
            both = self._csr([*points, np.array(ids, int)])
            both.data[len(before.data) : len(before.data) + 1] = entry
            yield f"{name} in a matrix", before, last, both

    def _csr(self, rows: list[Int64]) -> Any:
        starts, ids = np.cumsum([0, *map(len, rows)]), np.concatenate(rows)
        return sparse.csr_matrix((np.ones(len(ids)), ids, starts), (len(rows), self.universe))

    def _odd(self) -> dict[str, Any]:
        return {
            "twice": [2, 2],
            "unsorted": [3, 2],
            "outside": [0, self.universe],
            "empty": np.empty(0, np.int64),
            "strings": ["1"],
            "None": None,
            "complex": [1j],
            "floats": [1.0, 2.0],
            "nested": [[1, 2]],
            "huge": [10**400],
            "a number": 1,
            "a set": {1, 2},
            "masked": np.ma.masked_array([1, 2], mask=[False, True]),
            "raises": Raising(),
            "8 bits": np.array([1, 2], np.uint8),
            "64 bits": np.array([1, 2], np.uint64),
        }


@dataclass(frozen=True)
class Example:
    """Parameters to check a family with.

    Attributes:
        family: Its name in FAMILIES.
        label: What is special about these.
        sketch: The keys of ``[sketch]`` without ``family`` and ``seed``.
        points: What is sketched.
        wide: Keys that make one sketch hold many independent draws of (f, g), for the mathematics.
        seeded: Whether the family draws anything.
        seeds: How many sketches the mathematics takes.
        steep: A real key that moves the kernel; "" where none does.
        reached: Whether some record reaches each of the stated sensitivities.
        kernel: Whether queries are like records, so that the kernel is one of pairs of records.
        bars: Keys for the error bars' coverage.
        cautious: Whether error bars are wider than need be, and say so.
        even: Whether noise has the same part in every answer (else ``answer_variance`` is the most it has).
        parameters: The arrays that come beside the plan.
    """

    family: str
    label: str
    sketch: dict[str, object]
    points: Points
    wide: dict[str, object] = field(default_factory=dict)
    seeded: bool = True
    seeds: int = 80
    steep: str = "bandwidth"
    reached: bool = True
    kernel: bool = True
    bars: dict[str, object] = field(default_factory=lambda: {"rows": 100})
    cautious: bool = False
    even: bool = True
    parameters: Parameters = NO_PARAMETERS

    def build(self, seed: int = 1, **changes: object) -> Family:
        keys = {**self.sketch, **({"seed": seed % 2**53} if self.seeded else {}), **changes}
        return FAMILIES[self.family].from_table(Table(keys, "sketch"), self.points.record, self.parameters)

    def accepted(self, family: Family, records: Any) -> Records:
        return family.accept(records)[0]

    def counters_of(self, family: Family, records: Any) -> Int64:
        counters = np.zeros(family.shape, np.int64)
        family.add(counters, self.accepted(family, records))
        return counters

    def each(self, points: Any) -> list[Any]:
        """Batches of one."""
        n = len(points)
        return [self.points.take(points, np.arange(n) == i) for i in range(n)]


def hashed(label: str, dim: int, low: int, high: int, **sketch: object) -> Example:
    keys: dict[str, object] = {"rows": 20, **sketch}
    if "groups" not in keys:
        keys = {"kernel": "euclidean", **keys}
    return Example("hashed", label, keys, Vectors(dim, low, high), {"rows": 1000})


def hermite(label: str, points: Points, **sketch: object) -> Example:
    keys = {"kernel": "gaussian", **sketch}
    return Example("hermite", label, keys, points, seeded=False, even=False, bars={})


def partition(label: str, dim: int, low: int, high: int, **sketch: object) -> Example:
    """Grid cells stay where they are; only lsh cells move with the bandwidth."""
    steep = "bandwidth" if sketch.get("cells") == "lsh" else ""
    keys = {"rows": 20, **sketch}
    return Example("partition", label, keys, Vectors(dim, low, high), {"rows": 1000}, steep=steep)


def fourier(label: str, dim: int, low: int, high: int, **sketch: object) -> Example:
    """No record is at the worst phase of every pair at once, so that the stated norms are out of reach."""
    keys = {"kernel": "gaussian", "rows": 24, **sketch}
    return Example("fourier", label, keys, Vectors(dim, low, high), {"rows": 3000}, reached=False)


def paired(label: str, dim: int, low: int, high: int, **sketch: object) -> Example:
    """Queries are parameters of a model, not records."""
    keys = {"rows": 20, **sketch}
    return Example("paired", label, keys, Regression(dim, low, high), {"rows": 300}, steep="", kernel=False)


def jaccard(label: str, universe: int, **sketch: object) -> Example:
    keys = {"kernel": "jaccard", "rows": 20, "buckets": 64, **sketch}
    return Example("hashed", f"jaccard-{label}", keys, IdSets(universe), {"rows": 1000}, steep="")


GROUPS: Final = (
    {"columns": [0, 2], "kernel": "euclidean", "bandwidth": 3},
    {"columns": [1], "kernel": "laplacian", "bandwidth": 8, "power": 2},
    {"columns": [3, 4], "kernel": "angular", "power": 2},
)
MATRIX: Final = np.array([[1, 0.5, 0], [0, -1, 2]], np.float32)
MATRICES: Final = Parameters.of([MATRIX])
TRANSFORMS: Final = (
    {"kind": "scale", "factor": ["0.25", 1, 2]},
    {"kind": "linear", "matrix": digest(MATRIX)},
    {"kind": "clip", "lower": [-1, -1], "upper": [4, 30]},
)
TABLE: Final = given_hash(np.eye(2), rows=20, bandwidth=4, seed=1)
EXAMPLES: tuple[Example, ...] = (
    hashed("direct", 2, 0, 10, bandwidth=4, buckets=64),
    hashed("direct-power-2", 2, -1, 1, bandwidth=1, buckets=512, power=2),
    hashed("power-of-two", 3, 0, 255, bandwidth=60, buckets=8),
    hashed("any-width", 1, -5, 5, bandwidth=1, buckets=7, power=2),
    hashed("many-dimensions", 20, 0, 1, bandwidth=1, buckets=100),
    hashed("manhattan", 2, 0, 10, kernel="manhattan", bandwidth=3, buckets=64),
    hashed("manhattan-power-2", 3, 0, 1, kernel="manhattan", bandwidth=1, buckets=100, power=2),
    hashed("laplacian", 2, 0, 10, kernel="laplacian", bandwidth=4, buckets=64),
    hashed("laplacian-power-2", 3, -1, 1, kernel="laplacian", bandwidth=4, buckets=50, power=2),
    replace(hashed("angular", 3, -1, 1, kernel="angular", power=3, buckets=8), steep=""),
    replace(hashed("groups", 5, 0, 10, groups=GROUPS, buckets=64), steep=""),
    hashed("sobol", 3, 0, 255, bandwidth=60, buckets=256, draws="sobol", sobol_sets=4),
    replace(hashed("orthogonal", 4, 0, 10, bandwidth=4, buckets=64, draws="orthogonal"), bars={"rows": 400}),
    hashed("fastfood", 3, 0, 10, bandwidth=4, buckets=64, draws="fastfood"),
    hashed("fastfood-rehash", 12, -1, 1, bandwidth=1, buckets=7, draws="fastfood", power=2),
    replace(hashed("fastfood-angular", 5, -1, 1, kernel="angular", buckets=4, draws="fastfood", power=2), steep=""),
    replace(hashed("transforms", 3, 0, 10, bandwidth=1, buckets=64, transforms=TRANSFORMS), parameters=MATRICES),
    replace(
        hashed("given", 2, 0, 10, draws="given", parameters=digest(TABLE), buckets=64),
        parameters=Parameters.of([TABLE]),
        wide={},
        bars={},
        steep="",
        seeded=False,
    ),
    jaccard("rehashed", 5000),
    jaccard("direct", 1200, buckets=1200),
    jaccard("power-2", 2**32, power=2, buckets=100),
    replace(jaccard("one-permutation", 5000, minhash="one-permutation"), cautious=True),
    fourier("gaussian", 2, 0, 10, bandwidth=4, fraction_bits=4),
    fourier("laplacian", 3, 0, 255, kernel="laplacian", bandwidth=100),
    fourier("cauchy", 20, 0, 1, kernel="cauchy", bandwidth=1),
    fourier("exponential-p", 1, -5, 5, kernel="exponential-p", exponent="1.5", bandwidth=1),
    fourier("sobol", 2, 0, 10, bandwidth=3, draws="sobol", sobol_sets=4),
    fourier("orthogonal", 4, 0, 10, bandwidth=6, draws="orthogonal"),
    paired("inner", 3, -1, 1, radius=2),
    paired("inner-power-2", 2, -1, 1, radius=1, power=2),
    paired("orthogonal", 3, -2, 2, form="orthogonal", power=3),
    paired("margin", 3, -1, 1, loss="margin", radius=2),
    paired("margin-orthogonal", 4, -1, 1, loss="margin", form="orthogonal", power=2),
    partition("grid-direct", 2, 0, 10, bandwidth=4, buckets=64),
    partition("grid", 3, 0, 255, bandwidth=60, buckets=8),
    partition("grid-levels", 2, -1, 1, bandwidth="0.3", buckets=7, levels=3),
    partition("grid-one-dimension", 1, -5, 5, bandwidth=1, buckets=2),
    partition("lsh", 3, 0, 255, cells="lsh", bandwidth=60, buckets=8),
    partition("lsh-power-2", 20, 0, 1, cells="lsh", bandwidth=1, buckets=100, power=2),
    hermite("two-dimensions", Vectors(2, 0, 10), bandwidth=2),
    hermite("one-dimension", Vectors(1, -5, 5), bandwidth=1, order=12, cutoff=5, fraction_bits=20),
    hermite("three-dimensions", Vectors(3, -1, 1), bandwidth=1, order=6, fraction_bits=10),
    hermite("weights-gaussian", Vectors(2, 0, 10), bandwidth=2, weights="gaussian"),
    hermite("weights-laplace", Vectors(1, -5, 5), bandwidth=1, order=12, cutoff=5, fraction_bits=20, weights="laplace"),
    hermite("weights-dropped", Vectors(3, -1, 1), bandwidth=1, order=6, fraction_bits=10, weights="laplace"),
)
