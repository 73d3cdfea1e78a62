"""Windows that the ledger pays for before anything of them is taken (PRIVACY: the ledger)."""

import asyncio
from typing import Final

from aggregator.errors import AggregatorError, StoreUnavailableError, WindowOrderError
from aggregator.ports import Runtime, Store
from aggregator.refusals import RefusedError
from aggregator.retries import within
from hushsum.errors import BudgetError
from hushsum.plan import Plan
from hushsum_proto.answers import Refusal, ServiceReason

ASK_S: Final = 20.0  # how long the store is waited for

_Told = bool | AggregatorError


class Charges:
    """What one process knows to be paid for. Those that ask for one window at once share one question to the store.

    Args:
        plan: Of mode ``secure`` or ``local``.
        store: Where the ledger is.
        runtime: Tasks and time.
    """

    def __init__(self, plan: Plan, store: Store, runtime: Runtime) -> None:
        self._plan = plan
        self._store = store
        self._runtime = runtime
        self._paid: set[int] = set()
        self._asked: dict[int, asyncio.Future[_Told]] = {}

    def has_paid(self, window: int) -> bool:
        """Whether it is known to be paid for."""
        return window in self._paid

    def forget_before(self, window: int) -> None:
        """Forgets what older windows cost: asked for again, the store says that they are over."""
        self._paid = {paid for paid in self._paid if paid >= window}

    async def pay(self, window: int) -> bool:
        """Lets the ledger pay for a window; what was charged stays, whatever is collected.

        Returns:
            Whether it is paid; False: the window is not open, or not any more.

        Raises:
            RefusedError: The ledger's limits do not allow it.
            AggregatorError: The store does not say.
        """
        if window in self._paid:
            return True
        told = self._asked.get(window)
        if told is None:
            told = self._asked[window] = asyncio.get_running_loop().create_future()
            self._runtime.spawn(self._ask(window, told), "charge")
        said = await asyncio.shield(told)
        if isinstance(said, AggregatorError):
            raise said
        return said

    async def _ask(self, window: int, told: "asyncio.Future[_Told]") -> None:
        said: _Told = StoreUnavailableError("the question for the charge was given up")
        try:
            said = await self._answer(window)
            if said is True:
                self._paid.add(window)
        finally:
            del self._asked[window]
            told.set_result(said)

    async def _answer(self, window: int) -> _Told:
        try:
            await within(ASK_S, self._store.charge_collection(self._plan, window), runtime=self._runtime)
        except BudgetError as error:
            return RefusedError(Refusal.of(ServiceReason.BUDGET, str(error)))
        except WindowOrderError:
            return False
        except TimeoutError:
            return StoreUnavailableError(f"the ledger has not answered in {ASK_S:g} s")
        except AggregatorError as error:
            return error
        return True
