"""Cases that take turns in short rounds, so that a busy moment of the machine falls on all of them alike."""

import gc
import statistics
import time
from collections.abc import Callable, Iterable, Mapping

Case = Callable[[], object]


class Rounds:
    """Seconds of each case in each of some rounds, after one round that is not counted.

    Args:
        cases: By name.
        repeats: Number of rounds.
        clock: In seconds; the process's CPU time is not disturbed by what else runs.
    """

    def __init__(
        self, cases: Mapping[str, Case], *, repeats: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._seconds: dict[str, list[float]] = {name: [] for name in cases}
        for case in cases.values():
            case()
        gc.disable()
        try:
            for _ in range(repeats):
                for name, case in cases.items():
                    start = clock()
                    case()
                    self._seconds[name].append(clock() - start)
        finally:
            gc.enable()

    def seconds(self, *names: str) -> float:
        """The median over the rounds of the sum of some cases."""
        return statistics.median(self._sums(names))

    def ratio(self, over: Iterable[str], under: Iterable[str]) -> float:
        """The median over the rounds of one sum of cases in units of another, in the same round."""
        return statistics.median(a / b for a, b in zip(self._sums(over), self._sums(under), strict=True))

    def best(self, names: Iterable[str]) -> str:
        """The case with the least median."""
        return min(names, key=self.seconds)

    def _sums(self, names: Iterable[str]) -> list[float]:
        return [sum(parts) for parts in zip(*(self._seconds[name] for name in names), strict=True)]
