"""What each record adds to a sum over private data: an integer that nothing but the record itself decides.

A record adds the mean over public queries of k(x, q), or of √k(x, q), as a whole number of 1/4096, from 0 to 4096. That
one record moves the sum by at most 4096 holds only if no other record's number changes with it, in its last bit either:
a matrix product gives a row other last bits in another block, and 10⁶ numbers at the edge of rounding would add up. So
a record's number is *defined* by evaluating it alone. Blocks are a filter: where one puts a record within its own error
of an edge, the record is evaluated again by itself.

Numbers are rounded with a dither that is a hash of the record, so that many records far from every query, each adding
less than 1/8192, are not lost.
"""

from collections import Counter
from collections.abc import Iterable
from hashlib import blake2b
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hushsum.errors import RecordError
from hushsum.families import Family, SetRecords
from hushsum.families.sets import Sets
from hushsum.families.vectors import readable
from hushsum.plan import Plan
from hushsum.sketch import ClientId, client_ids
from hushsum.tables import read_table

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
#: Usable records as their caller wrote them: (k, d), or k arrays of ids.
Usable = Floats | list[Integers]

UNIT: Final = 4096
# How far a block's mean may lie from the lone record's: 2^-20. Distances from a matrix product keep a relative error of
# 1e4·d·2^-52 (hushsum.kernels.distances), which puts k and √k within 1e-8 for d up to 1,000; the root is steepest where
# k ends in 0, at an angle of π, which is known to 1e-13: within 4e-7.
ERROR: Final = 2.0**-20
_BLOCK_PAIRS: Final = 1 << 16


def usable_records(plan: Plan, records: Any, clients: Iterable[Any] | None) -> Usable:
    """The records that count. One that cannot be used is dropped alone.

    For unit ``client`` these are the first m usable ones of each client, in the order given: which, depends on that
    client's records alone. Ids are held to the same rule as by :meth:`hushsum.Sketch.add`.

    Args:
        plan: Whose records they are.
        records: As :meth:`hushsum.Sketch.add` takes them.
        clients: For unit ``client`` n ids, one a record.

    Raises:
        RecordError: An array of records of another type or dimension; ids of another number, of two types, or one that
            is none: whatever the records are.
    """
    table = read_table(plan, records, clients=clients)
    records = table.records
    accepted, kept = plan.family.accept(records)
    numbers = _within_bound(plan.privacy.records_per_client, table.clients, kept)
    if isinstance(plan.record, SetRecords):
        some = accepted[(np.cumsum(kept) - 1)[numbers]]
        assert isinstance(some, Sets), "a family of sets accepts sets"
        ids = some.ids.astype(np.int64)
        return [ids[start:end] for start, end in pairwise(some.starts.tolist())]
    return np.asarray(readable(records, plan.vectors.dim)[numbers], np.float64)


def contribution_sum(family: Family, records: Usable, queries: Any, *, root: bool) -> int:
    """Σ over records of what each adds, in units of 1/4096.

    Args:
        family: Whose kernel.
        records: From :func:`usable_records`.
        queries: m public points or sets, at least one.
        root: Of √k instead of k.

    Raises:
        RecordError: The queries cannot be used.
    """
    return int(contributions(family, records, queries, root=root).sum())


def contributions(family: Family, records: Usable, queries: Any, *, root: bool) -> Integers:
    """(k,) int64 from 0 to 4096: what each record adds, as :func:`contribution_sum` sums it."""
    count = _readable(family, queries)
    added = np.empty(len(records), np.int64)
    block = max(1, _BLOCK_PAIRS // count)
    for start in range(0, len(records), block):
        some = records[start : start + block]
        dither = np.array([_dither(record) for record in some])
        values = _means(family, some, queries, root=root) * UNIT + dither
        unsure = np.abs(values - np.floor(values) - 0.5) <= ERROR * UNIT
        for number in np.flatnonzero(unsure).tolist():
            alone = some[number : number + 1]
            values[number] = _means(family, alone, queries, root=root)[0] * UNIT + dither[number]
        added[start : start + block] = np.clip(np.rint(values), 0, UNIT)
    return added


def _readable(family: Family, queries: Any) -> int:
    """The number of queries; what is wrong with them is told whatever the records are."""
    _, usable = family.accept(queries)
    if not len(usable) or not usable.all():
        raise RecordError(f"queries: {int(usable.sum())} of {len(usable)} can be used, expected all, and at least one")
    family.kernel(queries[:1], queries)  # some families cannot tell a query that is too far away
    return len(usable)


def _means(family: Family, records: Usable, queries: Any, *, root: bool) -> Floats:
    kernel = np.clip(np.nan_to_num(family.kernel(records, queries)), 0.0, 1.0)
    return np.asarray((np.sqrt(kernel) if root else kernel).mean(axis=1), np.float64)


def _dither(record: npt.NDArray[Any]) -> float:
    """From −½ to ½, of the record's bytes alone. It is no secret: it only keeps rounding from leaning one way."""
    return int.from_bytes(blake2b(record.tobytes(), digest_size=8).digest(), "big") / 2**64 - 0.5


def _within_bound(bound: int | None, clients: Iterable[Any] | None, kept: npt.NDArray[np.bool_]) -> Integers:
    """The numbers of the kept records, of each client the first ``bound``."""
    if bound is None:
        return np.flatnonzero(kept)
    ids = client_ids(clients, len(kept))
    counted: Counter[ClientId] = Counter()
    numbers = []
    for number in np.flatnonzero(kept).tolist():
        counted[ids[number]] += 1
        if counted[ids[number]] <= bound:
            numbers.append(number)
    return np.array(numbers, np.int64)
