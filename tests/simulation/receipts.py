"""Two sinks of receipts that outlive every process: a line counts once it is durable, and none is half there.

Each is reached over the same line. An operator's mistake may set one back to what it was, or lose it.
"""

from aggregator.model import ReceiptsMark, StoredOutcome
from aggregator.release.receipts import KeptLine, Receipt, ReceiptLines
from hushsum.privacy.events import Spend
from tests.doubles import MemoryReceipts
from tests.simulation.books import Books
from tests.simulation.loop import Process
from tests.simulation.weather import Line


class SimReceipts:
    """See :class:`aggregator.release.receipts_copy.ReceiptsSink`; one for all processes.

    Args:
        name: Of the sink.
        line: The way to it.
        books: Know which receipts there are.
    """

    def __init__(self, name: str, line: Line, books: Books) -> None:
        self._name, self._line, self._books = name, line, books
        self._kept = MemoryReceipts(name)

    @property
    def kept(self) -> tuple[KeptLine, ...]:
        """Its lines now."""
        return tuple(self._kept.lines.kept)

    @property
    def here(self) -> MemoryReceipts:
        """The sink itself, for an operator's command while no process runs."""
        return self._kept

    def set_back(self, lines: int) -> None:
        """It has so many of its lines, and no more; 0: it is lost."""
        kept = self._kept.lines.kept[:lines]
        self._kept = MemoryReceipts(self._name)
        for each in kept:
            self._kept.lines.add(*each)

    async def begin(self) -> ReceiptsMark:
        async def begin(_: Process | None) -> ReceiptsMark:
            return await self._kept.begin()

        return await self._line.call("the receipts' header", begin, writes=True)

    async def check(self, bound: ReceiptsMark) -> str:
        async def check(_: Process | None) -> str:
            return await self._kept.check(bound)

        return await self._line.call("the receipts' mark", check, writes=False)

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

    async def catch_up(self) -> ReceiptLines:
        async def catch_up(_: Process | None) -> ReceiptLines:
            lines = ReceiptLines(self._name)  # as they are now: each process reads them by itself
            for each in self.kept:
                lines.add(*each)
            return lines

        return await self._line.call("the receipts' lines", catch_up, writes=False)

    async def append(self, kept: KeptLine) -> None:
        async def append(_: Process | None) -> None:
            await self._kept.append(kept)
            self._books.copied(kept)

        await self._line.call("a copied receipt", append, writes=True)
