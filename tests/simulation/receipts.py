"""Receipts that outlive every process: a line counts once it is durable, and none is half there."""

from aggregator.model import ReceiptsMark, StoredOutcome
from aggregator.release.receipts import Receipt
from hushsum.privacy.events import Spend
from tests.doubles import MemoryReceipts
from tests.simulation.books import Books
from tests.simulation.loop import Process
from tests.simulation.weather import Line


class SimReceipts:
    """See :class:`aggregator.interfaces.Receipts`; one for all processes.

    Args:
        line: The way to them.
        books: Know which there are.
    """

    def __init__(self, line: Line, books: Books) -> None:
        self._line, self._books = line, books
        self._kept = MemoryReceipts()

    async def begin(self) -> ReceiptsMark:
        async def begin(_: Process | None) -> ReceiptsMark:
            return await self._kept.begin()

        return await self._line.call("the receipts' header", begin, writes=True)

    async def check(self, bound: ReceiptsMark) -> None:
        async def check(_: Process | None) -> None:
            await self._kept.check(bound)

        await self._line.call("the receipts' mark", check, writes=False)

    async def write(self, outcome: StoredOutcome, spend: Spend) -> ReceiptsMark:
        async def write(_: Process | None) -> ReceiptsMark:
            mark = await self._kept.write(outcome, spend)
            self._books.receipts[outcome.plan_id, outcome.kind, outcome.window] = outcome.sha256
            return mark

        return await self._line.call("a receipt", write, writes=True)

    async def read(self) -> list[Receipt]:
        async def read(_: Process | None) -> list[Receipt]:
            return await self._kept.read()

        return await self._line.call("the receipts", read, writes=False)
