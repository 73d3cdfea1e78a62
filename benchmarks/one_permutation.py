"""Full MinHash or one-permutation hashing: which is faster for sets of which size."""

import numpy as np

from benchmarks import rivals
from benchmarks.report import Row
from benchmarks.stopwatch import Case, Rounds
from benchmarks.workloads import ROWS, hashed
from hushsum.families import Hashed, SetRecords, warm_up
from hushsum.families.lsh.compiled import engine as compiled_engine
from hushsum.families.lsh.placement import HashedRows
from hushsum.families.sets import Sets
from hushsum.schema import Table

TITLE = "MinHash, ns a set and row by size of the sets on one core, R = 1000, W = 8192 (increments and all)"
UNIVERSE = 100_000
SIZES = (4, 16, 64, 96, 128, 160, 192, 256, 512, 1024, 4096)
_IDS = 200_000


def measure(*, quick: bool) -> list[Row]:
    """One row a size."""
    warm_up()
    ways = {way: rivals.rows_of(_family(way)) for way in ("full", "one-permutation")}
    rows: list[Row] = []
    for size in SIZES[::4] if quick else SIZES:
        sets = _sets(size, max(16, (_IDS // 10 if quick else _IDS) // size))
        counters = np.zeros((ROWS, 8192), np.int64)
        cases = {way: _case(table, counters, sets) for way, table in ways.items()}
        rounds = Rounds(cases, repeats=1 if quick else 7)
        unit = 1e9 / (len(sets) * ROWS)
        rows.append(
            {
                "ids of a set": size,
                "full": rounds.seconds("full") * unit,
                "one permutation": rounds.seconds("one-permutation") * unit,
                "full/one permutation": rounds.ratio(["full"], ["one-permutation"]),
            }
        )
    return rows


def _case(table: HashedRows, counters: rivals.Int64, sets: Sets) -> Case:
    return lambda: compiled_engine.add(table, counters, sets)


def _family(way: str) -> Hashed:
    keys = {key: value for key, value in hashed("jaccard", minhash=way, buckets=8192).items() if key != "family"}
    return Hashed.from_table(Table(keys, "sketch"), SetRecords(UNIVERSE))


def _sets(size: int, count: int) -> Sets:
    rng = np.random.default_rng(size)
    ids = [np.sort(rng.choice(UNIVERSE, size, replace=False)) for _ in range(count)]
    return Sets(np.arange(count + 1) * size, np.concatenate(ids).astype(np.uint32))
