"""The bytes of deltas on their way: those that are likely to be sent soon, and a count of what was sent."""

from collections.abc import Callable, Iterable

from edge_client.config import SEQUENCE_WINDOW
from edge_client.draft import Bound
from edge_client.errors import SpoolError
from edge_client.ports import Runtime
from edge_client.spool import Spool
from edge_client.tallies import Sends

_KEPT_MAX = 2 * SEQUENCE_WINDOW


class Cargo:
    """Gives a delta's bytes, from memory where they are at hand and else from the spool.

    Args:
        spool: Where all of them are.
        runtime: Of the thread that reads it.
        lowest: The lowest unanswered number at the moment; what is below is not needed any more.
    """

    def __init__(self, spool: Spool, runtime: Runtime, lowest: Callable[[], int | None]) -> None:
        self._spool = spool
        self._runtime = runtime
        self._lowest = lowest
        self._bytes: dict[int, bytes] = {}
        self._sent: set[int] = set()  # unanswered ones that were sent at least once
        self.sends = Sends()

    def keep(self, bound: Iterable[Bound]) -> None:
        """New deltas, so that they need not be read from the disk; as many as there is room for."""
        for delta in bound:
            if len(self._bytes) < SEQUENCE_WINDOW:
                self._bytes[delta.sequence] = delta.data

    async def data(self, sequence: int) -> bytes:
        """A delta's bytes; those after it are read from the disk with it.

        Raises:
            SpoolError: The spool does not hold it.
        """
        if sequence not in self._bytes:
            near = await self._runtime.blocking(self._spool.load, sequence, SEQUENCE_WINDOW)
            self._bytes.update((delta.sequence, delta.data) for delta in near)
            lowest = self._lowest() or 0
            kept = sorted(known for known in self._bytes if known >= lowest)[:_KEPT_MAX]
            self._bytes = {known: self._bytes[known] for known in kept}
        if sequence not in self._bytes:
            raise SpoolError(f"spool: delta {sequence} has no answer, and is gone: somebody has changed the file")
        return self._bytes[sequence]

    def sent(self, sequence: int, size: int) -> None:
        """This delta was written to a connection."""
        again = sequence in self._sent
        self._sent.add(sequence)
        before = self.sends
        self.sends = Sends(before.first + (not again), before.again + again, before.bytes + size)

    def drop(self, sequence: int) -> None:
        """This delta has its answer."""
        self._bytes.pop(sequence, None)
        self._sent.discard(sequence)
