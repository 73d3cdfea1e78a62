"""The records of a run, their distribution over clients, and their exact kernel sums.

The records are the pixels of a photograph that scikit-learn ships, or the user's own file. They are cut in their own
order into uneven parts, so that clients differ as devices do. Releases are compared with the exact sums.
"""

import itertools
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum import kernels
from hushsum.plan import Plan
from hushsum.tables import Columns, NamedColumns, read_file, read_table
from hushsum_simulator.errors import RecordsError
from hushsum_simulator.progress import Bar

Floats = npt.NDArray[np.float64]
_PHOTOGRAPH: Final = "china.jpg"


@dataclass(frozen=True, eq=False)
class Records:
    """Rows of numbers with the names of their columns.

    Attributes:
        values: (n, d) float64; a missing value is NaN, and a client drops its record.
        source: Of the records, for people.
        labels: n of them, None for a missing one; or None without a column of labels.
    """

    values: Floats
    names: tuple[str, ...]
    source: str
    labels: tuple[str | None, ...] | None = None


def photograph() -> Records:
    """The 273,280 pixels of china.jpg, in the order of its lines, as red, green and blue from 0 to 255."""
    from sklearn.datasets import load_sample_image

    pixels = load_sample_image(_PHOTOGRAPH).reshape(-1, 3).astype(np.float64)
    return Records(pixels, ("red", "green", "blue"), f"the pixels of {_PHOTOGRAPH}")


def load(path: Path, columns: Columns = (), label_column: str | None = None, plan: Plan | None = None) -> Records:
    """Reads the rows of a ``.parquet``, ``.csv`` or ``.npy`` file (:func:`hushsum.tables.read_file`).

    Args:
        path: A CSV may start with a line of names; an array of one axis is one column.
        columns: Names of the columns to take, in this order; by default all but the labels. As a mapping, by the names
            in the plan.
        label_column: Its labels are strings, or integers, which become their decimal text.
        plan: Where it names its columns, those are taken, in its order.

    Raises:
        RecordError: The file cannot be read, or a column holds no numbers, or no labels.
        RecordsError: It holds no records.
    """
    expected = () if plan is None else plan.collection.names
    if isinstance(columns, Mapping) and not expected:
        raise RecordsError(f"{path}: a mapping of columns requires a --plan with column names (record.names)")
    read, labels = read_file(path, names=expected, columns=columns, texts=[label_column]), None
    if isinstance(read, NamedColumns):
        if plan is not None and expected:
            names = expected
            values = read_table(plan, read, labels=label_column, columns=columns or None).records
        else:
            names = tuple(columns) or tuple(name for name in read.names if name != label_column)
            values = read.numbers(names)
        labels = None if label_column is None else _labels(read, label_column)
    else:
        names = tuple(f"x{index}" for index in range(read.shape[1]))
        values, named = read, (*columns, *([] if label_column is None else [label_column]))
        if named:
            raise RecordsError(f"{path}: its columns have no names; got {', '.join(named)}")
    if not values.size:
        raise RecordsError(f"{path}: expected at least one record, got {values.shape[0]} rows of {values.shape[1]}")
    return Records(values, names, path.name, labels)


def _labels(table: NamedColumns, name: str) -> tuple[str | None, ...]:
    values = table.values(name)
    for value in values:
        if value is not None and (isinstance(value, bool) or not isinstance(value, str | int)):
            kind = type(value).__name__
            raise RecordsError(f"{table.source}: column {name!r} holds {kind}, expected labels: strings or integers")
    return tuple(None if value is None else str(value) for value in values)


