"""What rounds ask of the store: that no client is in two of them, and that the ledger pays before a vector is sent."""

from collections.abc import Callable

from aggregator.ingest.budget import ASK_S, asked
from aggregator.logs import FailureLog, journal
from aggregator.model import RoundMembers
from aggregator.runtime import TRANSIENT, Backoff, Runtime, within
from aggregator.store.store import Store
from hushsum.plan import Plan

_journal = journal("secure sums")


class RoundClaims:
    """The claims and charges of one plan's rounds.

    Args:
        plan: Of mode ``secure``.
        store: Where they are kept, for all gateways.
        runtime: Tasks and time.
    """

    def __init__(self, plan: Plan, store: Store, runtime: Runtime) -> None:
        self._plan = plan
        self._store = store
        self._runtime = runtime

    async def claim(self, window: int, members: RoundMembers, is_wanted: Callable[[], bool]) -> frozenset[str]:
        """Claims the members of a round that begins.

        It is tried until it works, with the same members: a cohort is drawn at random, and is not drawn again.

        Args:
            window: Of the round.
            members: Of the round.
            is_wanted: Whether to go on.

        Returns:
            Those of whom another round may have a vector of this window, or that were drawn too often.
        """
        backoff, trouble = Backoff(), FailureLog(_journal)
        while is_wanted():
            work = self._store.claim_clients(self._plan.id, window, members)
            try:
                return await within(ASK_S, work, runtime=self._runtime)
            except (TimeoutError, *TRANSIENT) as error:
                trouble.failed(self._runtime.monotonic(), "a cohort waits for the store", error, passes=True)
            await self._runtime.sleep(backoff.next_s())
        return frozenset()

    async def charge(self, window: int, members: RoundMembers) -> None:
        """Has the window charged, and fixes that its members' vectors belong to this round alone.

        Raises:
            RefusedError: The ledger does not pay, or the window has not begun.
            WindowOrderError: The window is not open.
            ClaimLostError: Members are in another round by now.
            StoreUnavailableError: The store does not say: it may be done.
        """
        await asked(self._store.charge_collection(self._plan, window, members), self._runtime)

    async def release(self, window: int, members: RoundMembers) -> None:
        """Lets members of whose vector nothing came into other rounds; where the store is away, they stay out."""
        try:
            work = self._store.release_clients(self._plan.id, window, members)
            await within(ASK_S, work, runtime=self._runtime)
        except (TimeoutError, *TRANSIENT) as error:
            _journal.warning("members of a round are in no other of its window", window=window, error=str(error))
