"""The bare work of each family as cases for a stopwatch: what has to be computed, without counters.

Where there are several cases, the least of them is the floor.
"""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from benchmarks import rivals, rivals_loops
from benchmarks.rivals import Float32
from benchmarks.stopwatch import Case
from hushsum.families import Hashed
from hushsum.families.fourier import Fourier
from hushsum.families.fourier.parameters import STEP
from hushsum.families.hermite import Hermite
from hushsum.families.lsh.codes.bins import Bins
from hushsum.families.lsh.codes.minhash import MinHash
from hushsum.families.lsh.placement import Rehash
from hushsum.families.partition import Partition
from hushsum.families.sets import Sets

_ROWS: Final = 64  # of a chunk of the loops: its buckets stay in a core's cache
_SHAPES: Final = ((16, 1024), (64, 1024), (250, 1024), (1000, 1024))


def bins(family: Hashed, records: Float32) -> dict[str, Case]:
    """Random binning: multiply, floor and mix, once a coordinate and row."""
    tables = rivals.rows_of(family)
    code, rehash = tables.code, tables.placement
    assert isinstance(code, Bins), "the laplacian kernel"
    assert isinstance(rehash, Rehash), "codes do not fit"
    exact = (code.inverses, code.offsets, rehash.multipliers)
    halves = (code.inverses, code.offsets.astype(np.float32), (rehash.multipliers >> np.uint64(32)).astype(np.uint32))
    size = max(64, min(1024, (1 << 16) // records.shape[1]))
    blocks = [np.ascontiguousarray(records[i : i + size].T) for i in range(0, len(records), size)]
    out, h64, h32 = np.empty(_ROWS * size, np.uint32), np.empty(size, np.uint64), np.empty(size, np.uint32)

    def run(
        loop: Callable[..., None], parameters: tuple[npt.NDArray[Any], ...], bits: int, h: npt.NDArray[Any]
    ) -> None:
        for row in range(0, family.rows, _ROWS):
            some = [array[row : row + _ROWS] for array in parameters]
            for block in blocks:
                n = block.shape[1]
                loop(block, *some, bits - rehash.bits, h[:n], out[: len(some[0]) * n].reshape(-1, n))

    return {
        "bins": lambda: run(rivals_loops.mixed_bins, exact, 64, h64),
        "bins in pairs": lambda: run(rivals_loops.mixed_bin_pairs, exact, 64, h64),
        "32 bits": lambda: run(rivals_loops.narrow_bins, halves, 32, h32),
    }


def permutations(family: Hashed, sets: Sets, rows: int) -> dict[str, Case]:
    """MinHash of so many rows: multiply and min; and a permutation's whole arithmetic, xor to min."""
    code = rivals.rows_of(family).code
    assert isinstance(code, MinHash), "full MinHash"
    order, out = code.order, np.empty((len(sets), rivals_loops.LANES), np.uint32)

    def run(loop: Callable[..., None], *parameters: rivals.UInt32) -> None:
        for row in range(0, rows - rows % rivals_loops.LANES, rivals_loops.LANES):
            loop(sets.starts, sets.ids, *(array[row : row + rivals_loops.LANES] for array in parameters), out)

    return {
        "multiply and min": lambda: run(rivals_loops.least_products, order.second),
        "whole permutation": lambda: run(rivals_loops.least_mixed, order.keys, order.first, order.second),
    }


def phases(family: Fourier, records: Float32) -> dict[str, Case]:
    """SGEMM, cosine and sine of all its products at the best size of a block, and what becomes of them.

    ``sums`` adds up each row's cosines and sines, ``reads`` multiplies them by counters, as the last two steps of a
    record and of a query.
    """
    directions = family._pairs.projection.directions * np.float32(STEP)  # noqa: SLF001  rivals start from the same
    counters = np.ones((2, family.rows), np.float32)

    def waves(chunk: int, block: int) -> dict[str, Case]:
        t = np.dot(directions[:chunk], records[:block].T)
        rounds = -(-family.rows * len(records) // t.size)
        c, s = np.empty_like(t), np.empty_like(t)

        def both() -> None:
            for _ in range(rounds):
                np.cos(t, out=c)
                np.sin(t, out=s)

        def sums() -> None:
            for _ in range(rounds):
                c.sum(axis=1)
                s.sum(axis=1)

        def reads() -> None:
            for _ in range(rounds):
                counters[0, :chunk] @ c
                counters[1, :chunk] @ s

        name = f"{chunk}x{block}"
        return {f"waves {name}": both, f"sums {name}": sums, f"reads {name}": reads}

    cases = rivals.products(directions, records)
    for shape in _SHAPES:
        cases |= waves(*shape)
    return cases


def moments(family: Hermite, records: Float32) -> dict[str, Case]:
    """Cells and moments of two coordinates, added and read."""
    grid, counters = family._grid, np.zeros(family.shape, np.int64)  # noqa: SLF001  rivals start from the same
    strides, counts = np.array(grid.strides, np.int64), np.array(grid.cells, np.int64)
    place, out = (grid.lower, grid.width), np.empty(len(records))
    cutoff = float(family.cutoff)
    return {
        "adds": lambda: rivals_loops.add_moments(records, *place, strides, grid.order, float(grid.scale), counters),
        "reads": lambda: rivals_loops.read_moments(records, *place, counts, grid.order, cutoff, counters, out),
    }


def signs(family: Partition, records: Float32) -> dict[str, Case]:
    """Cells of a grid, then two hashes a row, and a signed increment or a read."""
    hashes, grid = family.tables.levels, family.tables.grid
    assert grid is not None, "cells of a grid"
    words, sums = np.empty((records.shape[1], len(records)), np.uint32), np.zeros(len(records), np.int64)
    counters = np.zeros((family.levels, family.rows, family.buckets), np.int64)
    each = [(one.places, one.signs, one.shift, own) for one, own in zip(hashes, counters, strict=True)]

    def adds() -> None:
        rivals_loops.grid_words(records, grid.lower, grid.side, words)
        for level, parameters in enumerate(each):
            rivals_loops.add_signs(words >> np.uint32(level), *parameters)

    def reads() -> None:
        rivals_loops.grid_words(records, grid.lower, grid.side, words)
        rivals_loops.read_signs(words, *each[0], sums)

    return {"adds": adds, "reads": reads}
