"""The queries of whatever has noised counters: a release, or a span of a series of them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hushsum import query
from hushsum.families import Answer
from hushsum.plan import Plan
from hushsum.privacy.guarantee import Guarantee
from hushsum.query import Counters, Queryable
from hushsum.tables import read_queries

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from hushsum.comparison import Comparison


class QueryMethods(ABC):
    """Answers with error bars, from the attributes of a subclass: those of :class:`hushsum.query.Queryable`."""

    plan: Plan
    counters: Counters
    counts: Counters
    guarantee: Guarantee

    @property
    @abstractmethod
    def draws(self) -> float | None:
        """The variance of the noise on one counter, in variances of one draw of the plan's noise; None: of one draw."""

    @property
    def count(self) -> float:
        """The noisy number of records: unbiased, may be negative. For reports the exact number, which is public.

        Of cells of a grid that do not collide it is that of all cells and the count counter together, if that is
        better.
        """
        return self._count(None)

    def count_of(self, label: str) -> float:
        """The noisy number of records of one class."""
        return self._count(label)

    def _count(self, label: str | None) -> float:
        prepared = None if self.plan.privacy.reports else self._prepared  # a count of reports needs no tally
        return query.count(self.plan, self.counts, label=label, counters=self.counters, prepared=prepared)

    def kernel_sum(self, queries: Any, *, label: str | None = None, groups: int | None = None) -> Answer:
        """Estimates of Σ k(x, q) over all records, at (m, d) queries or m sets, with standard errors.

        Args:
            queries: Where to ask: an array, or a table with the plan's columns (:meth:`hushsum.Sketch.add`).
            label: Over the records of this class alone.
            groups: The median of the means of so many groups of rows instead of the mean (RACE, Lemma 3.3). It badly
                underestimates where few records are near: a warning says so.

        Raises:
            RecordError: The queries cannot be used, or there is no such class.
            ValueError: The sketch has no such groups.
        """
        return query.kernel_sum(
            self.plan,
            self.counters,
            read_queries(self.plan, queries),
            label=label,
            groups=groups,
            draws=self.draws,
            prepared=self._prepared,
        )

    def density(self, queries: Any, *, label: str | None = None, groups: int | None = None) -> Answer:
        """The mean kernel at each query, in [0, 1] but for noise: :meth:`kernel_sum` over the number of records.

        It is no probability density: how similar a record is to the query on average. The number of records is the
        noisy one, and at least 1. Arguments and errors are those of :meth:`kernel_sum`.
        """
        return query.density(
            self.plan,
            self.counters,
            self.counts,
            read_queries(self.plan, queries),
            label=label,
            groups=groups,
            draws=self.draws,
            prepared=self._prepared,
        )

    def compare(self: Queryable, other: Queryable) -> "Comparison":
        """What differs between this and another release, or span of them, with the same sketch, at no cost in privacy.

        Differences of answers are this one's minus the other's, with standard errors; which places differ by more than
        noise explains, and whether both are samples of one population: :class:`hushsum.comparison.Comparison`.

        Args:
            other: Of a plan with the same sketch (with its seed) and the same columns; ε, windows and the rest may
                differ.

        Raises:
            PlanError: It has another sketch, or other columns or classes.
        """
        from hushsum.comparison import Comparison  # which is not loaded otherwise

        return Comparison(self, other)

    def plot(
        self: Queryable, kind: str | None = None, *, columns: Sequence[int | str] | None = None, dark: bool = False
    ) -> "Figure":
        """A figure of this release: see :func:`hushsum.plots.release_figure` (extra ``analyst``).

        Args:
            kind: ``density``, ``pairs``, ``classes`` or ``cdf``; None: what suits the plan.
            columns: Names or numbers of the columns to draw; None: the first ones.
            dark: Light lines on a dark ground.

        Returns:
            A matplotlib figure, which notebooks show; ``figure.savefig(path)`` writes it.

        Raises:
            PlanError: It collects sets or models, or has no such figure.
            ValueError: There is no such kind or column.
        """
        from hushsum.plots import release_figure  # which is not loaded otherwise

        return release_figure(self, kind=kind, columns=columns, dark=dark)

    @cached_property
    def _prepared(self) -> query.Prepared:
        """Computed at the first query and kept: at most the size of the counters again, for cells a few times that."""
        return query.prepare(self.plan, self.counters, self.counts, draws=self.draws)
