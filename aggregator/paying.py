"""The first delta of a window waits until the ledger has paid for that; what comes meanwhile waits for the same."""

from aggregator import refusals
from aggregator.charges import Charges
from aggregator.commits import NEVER_OPEN
from aggregator.flights import Flight
from aggregator.journal import Spell, journal
from aggregator.openings import Openings
from aggregator.ports import Runtime
from aggregator.refusals import FAILED, NOT_CHARGED, NOT_YET, RefusedError, refused, unavailable
from aggregator.retries import TRANSIENT
from aggregator.settling import Settling
from aggregator.windows import OVER
from hushsum_proto.answers import Answer

_journal = journal("gateway")


class Paying:
    """Has windows paid for, and knows what to say of those for which nothing is taken.

    Args:
        charges: What is paid for.
        openings: Which windows are open.
        settling: The folds' word, for those that are over.
        runtime: The clock.
    """

    def __init__(self, charges: Charges, openings: Openings, settling: Settling, runtime: Runtime) -> None:
        self._charges = charges
        self._openings = openings
        self._settling = settling
        self._runtime = runtime
        self._unpaid = Spell(_journal)

    def has_paid(self, window: int) -> bool:
        """Whether it is known to be paid for: then what comes for it may be appended at once."""
        if self._openings.state(window) is None:  # a store that went back has lost it, and with it the charge
            self._charges.forget()
        return self._charges.is_covered(window)

    async def answer(self, flight: Flight) -> Answer | None:
        """None: its window is paid for, and it may be appended. Else what its senders are told; never an exception."""
        window, id = flight.window, flight.key.id
        try:
            answer = await self._answer(flight)
        except RefusedError as error:
            return refused(id, error.refusal)
        except Exception as error:  # noqa: BLE001  whatever the store says, every sender gets its answer
            passes = isinstance(error, TRANSIENT)
            self._unpaid.failed(self._runtime.monotonic(), f"window {window} is not charged", error, passes=passes)
            return unavailable(id, NOT_CHARGED if passes else FAILED)
        self._unpaid.worked(self._runtime.monotonic(), "windows are charged again")
        return answer

    async def _answer(self, flight: Flight) -> Answer | None:
        window = flight.window
        await self._openings.ensure([window])
        if self._openings.state(window) in NEVER_OPEN:
            raise RefusedError(refusals.never_open())
        if await self._charges.covered(window):
            self._charges.forget_before(self._openings.accepted().start - 1)
            return None
        await self._openings.refresh([window])
        if self._openings.state(window) in OVER:
            return await self._settling.answer(flight, None)
        return unavailable(flight.key.id, NOT_YET)  # it closes: an earlier copy of it may still be counted
