"""Kernel sums as noisy coefficients: Bernstein polynomials, a cosine series, and a histogram that stands for records.

- :class:`Bernstein`: Aldà & Rubinstein, The Bernstein mechanism, AAAI 2017, with one iteration of the operator.
- :class:`Cosines`: the orthogonal series estimator that RACE calls spectral approximation (Wasserman & Zhou 2010).
- :class:`Histogram`: synthetic records at the centres of cells with Laplace noise.

Each answers (m,) queries in the unit cube from exact sums at points of its own, and noises for ε at once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from math import comb

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
#: Kernel sums at (m, d) points of the unit cube: (m,).
Sums = Callable[[Floats], Floats]
#: Kernel values of (n, d) records and (m, d) points of the unit cube: (n, m).
Kernel = Callable[[Floats, Floats], Floats]

_POINTS = 1000  # of the cosine series' integrals


@dataclass(frozen=True, eq=False)
class Bernstein:
    """Sums on a lattice of (M + 1)^d points, and the value of their polynomials at the queries.

    Attributes:
        lattice: ((M + 1)^d,) exact sums.
        bases: For each of d columns the (m, M + 1) values of the Bernstein basis.
    """

    lattice: Floats
    bases: list[Floats]

    @classmethod
    def of(cls, lattice: Floats, degree: int, queries: Floats) -> "Bernstein":
        """Of the sums at :func:`lattice_points` of this degree M."""
        return cls(lattice, [_bernstein(degree, column) for column in queries.T])

    def answer(self, epsilon: float, rng: np.random.Generator) -> Floats:
        """(m,) sums: one record changes each of the lattice's by at most 1."""
        found = self.lattice + rng.laplace(scale=len(self.lattice) / epsilon, size=len(self.lattice))
        points = self.bases[0].shape[1]
        table = self.bases[0] @ found.reshape(points, -1)
        for basis in self.bases[1:]:
            table = np.einsum("qk,qkr->qr", basis, table.reshape(len(basis), points, -1))
        return np.asarray(table[:, 0], np.float64)


@dataclass(frozen=True, eq=False)
class Cosines:
    """Coefficients of the kernel sum on [0, 1] in the basis 1, √2·cos(πjq).

    Attributes:
        coefficients: (M,) exact.
        basis: (m, M) its functions at the queries.
        sensitivity: The largest L1 norm of one record's coefficients, over a grid of records: public.
    """

    coefficients: Floats
    basis: Floats
    sensitivity: float

    @classmethod
    def of(cls, sums: Sums, kernel: Kernel, terms: int, queries: Floats) -> "Cosines":
        """The first coefficients."""
        points = (np.arange(_POINTS)[:, None] + 0.5) / _POINTS
        basis = _cosines(terms, points) / _POINTS
        single = kernel(points, points) @ basis
        return cls(sums(points) @ basis, _cosines(terms, queries), float(np.abs(single).sum(axis=1).max()))

    def answer(self, epsilon: float, rng: np.random.Generator) -> Floats:
        """(m,) sums."""
        noise = rng.laplace(scale=self.sensitivity / epsilon, size=len(self.coefficients))
        return np.asarray(self.basis @ (self.coefficients + noise), np.float64)


@dataclass(frozen=True, eq=False)
class Histogram:
    """Counts of equal cells of the unit cube, whose centres stand for the records.

    Attributes:
        counts: (cells,) exact.
        kernel: (cells, m) kernel of each centre and query.
    """

    counts: Floats
    kernel: Floats

    @classmethod
    def of(cls, records: Floats, kernel: Kernel, cells: int, queries: Floats) -> "Histogram":
        """The histogram of this many cells of one column."""
        places = np.clip(records[:, 0] * cells, 0, cells - 1).astype(np.int64)
        centres = (np.arange(cells)[:, None] + 0.5) / cells
        return cls(np.bincount(places, minlength=cells).astype(np.float64), kernel(centres, queries))

    def answer(self, epsilon: float, rng: np.random.Generator) -> Floats:
        """(m,) sums: one record changes one count by 1."""
        return np.asarray((self.counts + rng.laplace(scale=1 / epsilon, size=len(self.counts))) @ self.kernel)


def lattice_points(degree: int, columns: int) -> Floats:
    """((M + 1)^d, d): the lattice of Bernstein polynomials of degree M in d columns."""
    return np.array(list(product(np.arange(degree + 1) / degree, repeat=columns)))


def _bernstein(degree: int, places: Floats) -> Floats:
    columns = [comb(degree, k) * places**k * (1 - places) ** (degree - k) for k in range(degree + 1)]
    return np.stack(columns, axis=1)


def _cosines(terms: int, points: Floats) -> Floats:
    first = [np.ones(len(points))]
    rest = [np.sqrt(2) * np.cos(np.pi * j * points[:, 0]) for j in range(1, terms)]
    return np.stack(first + rest, axis=1)