def hold_out(records: Records, queries_max: int, seed: int) -> tuple[Records, Floats]:
    """Takes out some records, chosen uniformly, as queries; the rest keeps its order.

    At most a tenth of the records is taken, and none with a NaN or an infinity.

    Returns:
        The rest with their labels, and the queries (m, d), at least one.

    Raises:
        RecordsError: Fewer than two usable records.
    """
    values, labels = records.values, records.labels
    usable = np.flatnonzero(np.isfinite(values).all(axis=1))
    if len(usable) < 2:
        raise RecordsError(f"expected at least two records without missing values, got {len(usable)}")
    wanted = max(1, min(queries_max, len(usable) // 10))
    chosen = np.random.default_rng(seed).choice(usable, wanted, replace=False)
    kept = np.ones(len(values), np.bool_)
    kept[chosen] = False
    rest = None if labels is None else tuple(label for label, keep in zip(labels, kept, strict=True) if keep)
    return replace(records, values=values[kept], labels=rest), values[chosen]


# Shares fall as 1/rank^0.7: of 200 clients the largest holds 7 % of all records, the smallest a sixth of a percent.
_ZIPF_EXPONENT: Final = 0.7


@dataclass(frozen=True, eq=False)
class ClientRecords:
    """One client's records.

    Attributes:
        batches: Arrays (k, d) that it adds one after the other; in central mode each becomes a delta.
        labels: k of each batch; None where records have none.
    """

    client_id: str
    batches: tuple[Floats, ...]
    labels: tuple[tuple[str | None, ...], ...] | None = None

    @property
    def records(self) -> int:
        return sum(map(len, self.batches))

    def parts(self, places: Sequence[int]) -> "ClientRecords":
        """The same client with these batches only."""
        labels = None if self.labels is None else tuple(self.labels[place] for place in places)
        return ClientRecords(self.client_id, tuple(self.batches[place] for place in places), labels)


def deal(
    values: Floats,
    *,
    clients: int,
    deltas: int,
    seed: int,
    records_per_client: int | None,
    labels: Sequence[str | None] | None = None,
) -> list[ClientRecords]:
    """Cuts the records into consecutive parts of uneven size, and each part into batches.

    Args:
        values: (n, d); a client's records are neighbours, as one photographer's pixels are.
        clients: Number of parts, at most one a record.
        deltas: At least so many batches in all, or one a record where there are fewer.
        seed: Decides which client gets a large part.
        records_per_client: Only so many of each part are dealt out, its first; None for all.
        labels: n of them, dealt out with their records.

    Returns:
        The parts, each with at least one record.
    """
    clients = min(clients, len(values))
    weights = np.arange(1, clients + 1) ** -_ZIPF_EXPONENT
    np.random.default_rng(seed).shuffle(weights)
    spare = len(values) - clients  # one record for everybody first
    edges = np.arange(clients + 1) + np.rint(np.concatenate([[0], np.cumsum(weights)]) / weights.sum() * spare)
    parts = [range(int(first), int(last))[:records_per_client] for first, last in itertools.pairwise(edges)]
    size = max(1, sum(map(len, parts)) // deltas)
    digits = len(str(clients))
    shares = []
    for index, part in enumerate(parts):
        cuts = [slice(at, min(at + size, part.stop)) for at in range(part.start, part.stop, size)]
        mine = None if labels is None else tuple(tuple(labels[cut]) for cut in cuts)
        shares.append(ClientRecords(f"client-{index + 1:0{digits}}", tuple(values[cut] for cut in cuts), mine))
    return shares


_TABLE_MAX: Final = 1 << 22
_PAIRS_MAX: Final = 1 << 29  # without a table: about 40 ns each
_BLOCK_PAIRS: Final = 1 << 18
_TABLE_POINTS: Final = 2048  # blocks that stay in a core's own cache
_TABLE_QUERIES: Final = 16
_THREADS: Final = 2
_PARTS: Final = 50


class ExactSums:
    """Σ_x k(x, q) over all records (n, d) without a NaN or an infinity, clipped to the plan's bounds as in sketches."""

    def __init__(self, plan: Plan, values: Floats) -> None:
        self._plan = plan
        usable = clip(plan, values[np.isfinite(values).all(axis=1)])
        self.records = len(usable)
        self._points, self._weights = kernels.merge_equal(usable)
        self._table = _table(plan, self._points)

    def affordable(self, queries: int) -> int:
        """How many of so many queries take only seconds: all, except for large files of real numbers."""
        if self._table is not None:
            return queries
        return min(queries, max(1, _PAIRS_MAX // max(1, len(self._points))))

    def at(self, queries: Floats, bar: Bar) -> Floats:
        """The sums at (m, d) queries: (m,) float64."""
        parts = np.array_split(queries, max(1, min(_PARTS, len(queries))))
        on_grid = self._table is not None and bool(np.all(queries == np.rint(queries)))
        lower, upper = self._points.min(initial=0.0), self._points.max(initial=0.0)
        on_grid = on_grid and bool(lower <= queries.min() and queries.max() <= upper)
        sums: list[Floats] = []
        with ThreadPoolExecutor(_THREADS) as threads:
            for part in threads.map(self._by_table if on_grid else self._by_kernel, parts):
                sums.append(part)
                bar(sum(map(len, sums)))
        return np.concatenate(sums)

    def _by_kernel(self, queries: Floats) -> Floats:
        kernel = self._plan.family.kernel
        return kernels.weighted_kernel_sums(kernel, self._points, self._weights, queries, block_pairs=_BLOCK_PAIRS)

    def _by_table(self, queries: Floats) -> Floats:
        assert self._table is not None, "checked before"
        # ‖p − q‖² = (−2p, ‖p‖², 1)·(q, 1, ‖q‖²): one product of matrices. float32 holds every integer below 2^24
        # exactly, and so all that comes up in it.
        points, asked = self._points.astype(np.float32), queries.astype(np.float32)
        left = np.column_stack([asked, np.ones(len(asked), np.float32), np.einsum("ij,ij->i", asked, asked)])
        right = np.vstack([-2.0 * points.T, np.einsum("ij,ij->i", points, points), np.ones(len(points), np.float32)])
        sums = np.zeros(len(queries))
        for start in range(0, len(points), _TABLE_POINTS):
            block = np.ascontiguousarray(right[:, start : start + _TABLE_POINTS])
            weights = self._weights[start : start + _TABLE_POINTS]
            for first in range(0, len(queries), _TABLE_QUERIES):
                squared = (left[first : first + _TABLE_QUERIES] @ block).astype(np.int32)
                sums[first : first + _TABLE_QUERIES] += np.take(self._table, squared, mode="clip") @ weights
        return sums


def clip(plan: Plan, points: Floats) -> Floats:
    """Points (n, d) within the plan's public bounds."""
    lower, upper = ([float(bound) for bound in bounds] for bounds in (plan.vectors.lower, plan.vectors.upper))
    return np.clip(points, lower, upper)


def _table(plan: Plan, points: Floats) -> Floats | None:
    """The kernel at every squared distance of integer points; None where coordinates are no small integers.

    Every squared distance of pixels is an integer below 200,000: the kernel is evaluated once for each instead of once
    for each of hundreds of millions of pairs, with the same result.
    """
    fields = plan.family.to_fields()
    if fields.get("kernel") != "euclidean" or "transforms" in fields:  # else the kernel is no function of the distance
        return None
    if np.any(points != np.rint(points)) or not len(points):
        return None
    dim = points.shape[1]
    lower, upper = points.min(), points.max()
    largest = dim * (upper - lower) ** 2
    if max(largest, 4 * dim * max(abs(lower), abs(upper)) ** 2) >= _TABLE_MAX:
        return None
    at = np.zeros((int(largest) + 1, dim))
    at[:, 0] = np.sqrt(np.arange(len(at)))
    origin = clip(plan, np.zeros((1, dim)))  # the kernel clips records to the bounds
    kernel: Floats = plan.family.kernel(origin, origin + at)[0]
    return kernel
