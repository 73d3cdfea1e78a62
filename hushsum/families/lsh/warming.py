"""Small rows of every hash, with which each compiled loop runs once."""

from collections.abc import Iterator
from itertools import product

import numpy as np

from hushsum.draws import PublicSeed
from hushsum.families.lsh import minhash, one_permutation
from hushsum.families.lsh.arrays import Float32
from hushsum.families.lsh.bins import Bins
from hushsum.families.lsh.coders import Coder
from hushsum.families.lsh.fastfood_draws import Rotated
from hushsum.families.lsh.minhash_loops import LANES
from hushsum.families.lsh.placement import Direct, Rehash
from hushsum.families.lsh.projection import Projection
from hushsum.families.lsh.projection_fast import NARROW
from hushsum.families.lsh.rows import Rows
from hushsum.families.sets import Sets

_ROWS = 4
_BUCKETS = 64


def vector_rows() -> Iterator[tuple[Rows, Float32]]:
    """Rows of vectors, and records for them."""
    for dim, power in product((1, NARROW + 1), (1, 2)):
        records = np.zeros((9, dim), np.float32)
        lines = Projection(
            np.zeros((_ROWS * power, dim), np.float32), np.full(_ROWS * power, 0.5), np.ones_like(records[0])
        )
        bins = Bins(np.ones((_ROWS * power, dim), np.float32), np.full((_ROWS * power, dim), 0.5))
        fastfood = Rotated(PublicSeed(0), "", _ROWS).floors("", power, dim, 1.0)
        coders: tuple[tuple[Coder, int], ...] = ((lines, power), (bins, power * dim), (fastfood, power))
        for coder, codes in coders:
            zeroes = np.zeros((_ROWS, codes), np.int64)
            rehash = Rehash(np.zeros((_ROWS, codes + 1), np.uint64), _BUCKETS)
            for placement in (Direct(zeroes, zeroes + 1, zeroes + 1), rehash):
                yield Rows(coder, placement, codes, _BUCKETS), records


def set_rows() -> Iterator[tuple[Rows, Sets]]:
    """Rows of sets, and records for them."""
    records = Sets(np.array([0, 1, *range(3, 19, 2)]), np.array([0] + [0, 1] * 8, np.uint32))
    for draw, rows in ((minhash.draw, _ROWS), (minhash.draw, LANES), (one_permutation.draw, _ROWS)):
        coder = draw(PublicSeed(0), rows=rows, power=1, universe=2)
        zeroes = np.zeros((rows, 1), np.int64)
        for placement in (Direct(zeroes, zeroes + 2, zeroes + 1), Rehash(np.zeros((rows, 2), np.uint64), _BUCKETS)):
            yield Rows(coder, placement, 1, _BUCKETS), records
