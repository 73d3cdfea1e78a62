"""The ledger's charge for a window, before anything of it is collected."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Final

from aggregator.errors import (
    NO_BUDGET,
    AggregatorError,
    RefusedError,
    StoreUnavailableError,
    WindowNotBegunError,
    WindowOrderError,
    not_begun,
)
from aggregator.runtime import Runtime, within
from hushsum.errors import BudgetError
from hushsum_proto.answers import Refusal, ServiceReason

ASK_S: Final = 20.0  # how long the store is waited for
#: How long an answer of the ledger is believed: a store that was set back to an older copy behind a process that goes
#: on has lost charges, and may do so between two looks at it. Asking again is one small transaction a window.
BELIEVED_S: Final = 5.0


class CollectionBudget:
    """The windows that one process knows to be paid for, or affordable, for :data:`BELIEVED_S`.

    Concurrent questions for one window are one question to the store: :meth:`Store.charge_collection` for a local plan,
    whose windows are charged before their first submission; :meth:`Store.check_collection` for a secure one, whose
    windows are charged before the first vector is asked for.
    """

    def __init__(self, ask: Callable[[int], Awaitable[None]], runtime: Runtime) -> None:
        self._question = ask
        self._runtime = runtime
        self._paid: dict[int, float] = {}  # until when it is believed
        self._era = 0
        self._asked: dict[int, asyncio.Future[bool | AggregatorError]] = {}

    def is_covered(self, window: int) -> bool:
        return self._runtime.monotonic() < self._paid.get(window, -math.inf)

    def forget(self) -> None:
        """The store may have gone back to before what it said, or is about to say: it is asked again."""
        self._paid.clear()
        self._era += 1

    def forget_before(self, window: int) -> None:
        """Forgets older windows; asked again, the store says that they are over."""
        self._paid = {paid: until_s for paid, until_s in self._paid.items() if paid >= window}

    async def covered(self, window: int) -> bool:
        """Asks the ledger for a window; a charge stays, whatever is collected.

        Returns:
            Whether it pays; False: the window is not open, or not any more.

        Raises:
            RefusedError: The ledger's limits do not allow it, or the window has not begun.
            AggregatorError: The store does not say.
        """
        if self.is_covered(window):
            return True
        pending = self._asked.get(window)
        if pending is None:
            pending = self._asked[window] = asyncio.get_running_loop().create_future()
            self._runtime.spawn(self._ask(window, pending), "charge")
        result = await asyncio.shield(pending)
        if isinstance(result, AggregatorError):
            raise result
        return result

    async def _ask(self, window: int, pending: "asyncio.Future[bool | AggregatorError]") -> None:
        result: bool | AggregatorError = StoreUnavailableError("the charge request was abandoned")
        asked_s, era = self._runtime.monotonic(), self._era
        try:
            await asked(self._question(window), self._runtime)
            result = True
            if era == self._era:
                self._paid[window] = asked_s + BELIEVED_S
        except WindowOrderError:
            result = False
        except AggregatorError as error:
            result = error
        finally:
            del self._asked[window]
            pending.set_result(result)


async def asked(question: Awaitable[None], runtime: Runtime) -> None:
    """Waits for the ledger's answer, :data:`ASK_S` at most.

    Raises:
        RefusedError: Its limits do not allow it, or the window has not begun by the store's clock.
        StoreUnavailableError: There is no answer; what was asked for may be done.
    """
    try:
        await within(ASK_S, question, runtime=runtime)
    except BudgetError as error:
        raise RefusedError(Refusal.of(ServiceReason.BUDGET, NO_BUDGET)) from error
    except WindowNotBegunError as error:
        raise RefusedError(not_begun(error.wait_ms)) from error
    except TimeoutError as error:
        raise StoreUnavailableError(f"the ledger did not respond within {ASK_S:g} s") from error
