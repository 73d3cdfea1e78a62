"""Rows of the paired family: the signs of p projections, and for the regression loss a code with its complement.

The code of −q is the complement of that of q. So that a row need not be read twice, each code is counted together with
its complement: W = 2^(p−1) counters a row in place of 2^p, one reading in place of two, the same estimate, and half of
the noise's variance at the same sensitivity (RACE, section 4, adds two readings).

**Frozen**: directions are float32 of standard normal draws in the order (row, part, coordinate); a code is 1 where the
sum of products, in float64 in the order of the coordinates, is at least 0; the first part is the highest bit; the
bucket of a code c of the regression loss is min(c, 2^p − 1 − c), of the margin loss c itself.
"""

from dataclasses import dataclass
from itertools import chain
from typing import Final

import numpy as np

from hushsum.families import threads
from hushsum.families.base import Counters, Float32
from hushsum.families.lsh.arrays import Float64, Int64
from hushsum.families.lsh.codes.projection import Signs
from hushsum.families.lsh.engines import engine
from hushsum.families.lsh.placement import Direct, HashedRows
from hushsum.families.paired.parameters import Lift
from hushsum.public_random import PublicSeed, PublicStream

_BLOCK_RECORDS: Final = 4096
_ROWS_ABREAST: Final = 4  # the compiled loops take so many rows at once
_FEW: Final = 4  # sorting a record's codes costs about as much as so many counters
_PURPOSE: Final = "paired/directions"


@dataclass(frozen=True, eq=False)
class PairedRows:
    """R rows with what they hash.

    Attributes:
        lift: Records and queries to vectors.
        rows: Signs of p projections a row, in 2^p buckets.
        folded: Whether a bucket is shared by a code and its complement.
    """

    lift: Lift
    rows: HashedRows
    folded: bool

    @classmethod
    def draw(cls, lift: Lift, seed: PublicSeed, *, rows: int, power: int, folded: bool) -> "PairedRows":
        """From the seed alone; fewer rows are a prefix of more."""
        directions = PublicStream(seed, _PURPOSE).normal(rows * power * lift.dim).astype(np.float32)
        code = Signs.of(directions.reshape(rows * power, lift.dim), np.ones(lift.dim, np.float32))
        zeroes = np.zeros((rows, power), np.int64)
        placement = Direct(zeroes, zeroes + 2, zeroes + (1 << np.arange(power - 1, -1, -1)))
        return cls(lift, HashedRows(code, placement, power, 1 << power), folded)

    @property
    def directions(self) -> Float32:
        """(R, p, d') float32, of the coordinates of z alone."""
        shape = (len(self.rows), self.rows.power, self.lift.dim)
        return self.rows.projection.directions.reshape(shape)[:, :, : self.lift.features]

    def add(self, counters: Counters, records: Float32) -> None:
        """Adds accepted records (n, d) to counters (R, W) in place, some of the rows on each core."""
        work, n = threads.shares(len(self.rows), len(records), grain=_ROWS_ABREAST), len(records)
        threads.spread(lambda which: self._add(counters[which], records, which), work, n)

    def _add(self, counters: Counters, records: Float32, which: slice) -> None:
        wide = np.zeros((len(counters), self.rows.buckets), np.int64) if self.folded else counters
        for start in range(0, len(records), _BLOCK_RECORDS):
            engine().add(self.rows, wide, self.lift.records(records[start : start + _BLOCK_RECORDS]), which)
        if self.folded:
            half = counters.shape[1]
            counters += wide[:, :half]
            counters += wide[:, : half - 1 : -1]

    def encode(self, records: Float32) -> tuple[Int64, Int64]:
        """Flat indices, strictly increasing, and counts of what :meth:`add` does to zeroes."""
        width = self.rows.buckets >> self.folded
        if _FEW * len(records) > width:
            counters = np.zeros((len(self.rows), width), np.int64)
            self.add(counters, records)
            indices = np.flatnonzero(counters)
            return indices, counters.reshape(-1)[indices]
        indices, values = engine().encode(self.rows, self.lift.records(records))
        return self._folded(indices, values) if self.folded else (indices, values)

    def _folded(self, indices: Int64, values: Int64) -> tuple[Int64, Int64]:
        """Counts of codes (k,), as counts of codes together with their complements."""
        width = self.rows.buckets
        rows, codes = np.divmod(indices, width)
        places = rows * (width // 2) + np.minimum(codes, width - 1 - codes)
        order = np.argsort(places, kind="stable")
        places = places[order]
        starts = np.flatnonzero(np.append(True, places[1:] != places[:-1])[: len(places)])
        if not len(starts):
            return places, values
        return places[starts], np.add.reduceat(values[order], starts)

    def sums(self, counters: Counters, coefficients: Float32, which: slice) -> tuple[Float64, Float64, Float64]:
        """What rows read: see :func:`hushsum.families.lsh.numpy_engine.sums`."""
        wide = np.concatenate([counters, counters[:, ::-1]], axis=1) if self.folded else counters
        less, n = np.zeros(len(self.rows)), len(coefficients)

        def work(piece: slice) -> list[tuple[Float64, Float64, Float64]]:
            parts = []
            for start in range(piece.start, max(piece.start + 1, piece.stop), _BLOCK_RECORDS):
                queries = self.lift.queries(coefficients[start : min(start + _BLOCK_RECORDS, piece.stop)])
                parts.append(engine().sums(self.rows, wide, less, queries, which))
            return parts

        done = chain.from_iterable(threads.spread(work, threads.shares(n, n), n))
        first, total, squares = (np.concatenate(part) for part in zip(*done, strict=True))
        return first, total, squares

    def signs(self) -> Int64:
        """(W, p): the signs, 1 or −1, of each part in the code of each bucket."""
        buckets = self.rows.buckets // 2 if self.folded else self.rows.buckets
        shifts = np.arange(self.rows.power - 1, -1, -1)
        return np.asarray(2 * ((np.arange(buckets)[:, None] >> shifts) & 1) - 1, np.int64)
