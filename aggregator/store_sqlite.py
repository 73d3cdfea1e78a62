"""The store in an SQLite file: one transaction a change, durable when it returns (see :class:`aggregator.ports.Store`).

Two connections: what writes, and what reads beside it, so that the read that an acknowledgement needs never waits for a
checkpoint. A read sees every transaction that was committed before it began.
"""

from pathlib import Path
from typing import Self

from aggregator import store_folds, store_outcomes, store_windows
from aggregator.fold_state import Checkpoint, FoldState
from aggregator.ports import Outcome, Runtime, SealedWindow, StoredOutcome
from aggregator.sqlite import Database
from aggregator.store_schema import STORE_FILE
from hushsum.entropy import Entropy
from hushsum.plan import Plan
from hushsum.privacy.account import Account
from hushsum.privacy.event import Spend


class SqliteStore:
    """Made by :meth:`open`."""

    def __init__(self, writer: Database, reader: Database) -> None:
        self._writer, self._reader = writer, reader

    @classmethod
    async def open(cls, path: Path, runtime: Runtime) -> Self:
        """Opens the file, and makes it where it is not there.

        Raises:
            StoreError: Not a store, a newer format, or no durability here.
        """
        writer = Database(STORE_FILE, await runtime.blocking(STORE_FILE.open_writing, path), runtime)
        try:
            reader = Database(STORE_FILE, await runtime.blocking(STORE_FILE.open_reading, path), runtime)
        except BaseException:
            await writer.close()
            raise
        return cls(writer, reader)

    async def close(self) -> None:
        """Closes the file, after what is under way."""
        await self._reader.close()
        await self._writer.close()

    # ----------------------------------------------------------------------------------------------------- plans

    async def register(self, plan: Plan, partitions: int, first_window: int) -> None:
        """Registers a plan once; another time only P is compared."""
        await self._writer.write(lambda db: store_outcomes.register(db, plan, partitions, first_window))

    async def load_plan(self, plan_id: bytes) -> Plan | None:
        """The plan of an id."""
        return await self._plan("SELECT bytes FROM plans WHERE id = ?", plan_id)

    async def plan_named(self, name: str) -> Plan | None:
        """The plan of a name."""
        return await self._plan("SELECT bytes FROM plans WHERE name = ?", name)

    async def _plan(self, query: str, key: bytes | str) -> Plan | None:
        row = await self._reader.read(lambda db: db.execute(query, (key,)).fetchone())
        return None if row is None else Plan.from_bytes(row[0])

    # --------------------------------------------------------------------------------------------------- windows

    async def open_windows(self, plan_id: bytes, first: int, last: int) -> None:
        """Records that a gateway has these windows open."""
        await self._writer.write(lambda db: store_windows.open_windows(db, plan_id, first, last))

    async def windows(self, plan_id: bytes) -> dict[int, str]:
        """State of every window there ever was."""
        return await self.states(plan_id, -(2**63), 2**63 - 1)

    async def states(self, plan_id: bytes, first: int, last: int) -> dict[int, str]:
        """State by window from ``first`` to ``last``."""
        return await self._reader.read(lambda db: store_windows.states(db, plan_id, first, last))

    async def unfinished(self, plan_id: bytes) -> dict[int, str]:
        """State by window of those that wait for their outcome."""
        return await self._reader.read(lambda db: store_windows.unfinished(db, plan_id))

    async def first_window(self, plan_id: bytes) -> int:
        """The window in which the plan was registered."""
        return await self._reader.read(lambda db: store_windows.first_window(db, plan_id))

    async def mark_closing(self, plan_id: bytes, window: int) -> None:
        """From here on no gateway acknowledges for the window; older ones that nobody opened are skipped."""
        await self._writer.write(lambda db: store_windows.mark_closing(db, plan_id, window))

    # ----------------------------------------------------------------------------------------------------- folds

    async def load_fold(self, plan: Plan, partition: int) -> FoldState | None:
        """The state of a partition's fold."""
        return await self._reader.read(lambda db: store_folds.load(db, plan, partition))

    async def checkpoint(self, plan: Plan, partition: int, change: Checkpoint) -> None:
        """Makes what is stored what the fold is."""
        await self._writer.write(lambda db: store_folds.checkpoint(db, plan.id, partition, change))

    async def positions(self, plan_id: bytes) -> dict[int, int]:
        """The stored position of each partition."""
        query = "SELECT partition, position FROM partitions WHERE plan = (SELECT number FROM plans WHERE id = ?)"
        return dict(await self._reader.read(lambda db: db.execute(query, (plan_id,)).fetchall()))

    async def sealed_window(self, plan: Plan, window: int) -> SealedWindow | None:
        """Sum and number of clients of a window over all partitions, once every one has stored it as sealed."""
        return await self._reader.read(lambda db: store_folds.sealed_window(db, plan, window))

    async def forget(self, plan: Plan, window: int) -> None:
        """Erases the counters of windows up to this one, from the file too."""
        await self._writer.write(lambda db: store_folds.forget(db, plan.id, window))
        await self._writer.truncate()

    # -------------------------------------------------------------------------------------------------- outcomes

    async def reserve_outcome(self, plan: Plan, kind: str, window: int, digest: bytes, entropy: Entropy) -> bytes:
        """Charges an outcome and fixes the key of all its randomness, both or neither; once."""
        return await self._writer.write(
            lambda db: store_outcomes.reserve_outcome(db, plan, kind, window, digest, entropy)
        )

    async def commit_outcome(self, plan: Plan, kind: str, window: int, data: bytes, *, withheld: bool = False) -> None:
        """Stores an outcome and erases its key, from the file too; where a reader prevents that, `forget` does it."""
        await self._writer.write(
            lambda db: store_outcomes.commit_outcome(db, plan, kind, window, data, withheld=withheld)
        )
        await self._writer.try_truncate()

    async def publish(self, plan_id: bytes, kind: str, window: int) -> None:
        """Lets everybody see an outcome."""
        await self._writer.write(lambda db: store_outcomes.publish(db, plan_id, kind, window))

    async def outcomes(self, plan_id: bytes) -> list[Outcome]:
        """All outcomes, without their bytes."""
        return await self._reader.read(lambda db: store_outcomes.outcomes(db, plan_id))

    async def outcome(self, plan_id: bytes, kind: str, window: int) -> StoredOutcome | None:
        """One published outcome."""
        found = await self._reader.read(
            lambda db: store_outcomes.whole_outcomes(db, plan_id, published=True, window=window)
        )
        return next((outcome for outcome in found if outcome.kind == kind), None)

    async def unpublished(self, plan_id: bytes) -> list[StoredOutcome]:
        """Outcomes that nobody may see yet."""
        return await self._reader.read(lambda db: store_outcomes.whole_outcomes(db, plan_id, published=False))

    async def account(self, population: str) -> Account:
        """A population's limits and spends."""
        return await self._reader.read(lambda db: store_outcomes.account(db, population))

    async def count_spend(self, spend: Spend) -> None:
        """Adds a spend that a receipt proves."""
        await self._writer.write(lambda db: store_outcomes.count_spend(db, spend))
