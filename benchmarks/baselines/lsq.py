"""LSQ as published: Wagner, Naamad & Mishra, Fast Private Kernel Density Estimation via LSQ, ICML 2023.

Algorithm 1 with J = 1, for the gaussian kernel exp(−‖x − y‖²/σ²): random Fourier features (section 3.1) and the fast
Gauss transform in two dimensions (section 3.2). Answers are sums; what divides them is the caller's affair.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import factorial, isqrt, sqrt

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_BLOCK_FEATURES = 64


@dataclass(frozen=True, eq=False)
class FourierFeatures:
    """Exact sums of √2·cos(ω·x + b) of the first records, one a feature; the first m of them are a sketch of m.

    Attributes:
        sums: (m,) over all records.
        queries: (m, q) the same function of each query.
    """

    sums: Floats
    queries: Floats

    @classmethod
    def of(
        cls, records: Floats, queries: Floats, *, bandwidth: float, features: int, rng: np.random.Generator
    ) -> "FourierFeatures":
        """The features of (n, d) records and (q, d) queries, whose middle is 0."""
        middle = records.mean(axis=0)
        stored, asked = (((each - middle) / bandwidth).astype(np.float32).T for each in (records, queries))
        frequencies = (sqrt(2) * rng.normal(size=(features, len(stored)))).astype(np.float32)
        phases = (2 * np.pi * rng.random((features, 1))).astype(np.float32)
        sums, answers = np.empty(features), np.empty((features, asked.shape[1]))
        for start in range(0, features, _BLOCK_FEATURES):
            block = slice(start, start + _BLOCK_FEATURES)
            sums[block] = sqrt(2) * np.cos(frequencies[block] @ stored + phases[block]).sum(axis=1, dtype=np.float64)
            answers[block] = sqrt(2) * np.cos(frequencies[block] @ asked + phases[block])
        return cls(sums, answers)

    def answers(self, sizes: Sequence[int], epsilon: float, rng: np.random.Generator) -> Iterator[Floats]:
        """(q,) sums for each number of features m: one record changes each of m sums by at most √2. ε = ∞: exact."""
        for size in sizes:
            noise = rng.laplace(scale=sqrt(2) * size / epsilon, size=size) if np.isfinite(epsilon) else 0.0
            yield np.asarray((self.sums[:size] + noise) @ self.queries[:size] / size, np.float64)


@dataclass(frozen=True, eq=False)
class FastGauss:
    """Moments of the records of each cell of side σ, and where each query reads them.

    Attributes:
        moments: (cells + 1, ρ, ρ) exact; of the last cell, outside the domain, there are none.
        cells: For each offset (q,) cells.
        values: For each offset and column (q, ρ) Hermite functions, 0 beyond the cutoff √ρ.
    """

    moments: Floats
    cells: list[npt.NDArray[np.int64]]
    values: list[tuple[Floats, Floats]]

    @classmethod
    def of(
        cls, records: Floats, queries: Floats, *, bandwidth: float, terms: int, lower: Floats, upper: Floats
    ) -> "FastGauss":
        """With ρ terms a column, of (n, 2) records within the bounds."""
        shape = np.ceil((upper - lower) / bandwidth).astype(np.int64)
        stored, asked = ((each - lower) / bandwidth for each in (records, queries))
        place = np.clip(np.floor(stored).astype(np.int64), 0, shape - 1)
        apart, flat = stored - (place + 0.5), place[:, 0] * shape[1] + place[:, 1]
        moments = np.zeros((int(shape.prod()) + 1, terms, terms))
        for i, j in product(range(terms), repeat=2):
            moments[:, i, j] = np.bincount(flat, apart[:, 0] ** i * apart[:, 1] ** j, minlength=len(moments))
        home, reach = np.floor(asked).astype(np.int64), isqrt(terms) + 1
        cells, values = [], []
        for offset in product(range(-reach, reach + 1), repeat=2):
            there = home + np.array(offset)
            away = asked - (there + 0.5)
            read = (np.square(away).sum(axis=1) <= terms) & ((there >= 0) & (there < shape)).all(axis=1)
            cells.append(np.where(read, there[:, 0] * shape[1] + there[:, 1], len(moments) - 1))
            first, second = (_hermite(terms, column) for column in away.T)
            values.append((first * read[:, None], second))
        return cls(moments, cells, values)

    @property
    def sensitivity(self) -> float:
        """Σ_r 2^−|r| over the ρ² moments of one record. The paper's bound ρ^d is larger."""
        return float(sum(0.5**i for i in range(self.moments.shape[1])) ** 2)

    def answer(self, epsilon: float, rng: np.random.Generator) -> Floats:
        """(q,) sums. ε = ∞: exact."""
        exact = not np.isfinite(epsilon)
        noise = 0.0 if exact else rng.laplace(scale=self.sensitivity / epsilon, size=self.moments.shape)
        noisy, total = self.moments + noise, np.zeros(len(self.cells[0]))
        for cells, (first, second) in zip(self.cells, self.values, strict=True):
            total += np.einsum("qi,qij,qj->q", first, noisy[cells], second)
        return total


def _hermite(terms: int, places: Floats) -> Floats:
    """(q, ρ): h_r(u)/r! with h_r(u) = H_r(u)·e^(−u²), by the recurrence of Hermite polynomials."""
    values = [np.exp(-np.square(places))]
    for r in range(1, terms):
        before = values[r - 2] if r > 1 else np.zeros_like(places)
        values.append(2 * places * values[r - 1] - 2 * (r - 1) * before)
    return np.stack([value / factorial(r) for r, value in enumerate(values)], axis=1)
