"""The bytes of deltas on their way: those that are sent next, and a count of what was sent."""

from collections.abc import Iterable
from typing import Final

from edge_client.changes import Bound
from edge_client.config import SEQUENCE_WINDOW
from edge_client.errors import SpoolError
from edge_client.ports import Runtime
from edge_client.spool import Spool
from edge_client.tallies import Sends

# Little, for there may be hundreds of clients in a process, and the spool gives the rest quickly.
_KEPT_BYTES: Final = 2**18


class Cargo:
    """Gives a delta's bytes, from memory where they are at hand and else from the spool.

    Args:
        spool: Where all of them are.
        runtime: Of the thread that reads it.
    """

    def __init__(self, spool: Spool, runtime: Runtime) -> None:
        self._spool = spool
        self._runtime = runtime
        self._at_hand: dict[int, bytes] = {}  # not sent yet
        self._size = 0
        self._sent: set[int] = set()  # unanswered ones that were sent at least once
        self.sends = Sends()

    def keep(self, bound: Iterable[Bound]) -> None:
        """New deltas, so that they need not be read from the disk; as many as there is room for."""
        for delta in bound:
            if self._size < _KEPT_BYTES:
                self._at_hand[delta.sequence] = delta.data
                self._size += len(delta.data)

    async def data(self, sequence: int) -> bytes:
        """A delta's bytes; some of those after it are read from the disk with it.

        Raises:
            SpoolError: The spool does not hold it.
        """
        if sequence not in self._at_hand:
            near = await self._runtime.blocking(self._spool.load, sequence, SEQUENCE_WINDOW, _KEPT_BYTES)
            self._at_hand = {delta.sequence: delta.data for delta in near}
            self._size = sum(map(len, self._at_hand.values()))
        if sequence not in self._at_hand:
            raise SpoolError(f"spool: delta {sequence} has no answer, and is gone: somebody has changed the file")
        return self._at_hand[sequence]

    def sent(self, sequence: int, size: int) -> None:
        """This delta was written to a connection."""
        self._size -= len(self._at_hand.pop(sequence, b""))
        again = sequence in self._sent
        self._sent.add(sequence)
        before = self.sends
        self.sends = Sends(before.first + (not again), before.again + again, before.bytes + size)

    def drop(self, sequence: int) -> None:
        """This delta has its answer."""
        self._sent.discard(sequence)
