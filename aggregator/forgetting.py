"""Erases what was sent for windows that have their outcome, and keeps at it until nothing of it is left in any file.

Folds, log and store forget in this order, each independent of how the one before it fared. What fails (somebody reads
an old moment of a file, and so keeps its erased bytes in the write-ahead log) is told, and tried again: by every later
pass of the releaser, by every seal and release, and by the next start. A release never waits for it, nor fails by it.
"""

import asyncio
from collections.abc import Awaitable
from typing import Final, TypeVar

from aggregator.errors import AggregatorError, FencedError
from aggregator.releaser_ports import ReleaserPorts
from hushsum.plan import Plan

T = TypeVar("T")

_PAUSE_S: Final = 1.0  # after the first failure; twice as long after each further one, for each try holds up appends
_PAUSE_MAX_S: Final = 16.0


class Forgetting:
    """What is to be forgotten of one plan, and whether it is, under one releaser's fence.

    Attributes:
        pending: Why something is not forgotten yet; empty where all is.
    """

    def __init__(self, plan: Plan, ports: ReleaserPorts, *, fence: int) -> None:
        self.pending = ""
        self._plan, self._fence = plan, fence
        self._log, self._store, self._folds = ports.log, ports.store, ports.folds
        self._runtime, self._observer, self._tracer = ports.runtime, ports.observer, ports.tracer
        self._through: int | None = None  # the last window to forget
        self._forgotten: int | None = None  # the last one of which nothing is left
        # Kept for a window's repeated tries, so that they ask for the same; None: to be looked up.
        self._below: dict[int, int] | None = None
        self._store_done = False
        self._failures, self._not_before_s = 0, 0.0

    def add(self, window: int) -> None:
        """Every window up to this one is published (or was skipped), and is to be forgotten."""
        if self._through is None or window > self._through:
            self._through = window
            self._below, self._store_done = None, False

    async def attempt(self, *, patient: bool = False) -> None:
        """Forgets what is to be forgotten, if anything is; what fails is told to the observer, and not raised.

        Args:
            patient: Leaves a pause after a failure, which grows; for a caller that comes every second.

        Raises:
            FencedError: Another process releases now, and forgets.
        """
        if self._through is None or self._through == self._forgotten:
            return
        if patient and self._runtime.monotonic() < self._not_before_s:
            return
        window = self._through
        try:
            with self._tracer.span("forget", window=window) as span:
                problems = await self._forget(window)
                span.note(problems=len(problems))
        except asyncio.CancelledError:
            self._tell(f"window {window}: the call that forgot it was given up")
            raise
        if problems:
            self._tell(f"window {window}: {'; '.join(problems)}")
            pause_s = min(_PAUSE_S * 2**self._failures, _PAUSE_MAX_S)
            self._failures = min(self._failures + 1, 10)
            self._not_before_s = self._runtime.monotonic() + pause_s
            return
        self._forgotten, self._failures, self._not_before_s = window, 0, 0.0
        self._tell("")

    async def _forget(self, window: int) -> list[str]:
        """Why it did not succeed. The folds first: what they have stored needs no replay."""
        problems: list[str] = []
        if self._below is None:
            below = await _tried(self._positions(window), problems)
            if below is None:
                return problems
            self._below = below
        await _tried(self._log.forget(window, self._below), problems)
        if not self._store_done:
            known = len(problems)
            await _tried(self._store.forget(self._plan, window, fence=self._fence), problems)
            self._store_done = len(problems) == known
        return problems

    async def _positions(self, window: int) -> dict[int, int]:
        await self._folds.forget(window, fence=self._fence)
        marks = await self._store.fold_marks(self._plan.id)
        return {partition: mark.position for partition, mark in marks.items()}

    def _tell(self, why: str) -> None:
        if why != self.pending:
            self.pending = why
            self._observer.forgetting_pending(why)


async def _tried(work: Awaitable[T], problems: list[str]) -> T | None:
    try:
        return await work
    except FencedError:
        raise
    except AggregatorError as error:
        problems.append(str(error))
        return None
