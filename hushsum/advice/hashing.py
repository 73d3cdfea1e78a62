"""How far hashing alone puts answers off: measured on made-up records, scaled to other rows and numbers of records.

All through the protocol of families: exact counters of the stand-in, and the standard errors that answers state for
them. Of n records that lie like the stand-in's, independently, the variance of an answer is C·n² + D·n: C of pairs of
records that rows put together, D of single records. A sketch of all records and those of its quarters tell both.

Over rows it goes as 1/R, but for Sobol rows. Theirs is measured in sets of 1, 2, 4 … rows, as many sets as are
affordable; between these it goes as a power of the rows, and beyond 1,024 rows a set as 1/R, which is more than true.

Records that lie otherwise err otherwise: of those in several clusters 0.75 to 1.0 times as much was seen, of real ones
(colours, places, pulsars) 1.0 to 1.4 times, and of models up to 1.8 times, with where their records lie.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hushsum.advice.sizes import row_unit, rows_of, with_rows
from hushsum.advice.stand_in import StandIn
from hushsum.families import Answer, Family
from hushsum.plan import Plan

_SEED: Final = 1_618_033
_ROWS: Final = 2048  # that are measured: the error is then known within about 5 %, unless few rows make most of it
_SET_ROWS_MAX: Final = 1024
_SETS: Final = (16, 512)  # of Sobol rows, least and most
_PARTS: Final = 4


@dataclass(frozen=True)
class Spread:
    """The variance of an answer of n records that is due to hashing, C·n² + D·n, averaged over the queries.

    Attributes:
        pairs: C.
        single: D.
    """

    pairs: float
    single: float

    def variance(self, records: float) -> float:
        """In records²."""
        return records * (records * self.pairs + self.single)


class Hashing:
    """The hashing error of a plan's answers at a stand-in's queries, for any number of rows.

    Args:
        plan: Whose rows are changed.
        population: What it is measured on.
    """

    def __init__(self, plan: Plan, population: StandIn) -> None:
        self._plan, self._population = plan, population
        self._unit, self._rows = row_unit(plan), rows_of(plan)
        self._sobol = plan.family.to_fields().get("draws") == "sobol"
        self._of_sets: dict[int, Spread] = {}

    def variance(self, rows: int | None, records: float) -> float:
        """Of an answer of so many records: what hashing adds to it, in records²; 0 where nothing is drawn."""
        if rows is None or not self._drawn:
            return 0.0
        if not self._sobol:
            return self._independent.variance(records) / rows
        each = rows / (self._unit or 1)  # of a set
        known = min(each, float(_SET_ROWS_MAX))
        low = 1 << int(math.log2(known))
        share = math.log2(known / low)
        first = self._sobol_sets(low).variance(records)
        last = self._sobol_sets(2 * low).variance(records) if share else first
        between = first ** (1 - share) * last**share if min(first, last) > 0 else max(first, last)
        return float(between * known / each)

    def noise_weight(self, family: Family) -> float:
        """What noise of variance 1 on every counter adds to an answer's variance, averaged over the queries.

        Args:
            family: The plan's at the number of rows that is asked for.
        """
        if self._rows is not None:
            return family.answer_variance(1.0)
        # Counters without rows are read with weights that differ from query to query: the family states the largest.
        return float(np.square(_answer(family, self._population.queries, 1.0).std_error).mean())

    @cached_property
    def _drawn(self) -> bool:
        """Whether rows differ: else the noise alone is uncertain."""
        several = self._plan if self._unit is None or self._sobol else with_rows(self._plan, _ROWS)
        return _answer(several.family, self._population.queries, 0.0).spread != "noise"

    @cached_property
    def _independent(self) -> Spread:
        """Of one row."""
        rows = self._rows if self._unit is None else _ROWS
        found = self._spread(with_rows(self._plan, rows, seed=_SEED if rows == _ROWS else None).family)
        return Spread(found.pairs * (rows or 1), found.single * (rows or 1))

    def _sobol_sets(self, each: int) -> Spread:
        """Of the plan's number of sets of so many rows each."""
        if each not in self._of_sets:
            least, most = _SETS
            sets = min(most, max(least, _ROWS // each))
            family = with_rows(self._plan, sets * each, sobol_sets=sets, seed=_SEED).family
            found, scale = self._spread(family), sets / (self._unit or 1)
            self._of_sets[each] = Spread(found.pairs * scale, found.single * scale)
        return self._of_sets[each]

    def _spread(self, family: Family) -> Spread:
        """Of C + D/n for all records and those of a quarter, which is C + 4D/n."""
        accepted, _ = family.accept(self._population.records)
        n, total, of_parts = len(accepted), np.zeros(family.shape, np.int64), 0.0
        ends = [n * part // _PARTS for part in range(_PARTS + 1)]
        for start, stop in pairwise(ends):
            counters = np.zeros(family.shape, np.int64)
            family.add(counters, accepted[start:stop])
            of_parts += self._variance(family, counters, stop - start) / _PARTS
            total += counters
        of_all = self._variance(family, total, n)
        single = max(0.0, of_parts - of_all) * n / (_PARTS - 1)
        return Spread(max(0.0, of_all - single / n), single)

    def _variance(self, family: Family, counters: npt.NDArray[np.int64], records: int) -> float:
        """Of an answer over its number of records."""
        answer = _answer(family, self._population.queries, 0.0, counters)
        return float(np.square(answer.std_error / max(1, records)).mean())


def _answer(family: Family, queries: Any, noise: float, counters: npt.NDArray[np.int64] | None = None) -> Answer:
    stored = np.zeros(family.shape, np.int64) if counters is None else counters
    return family.answer(stored, queries, noise_variance=noise)
