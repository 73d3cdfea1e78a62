"""What local reports ask of hashed rows: the bucket of a record in one row, and those of queries in every row."""

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hushsum.families.estimates import Division
from hushsum.families.family import Records
from hushsum.families.hashed.draws import RowDraws
from hushsum.families.hashed.products import Product
from hushsum.families.lsh import single_row
from hushsum.families.lsh.arrays import Points
from hushsum.families.lsh.hash import Domain
from hushsum.families.lsh.placement import HashedRows

Int64 = npt.NDArray[np.int64]


class _Hashed(Protocol):
    @property
    def product(self) -> Product: ...

    @property
    def rows(self) -> int: ...

    @property
    def draws(self) -> RowDraws: ...

    @property
    def rehashed(self) -> bool: ...

    @property
    def _tables(self) -> HashedRows: ...

    @property
    def _space(self) -> Domain: ...

    def _near(self, queries: Any) -> Points: ...

    def _grouped(self, groups: int) -> int: ...


class RowReports:
    """A hashed family's hooks for reports, each about one row."""

    def buckets_of(self: _Hashed, records: Records, rows: Int64) -> Int64:
        """(n,) int64: the bucket of each accepted record in row ``rows[i]``, where :meth:`Hashed.add` counts it.

        Raises:
            RecordError: The records do not come from :meth:`Hashed.accept`.
            ValueError: ``rows`` is not (n,) int64, of rows from 0 to R − 1.
        """
        usable = self._space.accepted(records)
        return single_row.buckets(self._tables, usable, single_row.checked_rows(rows, len(usable), self.rows))

    def buckets_at(self: _Hashed, queries: Any) -> Iterator[tuple[slice, Int64]]:
        """(some of m queries, their buckets (R, k) int64 in every row), until all are told.

        A bucket is :data:`~hushsum.families.lsh.placement.OUTSIDE` where no record within the bounds can be.

        Raises:
            RecordError: The queries' type or dimension is wrong, or one is not finite, or too far from the bounds.
        """
        return single_row.buckets_at(self._tables, self._near(queries))

    def division(self: _Hashed, groups: int | None = None) -> Division:
        """The parts of the rows that are independent of each other; see :meth:`Hashed.answer`.

        Raises:
            ValueError: ``groups`` where rows are not drawn independently, or not from 1 to R.
        """
        if groups is not None:
            return Division.of("groups", self.rows, self._grouped(groups))
        if (sets := self.draws.sets(self.product, self._space, self.rows)) is not None:
            return sets
        given = self.draws.kind == "given" and not self.rehashed
        return Division.of("noise" if given else "rows", self.rows, self.rows)
