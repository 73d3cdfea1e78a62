"""From a record to its buckets, written from the sections "From a record to buckets" and "Transforms" of
docs/reference/wire.md, for the `euclidean` kernel with independent draws.
"""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

from .canonical_json import Json
from .math_portable import clip, float32
from .plan import LARGEST_BOUND, MOST_COORDINATES, MOST_NUMBERS, Array, Plan, PlanError, reals, rounded
from .public_random import Stream


class Sketch:
    """The draws of a plan, and the bucket of a record in each row."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.lower = [rounded(bound) for bound in plan.lower]
        self.upper = [rounded(bound) for bound in plan.upper]
        midpoint = [float32(float((low + high) / 2)) for low, high in zip(plan.lower, plan.upper, strict=True)]
        self.steps: list[Step] = []
        low, high = self.lower, self.upper
        for fields in plan.transforms:
            step = Step(fields, plan.arrays, low, high)
            self.steps.append(step)
            low, high = step.lower, step.upper
            for lo, hi in zip(low, high, strict=True):
                if not -LARGEST_BOUND <= lo < hi <= LARGEST_BOUND:
                    raise PlanError("bounds after a transform that are out of range or equal")
        if sum(len(step.matrix) * len(step.matrix[0]) for step in self.steps if step.matrix) > MOST_NUMBERS:
            raise PlanError("matrices of more than 2^22 numbers over all steps")
        if self.steps:
            midpoint = [float32((a + b) / 2) for a, b in zip(low, high, strict=True)]
        self.last_lower, self.last_upper, self.midpoint = low, high, midpoint

        dim, codes = len(midpoint), plan.rows * plan.power
        bandwidth = float(plan.bandwidth)
        normals = Stream(plan.seed, "hashed/euclidean/directions").normals(codes * dim)
        numbers = [float32(normal / bandwidth) for normal in normals]
        self.directions = [numbers[start : start + dim] for start in range(0, codes * dim, dim)]
        offsets = Stream(plan.seed, "hashed/euclidean/offsets")
        self.offsets = [(offsets.word() >> 40) * 2.0**-24 for _ in range(codes)]

        self.least, self.largest = self.extremes()
        self.spans = [largest - least + 1 for least, largest in zip(self.least, self.largest, strict=True)]
        power = plan.power
        parts = [self.spans[row * power : (row + 1) * power] for row in range(plan.rows)]
        self.direct = all(math.prod(spans) <= plan.buckets for spans in parts)
        words = Stream(plan.seed, "hashed/rehash")
        self.multipliers = [] if self.direct else [[words.word() for _ in range(power + 1)] for _ in range(plan.rows)]

    def extremes(self) -> tuple[list[int], list[int]]:
        """Return the least and the largest value of each code."""
        low = [float32(bound - middle) for bound, middle in zip(self.last_lower, self.midpoint, strict=True)]
        high = [float32(bound - middle) for bound, middle in zip(self.last_upper, self.midpoint, strict=True)]
        least, largest = [], []
        for direction, offset in zip(self.directions, self.offsets, strict=True):
            ends = [(a * lo, a * hi) for a, lo, hi in zip(direction, low, high, strict=True)]
            least.append(math.floor(in_order([min(pair) for pair in ends]) + offset))
            largest.append(math.floor(in_order([max(pair) for pair in ends]) + offset))
        return least, largest

    def coordinates(self, record: Sequence[float]) -> list[float] | None:
        """Return the centred float32 coordinates of a record, or None if it is dropped."""
        if len(record) != self.plan.dim or not all(map(math.isfinite, record)):
            return None
        x = [clip(float32(x), *ends) for x, *ends in zip(record, self.lower, self.upper, strict=True)]
        for step in self.steps:
            x = step.apply(x)
        if self.steps:
            x = [clip(x, *ends) for x, *ends in zip(x, self.last_lower, self.last_upper, strict=True)]
        return [float32(x - middle) for x, middle in zip(x, self.midpoint, strict=True)]

    def buckets(self, record: Sequence[float]) -> list[int] | None:
        """Return the bucket of a record in each row, or None if the record is dropped."""
        x = self.coordinates(record)
        if x is None:
            return None
        codes = [
            math.floor(in_order([a * b for a, b in zip(direction, x, strict=True)]) + offset)
            for direction, offset in zip(self.directions, self.offsets, strict=True)
        ]
        return [self.bucket(row, codes) for row in range(self.plan.rows)]

    def bucket(self, row: int, codes: Sequence[int]) -> int:
        """Return the bucket of a row, given the codes of all rows."""
        parts = range(row * self.plan.power, (row + 1) * self.plan.power)
        width = self.plan.buckets
        if self.direct:
            number = 0
            for part in parts:
                number = number * self.spans[part] + (codes[part] - self.least[part])
            return number
        first, *others = self.multipliers[row]
        h = (first + sum(m * (codes[part] % 2**32) for m, part in zip(others, parts, strict=True))) % 2**64
        if width & (width - 1) == 0:
            return h >> 64 - (width.bit_length() - 1)
        return (h >> 32) * width >> 32


class Step:
    """One step of `sketch.transforms`, and the bounds of its result."""

    def __init__(
        self, fields: Mapping[str, Json], arrays: Mapping[str, Array], lower: list[float], upper: list[float]
    ) -> None:
        self.kind = fields["kind"]
        self.factors: list[float] = []
        self.matrix: list[tuple[float, ...]] = []
        if self.kind == "scale":
            factors = reals(fields["factor"], len(lower))
            if any(abs(factor) < Fraction(1, LARGEST_BOUND) for factor in factors):
                raise PlanError("a factor below 2^-64")
            self.factors = [rounded(factor) for factor in factors]
            pairs = [(self.scaled(lower)[j], self.scaled(upper)[j]) for j in range(len(lower))]
            self.lower, self.upper = [min(pair) for pair in pairs], [max(pair) for pair in pairs]
        elif self.kind == "clip":
            least, most = reals(fields["lower"], len(lower)), reals(fields["upper"], len(lower))
            if any(lo >= hi for lo, hi in zip(least, most, strict=True)):
                raise PlanError("a lower bound that is not below the upper one")
            self.least, self.most = ([rounded(bound) for bound in bounds] for bounds in (least, most))
            self.lower, self.upper = self.clipped(lower), self.clipped(upper)
        elif self.kind == "unit-norm":
            self.lower, self.upper = [-1.0] * len(lower), [1.0] * len(lower)
        elif self.kind == "linear":
            array = arrays[str(fields["matrix"])]
            if array.shape[1:] != (len(lower),) or array.shape[0] > MOST_COORDINATES:
                raise PlanError("a matrix for another number of coordinates, or with too many rows")
            rows, columns = array.shape
            self.matrix = [array.numbers[i * columns : (i + 1) * columns] for i in range(rows)]
            ends = [[(a * lo, a * hi) for a, lo, hi in zip(row, lower, upper, strict=True)] for row in self.matrix]
            self.lower = [float32(math.fsum(map(min, row))) for row in ends]
            self.upper = [float32(math.fsum(map(max, row))) for row in ends]
        else:
            raise PlanError(f"an unknown transform: {self.kind!r}")

    def scaled(self, x: list[float]) -> list[float]:
        """Return coordinates times the factors."""
        return [float32(x_j * factor) for x_j, factor in zip(x, self.factors, strict=True)]

    def clipped(self, x: list[float]) -> list[float]:
        """Return coordinates within the bounds of a step `clip`."""
        return [clip(x_j, lo, hi) for x_j, lo, hi in zip(x, self.least, self.most, strict=True)]

    def apply(self, x: list[float]) -> list[float]:
        """Return the result of this step for float32 coordinates."""
        if self.kind == "scale":
            return self.scaled(x)
        if self.kind == "clip":
            return self.clipped(x)
        if self.kind == "unit-norm":
            norm = math.sqrt(in_order([x_j * x_j for x_j in x]))
            return [float32(x_j / norm) for x_j in x] if norm else x
        return [float32(in_order([a * x_j for a, x_j in zip(row, x, strict=True)])) for row in self.matrix]


def in_order(terms: Sequence[float]) -> float:
    """Return a float64 sum from the first term to the last (`sum` of Python 3.12 and later compensates errors)."""
    total = terms[0]
    for term in terms[1:]:
        total += term
    return total
