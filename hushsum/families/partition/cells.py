"""Cells of the partition family: the 32-bit words that name the cell of a record, the same on every platform.

**Grid.** For a coordinate x of float32 and public bounds [lower, upper], in single float64 operations::

    cells an axis  J = ⌈(upper − lower)/side⌉
    code           c = min(⌊(x − lower)/side⌋, J − 1)

so that the last cell is closed and every record within the bounds has one. The cells of level ℓ, of 2^ℓ × the side,
are c >> ℓ: they nest. Every row shares them.

**LSH.** Each row cuts space by a p-stable hash of its own (Datar, Immorlica, Indyk and Mirrokni 2004, section 3):
codes are those of :mod:`hushsum.families.lsh.codes.projection`, always computed by their definition.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum.errors import PlanError
from hushsum.families.lsh.arrays import Float32, Float64, Int64
from hushsum.families.lsh.codes.projection import CODE_LIMIT, Projection
from hushsum.public_random import NORMAL_LIMIT, PublicSeed, PublicStream

#: No entry of a direction is larger than this over the bandwidth.
DIRECTION_LIMIT: Final = NORMAL_LIMIT
#: Codes stay below this: the hashes of :mod:`hushsum.families.partition.signed_hashes` take words of 32 bits.
AXIS_CELLS_MAX: Final = 2**31
_BLOCK_NUMBERS: Final = 1 << 18

Words = npt.NDArray[np.uint32]


@dataclass(frozen=True, eq=False)
class CellGrid:
    """Cubes of one side, cut at the bounds.

    Attributes:
        lower: (d,) float64.
        upper: (d,) float64.
        side: Above 0.
        counts: (d,) int64: cells an axis at level 0.
    """

    lower: Float64
    upper: Float64
    side: float
    counts: Int64

    @classmethod
    def of(cls, lower: Float32, upper: Float32, side: float) -> "CellGrid":
        """The grid of a box.

        Raises:
            PlanError: An axis has more than 2³¹ cells.
        """
        low, high = lower.astype(np.float64), upper.astype(np.float64)
        counts = np.ceil((high - low) / side)
        if counts.max() > AXIS_CELLS_MAX:
            j = int(np.argmax(counts))
            expected = f"at least {(high - low)[j] / AXIS_CELLS_MAX:.3g}: 2^31 cells along coordinate {j}"
            raise PlanError("sketch.bandwidth", side, expected)
        return cls(low, high, side, counts.astype(np.int64))

    @property
    def levels_max(self) -> int:
        """The number of levels with which the coarsest is one cell."""
        return 1 + int(self.counts.max() - 1).bit_length()

    def level_counts(self, level: int) -> Int64:
        """(d,) int64: cells an axis."""
        return ((self.counts - 1) >> level) + 1

    def codes(self, points: Float32) -> Int64:
        """(n, d) int64 of level 0; points beyond the bounds have the nearest cell."""
        places = np.floor((points.astype(np.float64) - self.lower) / self.side)
        return np.clip(places, 0, self.counts - 1).astype(np.int64)

    def all_codes(self, level: int) -> Iterator[Int64]:
        """(k, d) int64, block after block: of all cells of a level, in C order."""
        counts = self.level_counts(level)
        total, size = math.prod(counts.tolist()), max(1, _BLOCK_NUMBERS // len(counts))
        for start in range(0, total, size):
            rest = np.arange(start, min(start + size, total))
            codes = np.empty((len(rest), len(counts)), np.int64)
            for j in range(len(counts) - 1, -1, -1):
                rest, codes[:, j] = np.divmod(rest, counts[j])
            yield codes

    def words(self, points: Float32) -> Words:
        """(d, n) uint32: codes of level 0, a coordinate after the other."""
        words = np.empty((len(self.lower), len(points)), np.uint32)
        for j in range(len(words)):
            place = points[:, j].astype(np.float64)
            place -= self.lower[j]
            place /= self.side
            np.floor(place, out=place)
            np.clip(place, 0, self.counts[j] - 1, out=place)
            words[j] = place
        return words

    def inside(self, points: Float32) -> npt.NDArray[np.bool_]:
        """(n,): whether points have a cell."""
        inside = np.ones(len(points), np.bool_)
        for j in range(len(self.lower)):
            inside &= (points[:, j] >= self.lower[j]) & (points[:, j] <= self.upper[j])
        return inside

    def corners(self, codes: Int64, level: int = 0) -> tuple[Float64, Float64]:
        """(k, d) float64, twice: the ends of cells (k, d), cut at the bounds."""
        low = self.lower + (codes << level) * self.side
        high = self.lower + ((codes + 1) << level) * self.side
        return np.minimum(low, self.upper), np.minimum(high, self.upper)


def draw(seed: PublicSeed, *, rows: int, power: int, width: float, sizes: Float32) -> Projection:
    """The p-stable hash of every row, drawn as those of the euclidean kernel are; fewer rows are a prefix of more.

    Directions are a' = float32(a/w), a from the normal draws in the order (row, part, coordinate). Offsets are the
    upper 24 bits of a word, times 2⁻²⁴, in the order (row, part).

    Args:
        seed: The plan's.
        rows: R.
        power: p, parts of a row.
        width: w, in the unit of the records.
        sizes: (d,) float32: the largest absolute coordinates of accepted records.
    """
    dim = len(sizes)
    normals = PublicStream(seed, "partition/lsh/directions").normal(rows * power * dim)
    words = PublicStream(seed, "partition/lsh/offsets").words(rows * power)
    return Projection(
        directions=(normals / width).astype(np.float32).reshape(rows * power, dim),
        offsets=(words >> np.uint64(40)).astype(np.float64) * 2.0**-24,
        sizes=sizes,
    )


def refuse_codes(sizes: Float32, width: float) -> None:
    """Refuses a width with which some code of a record might leave 32 bits, whatever the seed.

    Raises:
        PlanError: It might.
    """
    reach = math.fsum(sizes.tolist()) * DIRECTION_LIMIT
    if not reach < CODE_LIMIT * width:
        raise PlanError(
            "sketch.bandwidth", width, f"more than {reach / CODE_LIMIT:.3g}: codes must stay within 32 bits"
        )
