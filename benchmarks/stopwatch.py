"""Medians of runs that take turns, so that a busy moment of the machine falls on all of them alike."""

import gc
import statistics
import time
from collections.abc import Callable, Mapping

Case = Callable[[], object]


def medians(cases: Mapping[str, Case], *, repeats: int) -> dict[str, float]:
    """Median seconds of each case over ``repeats`` rounds, after one round that is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for case in cases.values():
        case()
    gc.disable()
    try:
        for _ in range(repeats):
            for name, case in cases.items():
                start = time.perf_counter()
                case()
                seconds[name].append(time.perf_counter() - start)
    finally:
        gc.enable()
    return {name: statistics.median(values) for name, values in seconds.items()}
