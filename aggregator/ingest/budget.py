"""The ledger's charge for a window, before anything of it may be taken or let in."""

import asyncio
import math
from collections.abc import Awaitable, Callable
from typing import Final

from aggregator import errors
from aggregator.errors import (
    FAILED,
    NO_BUDGET,
    NOT_CHARGED,
    NOT_YET,
    AggregatorError,
    RefusedError,
    StoreUnavailableError,
    WindowNotBegunError,
    WindowOrderError,
    not_begun,
    refused,
    unavailable,
)
from aggregator.ingest.group_commit import NEVER_OPEN
from aggregator.ingest.inflight import InflightDelta, VerdictResolver
from aggregator.ingest.window_tracker import WindowTracker
from aggregator.logs import FailureLog, journal
from aggregator.runtime import TRANSIENT, Runtime, within
from aggregator.windows import OVER
from hushsum.errors import BudgetError
from hushsum_proto.answers import Answer, Refusal, ServiceReason

ASK_S: Final = 20.0  # how long the store is waited for
#: How long an answer of the ledger is believed: a store that was set back to an older copy behind a process that goes
#: on has lost charges, and may do so between two looks at it. Asking again is one small transaction a window.
BELIEVED_S: Final = 5.0

_Told = bool | AggregatorError


class CollectionBudget:
    """What one process knows to be paid for, or affordable, for a while.

    Those that ask for one window at once share one question to the store.

    Args:
        ask: The question: :meth:`Store.charge_collection` of a local plan, whose windows are charged before their first
            submission; :meth:`Store.check_collection` of a secure one, whose windows are charged before the first
            vector is asked for.
        runtime: Tasks and time.
    """

    def __init__(self, ask: Callable[[int], Awaitable[None]], runtime: Runtime) -> None:
        self._question = ask
        self._runtime = runtime
        self._paid: dict[int, float] = {}  # until when it is believed
        self._era = 0
        self._asked: dict[int, asyncio.Future[_Told]] = {}

    def is_covered(self, window: int) -> bool:
        """Whether it is known to be paid for."""
        return self._runtime.monotonic() < self._paid.get(window, -math.inf)

    def forget(self) -> None:
        """The store may have gone back to before what it said, or is about to say: it is asked again."""
        self._paid.clear()
        self._era += 1

    def forget_before(self, window: int) -> None:
        """Forgets what older windows cost: asked for again, the store says that they are over."""
        self._paid = {paid: until_s for paid, until_s in self._paid.items() if paid >= window}

    async def covered(self, window: int) -> bool:
        """Asks the ledger for a window; what was charged stays, whatever is collected.

        Returns:
            Whether it pays; False: the window is not open, or not any more.

        Raises:
            RefusedError: The ledger's limits do not allow it, or the window has not begun.
            AggregatorError: The store does not say.
        """
        if self.is_covered(window):
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
            await asked(self._question(window), self._runtime)
        except WindowOrderError:
            return False
        except AggregatorError as error:
            return error
        return True


async def asked(question: Awaitable[None], runtime: Runtime) -> None:
    """Waits for the ledger's word, for so long at most.

    Raises:
        RefusedError: Its limits do not allow it, or the window has not begun by the store's clock.
        StoreUnavailableError: It does not say; what it was asked for may be done.
    """
    try:
        await within(ASK_S, question, runtime=runtime)
    except BudgetError as error:
        raise RefusedError(Refusal.of(ServiceReason.BUDGET, NO_BUDGET)) from error
    except WindowNotBegunError as error:
        raise RefusedError(not_begun(error.wait_ms)) from error
    except TimeoutError as error:
        raise StoreUnavailableError(f"the ledger has not answered in {ASK_S:g} s") from error


_journal = journal("gateway")


class WindowCharging:
    """Has windows paid for, and knows what to say of those for which nothing is taken.

    Args:
        charges: What is paid for.
        window_tracker: Which windows are open.
        resolver: The folds' word, for those that are over.
        runtime: The clock.
    """

    def __init__(
        self, charges: CollectionBudget, window_tracker: WindowTracker, resolver: VerdictResolver, runtime: Runtime
    ) -> None:
        self._charges = charges
        self._window_tracker = window_tracker
        self._resolver = resolver
        self._runtime = runtime
        self._unpaid = FailureLog(_journal)

    def has_paid(self, window: int) -> bool:
        """Whether it is known to be paid for: then what comes for it may be appended at once."""
        if self._window_tracker.state(window) is None:  # a store that went back has lost it, and with it the charge
            self._charges.forget()
        return self._charges.is_covered(window)

    async def answer(self, inflight: InflightDelta) -> Answer | None:
        """None: its window is paid for, and it may be appended. Else what its senders are told; never an exception."""
        window, id = inflight.window, inflight.key.id
        try:
            answer = await self._answer(inflight)
        except RefusedError as error:
            return refused(id, error.refusal)
        except Exception as error:  # noqa: BLE001  whatever the store says, every sender gets its answer
            passes = isinstance(error, TRANSIENT)
            self._unpaid.failed(self._runtime.monotonic(), f"window {window} is not charged", error, passes=passes)
            return unavailable(id, NOT_CHARGED if passes else FAILED)
        self._unpaid.worked(self._runtime.monotonic(), "windows are charged again")
        return answer

    async def _answer(self, inflight: InflightDelta) -> Answer | None:
        window = inflight.window
        await self._window_tracker.ensure([window])
        if self._window_tracker.state(window) in NEVER_OPEN:
            raise RefusedError(errors.never_open())
        if await self._charges.covered(window):
            self._charges.forget_before(self._window_tracker.accepted().start - 1)
            return None
        await self._window_tracker.refresh([window])
        if self._window_tracker.state(window) in OVER:
            return await self._resolver.answer(inflight, None)
        return unavailable(inflight.key.id, NOT_YET)  # it closes: an earlier copy of it may still be counted
