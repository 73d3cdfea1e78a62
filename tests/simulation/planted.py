"""Bugs that the simulation must find: each a wrapper between a process and the world, and nothing else changed."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, cast

from aggregator.errors import ReceiptsError
from aggregator.fold.state import Checkpoint
from aggregator.interfaces import Log
from aggregator.model import ClaimedFold, EntryBatch, NewEntry, ReceiptsMark, ReservedStep
from aggregator.release.receipts import Receipt
from aggregator.release.receipts_copy import CopiedReceipts
from aggregator.store.store import Store
from edge_client.spool.changes import Bind, Change, Result
from edge_client.spool.spool import Spool
from hushsum.entropy import KEY_BYTES, ReplayableEntropy
from hushsum.plan import Plan
from hushsum_proto.convert import entry_from_bytes
from hushsum_proto.entries import SealEntry
from tests.simulation.stage import Planted


class _Through:
    """Everything that is not changed goes straight through."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Unfenced(_Through):
    """Checkpoints are taken from whoever comes: each goes in under the highest number that was ever given out."""

    given: dict[int, int]

    async def claim_partition(self, plan: Plan, partition: int, owner: str) -> ClaimedFold | None:
        claimed: ClaimedFold | None = await self._inner.claim_partition(plan, partition, owner)
        if claimed is not None:
            self.given[partition] = max(claimed.fence, self.given.get(partition, 0))
        return claimed

    async def checkpoint(self, plan: Plan, partition: int, change: Checkpoint, *, fence: int) -> None:
        await self._inner.checkpoint(plan, partition, change, fence=max(fence, self.given.get(partition, 0)))


class _PositionApart(_Through):
    """Where the fold has come to is stored in a transaction of its own, before the counters."""

    async def checkpoint(self, plan: Plan, partition: int, change: Checkpoint, *, fence: int) -> None:
        mark = self._marks.get(partition)
        if mark is not None:
            position = replace(
                change,
                closed_through=mark[0],
                forgotten_through=mark[1],
                blocks=(),
                counts={},
                streams={},
                contributions={},
            )
            await self._inner.checkpoint(plan, partition, position, fence=fence)
        await self._inner.checkpoint(plan, partition, change, fence=fence)
        self._marks[partition] = (change.closed_through, change.forgotten_through)

    async def claim_partition(self, plan: Plan, partition: int, owner: str) -> ClaimedFold | None:
        claimed: ClaimedFold | None = await self._inner.claim_partition(plan, partition, owner)
        if claimed is not None:
            self._marks[partition] = (claimed.state.closed_through, claimed.state.forgotten_through)
        return claimed

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._marks: dict[int, tuple[int, int]] = {}


class _SealsOnePartition(_Through):
    """The seal is appended to the first partition alone."""

    async def append(self, entries: Sequence[NewEntry]) -> list[int]:
        seals = [entry for entry in entries if isinstance(entry_from_bytes(entry.data), SealEntry)]
        if not seals:
            positions: list[int] = await self._inner.append(entries)
            return positions
        (position,) = await self._inner.append(seals[:1])
        return [position] * len(entries)

    async def read(self, partition: int, position: int, limit: int, wait_s: float) -> EntryBatch:
        entry_batch: EntryBatch = await self._inner.read(partition, position, limit, wait_s)
        return entry_batch


class _DrawsAnew(_Through):
    """A step has another key at each reservation, although the first one is stored."""

    async def reserve_step(self, *arguments: Any, **keywords: Any) -> ReservedStep:
        reserved: ReservedStep = await self._inner.reserve_step(*arguments, **keywords)
        self._count += 1
        return reserved._replace(key=ReplayableEntropy(b"%d" % self._count).read(KEY_BYTES))

    _count = 0


class _BindsLater(_Through):
    """The window of a delta is written with the next change, when the delta is on its way."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._later: list[Change] = []

    def commit(self, changes: Sequence[Change]) -> list[Result]:
        spool, written = self._inner, [each for each in changes if not isinstance(each, Bind)]
        results = iter(spool.commit([*self._later, *written])[len(self._later) :])
        self._later = [each for each in changes if isinstance(each, Bind)]
        unwritten = spool._transaction_of(spool._database, spool._state)
        return [unwritten.take(each) if isinstance(each, Bind) else next(results) for each in changes]


class _Uncompared(CopiedReceipts):
    """The second sink is written, and never compared with the first."""

    async def check(self, bound: ReceiptsMark) -> str:
        return await self._first.check(bound)

    async def read(self) -> Sequence[Receipt]:
        return await self._first.read()

    async def begin(self) -> ReceiptsMark:
        mark = await self._first.begin()
        return replace(mark, copy=await self._mirror())

    async def _mirror(self) -> str:
        first, copy = await self._first.catch_up(), await self._copy.catch_up()
        there = {each.line for each in copy.kept}
        for each in first.kept:
            if each.line not in there:
                try:
                    await self._copy.append(each)
                except ReceiptsError:
                    continue  # the copy has another line in its place
        return copy.where


def _uncompared() -> Planted:
    return Planted(receipts_of=_Uncompared)


def _anew() -> Planted:
    return Planted(store_of=lambda store: cast("Store", _DrawsAnew(store)))


def _binds_later() -> Planted:
    return Planted(spool_of=lambda spool: cast("Spool", _BindsLater(spool)))


def _unfenced() -> Planted:
    given: dict[int, int] = {}

    def wrapped(store: Store) -> Store:
        through = _Unfenced(store)
        through.given = given
        return cast("Store", through)

    return Planted(store_of=wrapped)


def _apart() -> Planted:
    return Planted(store_of=lambda store: cast("Store", _PositionApart(store)))


def _eager() -> Planted:
    return Planted(eager=True)


def _one_partition() -> Planted:
    return Planted(log_of=lambda log: cast("Log", _SealsOnePartition(log)))


#: By what is wrong. Each is made anew for each run.
PLANTED: Final = {
    "checkpoints without a fence": _unfenced,
    "acknowledgements before the append is durable": _eager,
    "the position stored apart from the counters": _apart,
    "the seal appended to one partition only": _one_partition,
    "the second sink of receipts not compared": _uncompared,
    "a step of a cumulative sequence drawn with another key than the reserved one": _anew,
    "the window of a delta sent before it is written": _binds_later,
}
