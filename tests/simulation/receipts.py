"""Receipts that outlive every process: a line counts once it is durable, and none is half there."""

from aggregator.errors import ReceiptsError
from aggregator.records import StoredOutcome
from hushsum.privacy.event import Spend
from tests.simulation.books import Books
from tests.simulation.loop import Process
from tests.simulation.weather import Line


class SimReceipts:
    """See :class:`aggregator.ports.Receipts`; one for all processes.

    Args:
        line: The way to them.
        books: Know which there are.
    """

    def __init__(self, line: Line, books: Books) -> None:
        self._line, self._books = line, books
        self._receipts: dict[tuple[bytes, str, int], tuple[bytes, Spend]] = {}

    async def write(self, outcome: StoredOutcome, spend: Spend) -> None:
        async def write(_: Process | None) -> None:
            key = (outcome.plan_id, outcome.kind, outcome.window)
            if self._receipts.setdefault(key, (outcome.sha256, spend))[0] != outcome.sha256:
                raise ReceiptsError(f"window {outcome.window} has a receipt for another outcome")
            self._books.receipts[key] = outcome.sha256

        await self._line.call("a receipt", write, writes=True)

    async def read(self) -> list[tuple[bytes, str, int, bytes, Spend]]:
        async def read(_: Process | None) -> list[tuple[bytes, str, int, bytes, Spend]]:
            return [(*key, digest, spend) for key, (digest, spend) in self._receipts.items()]

        return await self._line.call("the receipts", read, writes=False)
