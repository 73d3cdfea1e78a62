"""Which process is struck, how, when, and for how long: drawn from a seed."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from simulator.faults.cluster import Victim

_DOWN_S_MAX: Final = 1.5
_PAUSED_S: Final = (0.3, 5.0)  # often past the leases of the run


class Means(StrEnum):
    """How."""

    KILL = "kill -9"
    PAUSE = "SIGSTOP"


@dataclass(frozen=True)
class Strike:
    """One fault.

    Attributes:
        after_s: Since the round's begin.
        for_s: Until it is started again, or goes on.
    """

    victim: str
    means: Means
    after_s: float
    for_s: float

    def __str__(self) -> str:
        return f"{self.victim} {self.means} at {self.after_s:.1f} s for {self.for_s:.1f} s"


class Deck:
    """Every victim by every means once, in random order, and then all of them anew.

    Args:
        victims: Names.
        seed: Of everything that is drawn.
    """

    def __init__(self, victims: Sequence[str], seed: int) -> None:
        self._victims = list(victims)
        self._random = random.Random(seed)
        self._cards: list[tuple[str, Means]] = []

    def strikes(self, count: int, within_s: float) -> list[Strike]:
        """So many, of victims that all differ, at any moment of the given time, in their order."""
        assert count <= len(self._victims), "each at most once"
        drawn: dict[str, Means] = {}
        kept: list[tuple[str, Means]] = []
        while len(drawn) < count:
            if not self._cards:
                self._cards = [(victim, means) for victim in self._victims for means in Means]
                self._random.shuffle(self._cards)
            victim, means = self._cards.pop()
            if victim in drawn:
                kept.append((victim, means))
            else:
                drawn[victim] = means
        self._cards += kept  # they come first the next time
        strikes = [
            Strike(victim, means, self._random.uniform(0, within_s), self._for_s(means))
            for victim, means in drawn.items()
        ]
        return sorted(strikes, key=lambda strike: strike.after_s)

    def _for_s(self, means: Means) -> float:
        return self._random.uniform(0, _DOWN_S_MAX) if means is Means.KILL else self._random.uniform(*_PAUSED_S)


async def carry_out(strike: Strike, victim: Victim) -> None:
    """Waits for its moment, strikes, and puts things right after its time."""
    await asyncio.sleep(strike.after_s)
    if not victim.is_running:
        return  # it has ended by itself: that is told elsewhere
    if strike.means is Means.KILL:
        await asyncio.to_thread(victim.kill)
        await asyncio.sleep(strike.for_s)
        await asyncio.to_thread(victim.start)
    else:
        await asyncio.to_thread(victim.pause)
        try:
            await asyncio.sleep(strike.for_s)
        finally:
            await asyncio.to_thread(victim.resume)
