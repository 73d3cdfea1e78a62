"""RACE as published: Coleman & Shrivastava, A One-Pass Distributed and Private Sketch for Kernel Sums, CCS 2021.

Algorithms 1 and 2 with the p-stable hash of the euclidean kernel, codes modulo W, and the mean of the rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_BLOCK_ROWS = 64


@dataclass(frozen=True, eq=False)
class Race:
    """The exact counters of one sketch, and where its queries look.

    Rows are independent, so that the first r of them are a sketch of r rows.

    Attributes:
        counters: (R, W), before noise.
        places: (R, m) buckets of the queries.
    """

    counters: Floats
    places: npt.NDArray[np.int64]

    @classmethod
    def of(
        cls,
        records: Floats,
        weights: Floats,
        queries: Floats,
        *,
        bandwidth: float,
        rows: int,
        buckets: int,
        rng: np.random.Generator,
    ) -> "Race":
        """The sketch of (n, d) records, each as often as its weight says, and the buckets of (m, d) queries."""
        dim, middle = records.shape[1], records.mean(axis=0)
        directions = (rng.normal(size=(rows, dim)) / bandwidth).astype(np.float32)
        offsets = rng.random((rows, 1)).astype(np.float32)
        stored, asked = ((each - middle).astype(np.float32).T for each in (records, queries))
        counters, places = np.empty((rows, buckets)), np.empty((rows, queries.shape[0]), np.int64)
        for start in range(0, rows, _BLOCK_ROWS):
            block = slice(start, start + _BLOCK_ROWS)
            codes = np.floor(directions[block] @ stored + offsets[block]).astype(np.int32) % buckets
            counters[block] = [np.bincount(row, weights, minlength=buckets) for row in codes]
            places[block] = np.floor(directions[block] @ asked + offsets[block]).astype(np.int64) % buckets
        return cls(counters, places)

    def answers(self, sizes: Sequence[int], scale: float, rng: np.random.Generator) -> Iterator[tuple[Floats, float]]:
        """(m,) kernel sums of a sketch of each size, and its estimate of the number of records.

        Args:
            sizes: Numbers of rows r.
            scale: Laplace noise has the scale r·scale: 1/ε for ε-privacy, as one record changes r counters by 1.
            rng: Of the noise.
        """
        for rows in sizes:
            noisy = self.counters[:rows] + rng.laplace(scale=rows * scale, size=(rows, self.counters.shape[1]))
            sums = np.take_along_axis(noisy, self.places[:rows], axis=1).mean(axis=0)
            yield sums, float(noisy.sum() / rows)


@dataclass(frozen=True, eq=False)
class RaceOfSets:
    """RACE with MinHash: what each row holds where queries look. Rows are independent.

    Attributes:
        held: (R, m) exact counters.
        places: (R, m) buckets; queries that share one share its noise.
    """

    held: Floats
    places: npt.NDArray[np.int64]

    @classmethod
    def of(cls, records: Any, queries: Any, *, rows: int, buckets: int, rng: np.random.Generator) -> "RaceOfSets":
        """The sketch of n sets, and the buckets of m sets as queries: CSR matrices without an empty row."""
        held = np.empty((rows, queries.shape[0]))
        places = np.empty((rows, queries.shape[0]), np.int64)
        for row in range(rows):
            order = rng.permutation(records.shape[1])
            counted = np.bincount(_least(order, records) % buckets, minlength=buckets)
            places[row] = _least(order, queries) % buckets
            held[row] = counted[places[row]]
        return cls(held, places)

    def answers(self, sizes: Sequence[int], scale: float, rng: np.random.Generator) -> Iterator[Floats]:
        """(m,) kernel sums of a sketch of each size: see :meth:`Race.answers`."""
        for rows in sizes:
            total = np.zeros(self.held.shape[1])
            for held, places in zip(self.held[:rows], self.places[:rows], strict=True):
                _, which = np.unique(places, return_inverse=True)
                total += held + rng.laplace(scale=rows * scale, size=which.max() + 1)[which]
            yield total / rows


def _least(order: npt.NDArray[np.int64], sets: Any) -> npt.NDArray[np.int64]:
    return np.asarray(np.minimum.reduceat(order[sets.indices], sets.indptr[:-1]), np.int64)
