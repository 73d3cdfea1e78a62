"""Windows that the ledger pays for before anything of them is taken (PRIVACY: the ledger)."""

import asyncio
import math
from typing import Final

from aggregator.errors import AggregatorError, StoreUnavailableError, WindowOrderError
from aggregator.ports import Runtime, Store
from aggregator.refusals import NO_BUDGET, RefusedError
from aggregator.retries import within
from hushsum.errors import BudgetError
from hushsum.plan import Plan
from hushsum_proto.answers import Refusal, ServiceReason

ASK_S: Final = 20.0  # how long the store is waited for
#: How long an answer of the ledger is believed: a store that was set back to an older copy behind a process that goes
#: on has lost charges, and may do so between two looks at it. Asking again is one small transaction a window.
BELIEVED_S: Final = 5.0

_Told = bool | AggregatorError


class Charges:
    """What one process knows to be paid for, for a while.

    Those that ask for one window at once share one question to the store.

    Args:
        plan: Of mode ``secure`` or ``local``.
        store: Where the ledger is.
        runtime: Tasks and time.
    """

    def __init__(self, plan: Plan, store: Store, runtime: Runtime) -> None:
        self._plan = plan
        self._store = store
        self._runtime = runtime
        self._paid: dict[int, float] = {}  # until when it is believed
        self._era = 0
        self._asked: dict[int, asyncio.Future[_Told]] = {}

    def has_paid(self, window: int) -> bool:
        """Whether it is known to be paid for."""
        return self._runtime.monotonic() < self._paid.get(window, -math.inf)

    def forget(self) -> None:
        """The store may have gone back to before what it said, or is about to say: it is asked again."""
        self._paid.clear()
        self._era += 1

    def forget_before(self, window: int) -> None:
        """Forgets what older windows cost: asked for again, the store says that they are over."""
        self._paid = {paid: until_s for paid, until_s in self._paid.items() if paid >= window}

    async def pay(self, window: int) -> bool:
        """Lets the ledger pay for a window; what was charged stays, whatever is collected.

        Returns:
            Whether it is paid; False: the window is not open, or not any more.

        Raises:
            RefusedError: The ledger's limits do not allow it.
            AggregatorError: The store does not say.
        """
        if self.has_paid(window):
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
        asked_s, era = self._runtime.monotonic(), self._era
        try:
            said = await self._answer(window)
            if said is True and era == self._era:
                self._paid[window] = asked_s + BELIEVED_S
        finally:
            del self._asked[window]
            told.set_result(said)

    async def _answer(self, window: int) -> _Told:
        try:
            await within(ASK_S, self._store.charge_collection(self._plan, window), runtime=self._runtime)
        except BudgetError:
            return RefusedError(Refusal.of(ServiceReason.BUDGET, NO_BUDGET))
        except WindowOrderError:
            return False
        except TimeoutError:
            return StoreUnavailableError(f"the ledger has not answered in {ASK_S:g} s")
        except AggregatorError as error:
            return error
        return True
