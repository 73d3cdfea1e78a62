"""Buckets of records each in one row of its own: n codes of a row, not R·n (local reports).

What a bucket is does not change: codes are those that the files of the hashes define, placement is that of
:mod:`hushsum.families.lsh.placement`. Only the order of the work is another one: every record takes the parameters of
its own row.
"""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from hushsum import acceleration
from hushsum.families.lsh.arrays import Float32, Int64, Points
from hushsum.families.lsh.bins import Bins
from hushsum.families.lsh.coders import Coder
from hushsum.families.lsh.joined import Joined
from hushsum.families.lsh.minhash import MinHash
from hushsum.families.lsh.one_permutation import OnePermutation
from hushsum.families.lsh.projection import Projection
from hushsum.families.lsh.rows import Rows

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


def buckets(rows: Rows, records: Points, which: Int64) -> Int64:
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
        codes = _codes(rows.coder, rows.power, records[some], which[some])
        found[some] = rows.placement.place_within(row, codes[:, :, None])[:, 0]
    return found


def buckets_at(rows: Rows, queries: Points) -> Iterator[tuple[slice, Int64]]:
    """(some of the accepted queries, their buckets (R, k) int64 in every row)."""
    coder, count = rows.coder.plain(), len(rows)
    for some in _chunks(len(queries), max(1, min(_BLOCK, _ANSWERED // count))):
        block, found = coder.prepare(queries[some]), np.empty((count, some.stop - some.start), np.int64)
        few = max(1, _BLOCK_NUMBERS // (found.shape[1] * rows.power))
        for which in _chunks(count, few):
            codes = coder.codes(slice(which.start * rows.power, which.stop * rows.power), block)
            found[which] = rows.placement.place(which, codes.reshape(-1, rows.power, found.shape[1]))
        yield some, found


def projected(projection: Projection, records: Float32, parts: Int64) -> Int64:
    """The codes (n,) int64 of part ``parts[i]`` for record ``records[i]``: the definition, for each."""
    if acceleration.enabled():
        from hushsum.families.lsh import single_rows_loops

        codes = np.empty(len(parts), np.int64)
        single_rows_loops.project(
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


def _codes(coder: Coder, power: int, records: Points, which: Int64) -> Int64:
    """(n, p): the codes of the p parts of row ``which[i]``."""
    if isinstance(coder, Joined):
        pairs = zip(coder.coders, coder.powers, coder.columns, strict=True)
        return np.concatenate([_codes(one, p, records[:, columns], which) for one, p, columns in pairs], axis=1)
    parts = which[:, None] * power + np.arange(power)
    if isinstance(coder, Projection):
        return np.stack([projected(coder, records, parts[:, part].copy()) for part in range(power)], axis=1)
    if isinstance(coder, Bins):
        return _binned(coder, power, records, which)
    if isinstance(coder, MinHash):
        return np.stack([_first_ids(coder, records, parts[:, part]) for part in range(power)], axis=1)
    if isinstance(coder, OnePermutation):  # the codes of all rows come together
        codes = coder.plain()
        every = codes.codes(slice(0, len(coder)), codes.prepare(records))
        return np.asarray(every[parts, np.arange(len(records))[:, None]], np.int64)
    return _by_row(coder, power, records, which)


def _binned(bins: Bins, power: int, records: Float32, which: Int64) -> Int64:
    """As :class:`~hushsum.families.lsh.bins.PlainBins`: a part has a code a coordinate."""
    each = power // records.shape[1]  # parts of a row
    parts = which[:, None] * each + np.arange(each)
    codes = bins.inverses[parts].astype(np.float64)
    codes *= records[:, None, :]
    codes += bins.offsets[parts]
    return np.asarray(np.floor(codes).reshape(len(records), power), np.int64)


def _first_ids(coder: MinHash, records: Points, part: Int64) -> Int64:
    order, sizes = coder.order, np.diff(records.starts)
    of_ids: Any = np.repeat(part, sizes)
    of_sets: Any = part
    least = np.minimum.reduceat(order.images(of_ids, order.mixed(records.ids)), records.starts[:-1])
    return order.ids(of_sets, least).astype(np.int64)


def _by_row(coder: Coder, power: int, records: Points, which: Int64) -> Int64:
    """Of any coder: the records of one row at a time."""
    plain, codes = coder.plain(), np.empty((len(records), power), np.int64)
    order = np.argsort(which, kind="stable")
    for mine in np.split(order, np.flatnonzero(np.diff(which[order])) + 1):
        row = int(which[mine[0]])
        codes[mine] = plain.codes(slice(row * power, (row + 1) * power), plain.prepare(records[mine])).T
    return codes


def _chunks(n: int, size: int) -> Iterator[slice]:
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))
