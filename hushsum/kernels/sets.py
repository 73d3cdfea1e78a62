"""Sets of ids in one array: their Jaccard similarity, and equal ones merged."""

from collections import Counter
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
#: (starts, ids): starts (n + 1,) integers, ids (nnz,) integers; set i is ids[starts[i]:starts[i + 1]], ascending.
Sets = tuple[npt.NDArray[np.integer], npt.NDArray[np.integer]]

_MATCHES_MAX: Final = 1 << 20
_PAIRS_MAX: Final = 1 << 20
_INT64_MAX: Final = 2**63 - 1


def jaccard(a: Sets, b: Sets, power: int = 1) -> Floats:
    """|A ∩ B| / |A ∪ B| of every pair, to a power: the collision probability of MinHash (Broder 1997, section 3).

    The ids of b are sorted once with their owners; those of a are looked up. So the time goes with the ids that pairs
    share, not with the number of pairs, and memory beside the result with the ids of b.

    Args:
        a: n sets, (starts, ids).
        b: m sets.
        power: Number of concatenated hashes.

    Returns:
        (n, m) float64 in [0, 1]; exactly 1 for equal sets, the empty one included.

    Raises:
        ValueError: Starts or ids do not describe sets.
    """
    (a_starts, a_ids), (b_starts, b_ids) = checked(a), checked(b)
    a_sizes, b_sizes = np.diff(a_starts), np.diff(b_starts)
    order = np.argsort(b_ids, kind="stable")
    owners, keys = np.repeat(np.arange(len(b_sizes)), b_sizes)[order], b_ids[order]
    first = np.searchsorted(keys, a_ids, "left")
    matches = np.searchsorted(keys, a_ids, "right") - first
    value = np.empty((len(a_sizes), len(b_sizes)))
    for start, stop in _blocks(_totals(matches)[a_starts], len(b_sizes)):
        ids = slice(a_starts[start], a_starts[stop])
        counts = matches[ids]
        ends = np.cumsum(counts)
        places = np.arange(counts.sum()) + np.repeat(first[ids] - (ends - counts), counts)
        rows = np.repeat(np.repeat(np.arange(stop - start), a_sizes[start:stop]), counts)
        pairs = (stop - start) * len(b_sizes)
        shared = np.bincount(rows * len(b_sizes) + owners[places], minlength=pairs).reshape(stop - start, len(b_sizes))
        union = a_sizes[start:stop, None] + b_sizes[None, :] - shared
        value[start:stop] = np.where(union == 0, 1.0, shared / np.maximum(union, 1))
    return value if power == 1 else value**power


def merge_equal_sets(sets: Sets) -> tuple[Sets, Floats]:
    """Different sets (k of them) and how often each occurs (k,), in an order that depends on the sets alone.

    Raises:
        ValueError: Starts or ids do not describe sets.
    """
    starts, ids = checked(sets)
    size, text = ids.itemsize, ids.tobytes()
    ends = (starts * size).tolist()
    counts = Counter(text[start:stop] for start, stop in pairwise(ends))
    different = sorted(counts)
    lengths = np.array([len(one) // size for one in different], np.int64)
    weights = np.array([counts[one] for one in different], np.float64)
    return (_totals(lengths), np.frombuffer(b"".join(different), ids.dtype)), weights


def checked(sets: Sets) -> tuple[Integers, Integers]:
    """(starts, ids) as int64.

    Raises:
        ValueError: They do not describe sets.
    """
    starts, ids = _integers("starts", sets[0]), _integers("ids", sets[1])
    if not len(starts) or starts[0] != 0 or starts[-1] != len(ids) or np.any(np.diff(starts) < 0):
        raise ValueError(f"starts: expected to ascend from 0 to the number of ids, {len(ids)}")
    good = ids[1:] > ids[:-1]
    begins = starts[(starts > 0) & (starts < len(ids))]
    good[begins - 1] = True  # the last id of one set and the first of the next may stand in any order
    if not np.all(good):
        raise ValueError("ids: expected different ids in ascending order within each set")
    return starts, ids


def take_sets(sets: Sets, start: int, stop: int) -> Sets:
    """The sets from start to before stop."""
    starts, ids = sets
    starts = starts[start : stop + 1]
    return starts - starts[0], ids[starts[0] : starts[-1]]


def _totals(counts: npt.NDArray[np.integer]) -> Integers:
    totals = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=totals[1:])
    return totals


def _blocks(matches: Integers, m: int) -> list[tuple[int, int]]:
    blocks, start, n = [], 0, len(matches) - 1
    while start < n:
        by_matches = int(np.searchsorted(matches, matches[start] + _MATCHES_MAX, "right")) - 1
        stop = min(n, max(start + 1, min(by_matches, start + _PAIRS_MAX // max(1, m))))
        blocks.append((start, stop))
        start = stop
    return blocks


def _integers(name: str, values: npt.NDArray[np.integer]) -> Integers:
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(f"{name}: got {array.dtype} of shape {array.shape}, expected one dimension of integers")
    if array.dtype == np.uint64 and array.max(initial=0) > _INT64_MAX:
        raise ValueError(f"{name}: got {array.max()}, expected integers below 2^63")
    return np.asarray(array, np.int64)
