"""Buckets of records each in one row of its own: n codes of a row, not R·n (local reports).

What a bucket is does not change: codes are those that the files of the hashes define, placement is that of
:mod:`hushsum.families.lsh.placement`. Only the order of the work is another one: every record takes the parameters of
its own row.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np

from hushsum import compiled
from hushsum.families.lsh import numpy_engine
from hushsum.families.lsh.arrays import Float32, Int64, Points
from hushsum.families.lsh.codes.bins import Bins
from hushsum.families.lsh.codes.code import Code
from hushsum.families.lsh.codes.joined import Joined
from hushsum.families.lsh.codes.minhash import MinHash
from hushsum.families.lsh.codes.one_permutation import OnePermutation
from hushsum.families.lsh.codes.projection import Projection, Signs
from hushsum.families.lsh.placement import HashedRows
from hushsum.families.sets import Sets

_BLOCK: Final = 4096  # records
_BLOCK_NUMBERS: Final = 1 << 17
_ANSWERED: Final = 1 << 20  # buckets of queries at once


def checked_rows(rows: Int64, n: int, limit: int) -> Int64:
    """The row of each of n records, from 0 to ``limit`` − 1.

    Raises:
        ValueError: Another type, shape or range.
    """
    if rows.dtype != np.int64 or rows.shape != (n,):
        raise ValueError(f"rows: got {rows.dtype} of shape {rows.shape}, expected int64 of shape ({n},)")
    if n and not 0 <= int(rows.min()) <= int(rows.max()) < limit:
        raise ValueError(f"rows: got {rows.min()} to {rows.max()}, expected 0 to {limit - 1}")
    return np.ascontiguousarray(rows)


def buckets(rows: HashedRows, records: Points, which: Int64) -> Int64:
    """The bucket of each accepted record in its row.

    Args:
        rows: Their parameters.
        records: n of them, within the bounds.
        which: (n,), from 0 to R − 1.

    Returns:
        (n,) int64, 0 to W − 1.
    """
    found = np.empty(len(records), np.int64)
    for some in _chunks(len(records), _BLOCK):
        row: Any = which[some]  # NumPy indexes parameters by an array as by a slice: of each record those of its row
        codes = _codes(rows.code, rows.power, records[some], which[some])
        found[some] = rows.placement.place_within(row, codes[:, :, None])[:, 0]
    return found


def buckets_at(rows: HashedRows, queries: Points) -> Iterator[tuple[slice, Int64]]:
    """(some of the accepted queries, their buckets (R, k) int64 in every row)."""
    coder, count = numpy_engine.coder(rows.code), len(rows)
    for some in _chunks(len(queries), max(1, min(_BLOCK, _ANSWERED // count))):
        block, found = coder.prepare(queries[some]), np.empty((count, some.stop - some.start), np.int64)
        few = max(1, _BLOCK_NUMBERS // (found.shape[1] * rows.power))
        for which in _chunks(count, few):
            codes = coder.codes(slice(which.start * rows.power, which.stop * rows.power), block)
            found[which] = rows.placement.place(which, codes.reshape(-1, rows.power, found.shape[1]))
        yield some, found


def projected(projection: Projection, records: Float32, parts: Int64) -> Int64:
    """The codes (n,) int64 of part ``parts[i]`` for record ``records[i]``: the definition, for each."""
    if compiled.enabled():
        from hushsum.families.lsh.compiled import single_row as row_loops

        codes = np.empty(len(parts), np.int64)
        row_loops.project(
            projection.directions,
            projection.offsets,
            int(projection.signs),
            np.ascontiguousarray(records),
            parts,
            codes,
        )
        return codes
    codes = np.empty(len(parts), np.int64)
    for some in _chunks(len(parts), max(1, _BLOCK_NUMBERS // records.shape[1])):
        codes[some] = projection.exact_codes(parts[some], records[some])
    return codes


def _codes(code: Code, power: int, records: Points, which: Int64) -> Int64:
    """(n, p): the codes of the p parts of row ``which[i]``."""
    return _CODES.get(type(code), _by_row)(code, power, records, which)


def _parts(power: int, which: Int64) -> Int64:
    """(n, p): the parts of rows."""
    return which[:, None] * power + np.arange(power)


def _joined(joined: Joined, power: int, records: Float32, which: Int64) -> Int64:
    del power
    groups = zip(joined.codes, joined.powers, joined.columns, strict=True)
    return np.concatenate([_codes(code, p, records[:, columns], which) for code, p, columns in groups], axis=1)


def _projected(projection: Projection, power: int, records: Float32, which: Int64) -> Int64:
    parts = _parts(power, which)
    return np.stack([projected(projection, records, parts[:, part].copy()) for part in range(power)], axis=1)


def _binned(bins: Bins, power: int, records: Float32, which: Int64) -> Int64:
    """As :class:`~hushsum.families.lsh.numpy_engine.NumpyBins`: a part has a code a coordinate."""
    each = power // records.shape[1]  # parts of a row
    parts = which[:, None] * each + np.arange(each)
    codes = bins.inverses[parts].astype(np.float64)
    codes *= records[:, None, :]
    codes += bins.offsets[parts]
    return np.asarray(np.floor(codes).reshape(len(records), power), np.int64)


def _first_ids(minhash: MinHash, power: int, records: Sets, which: Int64) -> Int64:
    order, sizes, codes = minhash.order, np.diff(records.starts), np.empty((len(records), power), np.int64)
    mixed, parts = order.mixed(records.ids), _parts(power, which)
    for part in range(power):
        of_sets: Any = parts[:, part]
        of_ids: Any = np.repeat(of_sets, sizes)
        least = np.minimum.reduceat(order.images(of_ids, mixed), records.starts[:-1])
        codes[:, part] = order.ids(of_sets, least)
    return codes


def _of_all_rows(code: OnePermutation, power: int, records: Sets, which: Int64) -> Int64:
    """The codes of all rows come together."""
    coder = numpy_engine.coder(code)
    every = coder.codes(slice(0, len(code)), coder.prepare(records))
    return np.asarray(every[_parts(power, which), np.arange(len(records))[:, None]], np.int64)


def _by_row(code: Code, power: int, records: Points, which: Int64) -> Int64:
    """Of any code: the records of one row at a time."""
    coder, codes = numpy_engine.coder(code), np.empty((len(records), power), np.int64)
    order = np.argsort(which, kind="stable")
    for mine in np.split(order, np.flatnonzero(np.diff(which[order])) + 1):
        row = int(which[mine[0]])
        codes[mine] = coder.codes(slice(row * power, (row + 1) * power), coder.prepare(records[mine])).T
    return codes


_CODES: Final[Mapping[type[Code], Callable[[Any, int, Any, Int64], Int64]]] = {
    Joined: _joined,
    Projection: _projected,
    Signs: _projected,
    Bins: _binned,
    MinHash: _first_ids,
    OnePermutation: _of_all_rows,
}


def _chunks(n: int, size: int) -> Iterator[slice]:
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))
