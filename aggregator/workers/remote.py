"""The folds of other processes, by what they have stored: their marks are read while a caller waits for them."""

import asyncio
from collections.abc import Iterator
from copy import copy
from typing import Final, NamedTuple

from aggregator.errors import AggregatorError, FoldsBehindError
from aggregator.fold.deduplication import StreamState, recall
from aggregator.fold.state import FoldMark, StreamUse
from aggregator.fold.verdicts import RememberedKind
from aggregator.interfaces import FoldPeek, Observer
from aggregator.runtime import TRANSIENT, Backoff, Runtime, Watermark, within
from aggregator.store.store import Store
from hushsum.delta import DeltaId
from hushsum.errors import Reason
from hushsum.plan import Plan

_LOOK_FIRST_S: Final = 0.05
_LOOK_MOST_S: Final = 0.5  # between two looks, while nothing moves
FORGET_S: Final = 10.0
CLOSE_S: Final = 60.0


class _Marks(NamedTuple):
    """How far one partition's fold has come, as it has stored."""

    position: Watermark
    closed: Watermark
    forgotten: Watermark


class RemoteFolds:
    """The view that a gateway and a releaser have of folds that run elsewhere."""

    def __init__(self, plan: Plan, store: Store, runtime: Runtime, observer: Observer) -> None:
        self._plan = plan
        self._store = store
        self._runtime = runtime
        self._observer = observer
        self._marks: dict[int, _Marks] = {}
        self._waiting = 0
        self._hurry = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None

    async def stop(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait([self._looking])

    def peek(self, partition: int, client_id: str, id: DeltaId, digest: bytes, window: int) -> FoldPeek | None:
        del partition, client_id, id, digest, window
        return None

    def stream_uses(self) -> Iterator[StreamUse]:
        return iter(())

    async def passed(self, partition: int, position: int) -> None:
        """Returns once the partition has a checkpoint from beyond ``position``."""
        await self._reached(self._of(partition).position, position + 1)

    async def closed(self, partition: int, window: int) -> None:
        try:
            await within(CLOSE_S, self._reached(self._of(partition).closed, window), runtime=self._runtime)
        except TimeoutError:
            behind = f"the fold of partition {partition} did not close window {window} within {CLOSE_S:g} s"
            raise FoldsBehindError(behind) from None

    async def forget(self, window: int, *, fence: int) -> None:
        """Asks every fold to forget windows up to this one, and waits a while for all of them."""
        await self._store.ask_to_forget(self._plan.id, window, fence=fence)
        partitions = sorted(await self._store.fold_marks(self._plan.id))

        async def all_of_them() -> None:
            for partition in partitions:
                await self._reached(self._of(partition).forgotten, window)

        try:
            await within(FORGET_S, all_of_them(), runtime=self._runtime)
        except TimeoutError:
            behind = [partition for partition in partitions if self._of(partition).forgotten.value < window]
            raise FoldsBehindError(
                f"the folds of partitions {behind} did not erase window {window} within {FORGET_S:g} s"
            ) from None

    async def recall(
        self, partition: int, client_id: str, id: DeltaId, digest: bytes, window: int
    ) -> tuple[RememberedKind, Reason | None]:
        """What the latest checkpoint says of a delta, by the law of the fold itself."""
        memory = await self._store.stream_memory(self._plan.id, partition, client_id, id.stream)
        stream = None if memory.data is None else StreamState.from_bytes(memory.data)
        return recall(stream, memory.mark, id.sequence, digest, window)

    def _of(self, partition: int) -> _Marks:
        nothing = -(2**63)
        return self._marks.setdefault(partition, _Marks(Watermark(nothing), Watermark(nothing), Watermark(nothing)))

    async def _reached(self, watermark: Watermark, value: int) -> None:
        if watermark.value >= value:
            return
        self._waiting += 1
        self._hurry.set()
        if self._looking is None or self._looking.done():
            self._looking = self._runtime.spawn(self._look(), "fold-marks")
        try:
            await watermark.reached(value)
        finally:
            self._waiting -= 1

    async def _look(self) -> None:
        """Reads the marks of all partitions while there are waiters: more slowly while nothing moves."""
        backoff = Backoff(_LOOK_FIRST_S, _LOOK_MOST_S)
        while self._waiting:
            if self._hurry.is_set():
                self._hurry.clear()
                backoff.reset()
            try:
                if self._learn(await self._store.fold_marks(self._plan.id)):
                    backoff.reset()
            except TRANSIENT as error:
                self._observer.retried("fold_marks", str(error))
            except AggregatorError as error:
                self._give_up(error)
                return
            await self._runtime.sleep(backoff.next_s())

    def _learn(self, marks: dict[int, FoldMark]) -> bool:
        moved = False
        for partition, mark in marks.items():
            known = self._of(partition)
            for watermark, value in zip(known, mark, strict=True):
                moved = moved or value > watermark.value
                watermark.reach(value)
        return moved

    def _give_up(self, error: AggregatorError) -> None:
        """Fails all waiters; a later question begins to look again."""
        marks, self._marks = self._marks, {}
        for known in marks.values():
            for watermark in known:
                watermark.fail(lambda: copy(error))
