"""Makes a schedule that fails shorter, as long as it still fails (Zeller, Hildebrandt 2002, ddmin)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from tests.simulation.operations import Op, Schedule

TRIES_MAX: Final = 300


def shrunk(schedule: Schedule, fails: Callable[[Schedule], bool], tries_max: int = TRIES_MAX) -> Schedule:
    """A schedule of which no smaller part was found to fail.

    Args:
        schedule: One that fails.
        fails: Whether one does.
        tries_max: How many may be run.
    """
    parts, tries = 2, 0
    while len(schedule.ops) > 1 and parts <= len(schedule.ops) and tries < tries_max:
        smaller = None
        for kept in _complements(schedule.ops, parts):
            candidate = replace(schedule, ops=kept)
            tries += 1
            if fails(candidate):
                smaller = candidate
                break
            if tries >= tries_max:
                break
        if smaller is not None:
            schedule, parts = smaller, max(parts - 1, 2)
        elif parts == len(schedule.ops):
            break
        else:
            parts = min(2 * parts, len(schedule.ops))
    return schedule


def _complements(ops: tuple[Op, ...], parts: int) -> list[tuple[Op, ...]]:
    """All operations without one of so many parts of them."""
    edges = [len(ops) * part // parts for part in range(parts + 1)]
    return [ops[: edges[part]] + ops[edges[part + 1] :] for part in range(parts)]
