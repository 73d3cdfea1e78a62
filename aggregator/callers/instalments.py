"""A delta that comes in pieces pays for each as it comes, whether it is ever whole or not."""

from collections.abc import Iterator
from contextlib import contextmanager

from aggregator.callers.client_limits import DELTA_COST_MIN, SendLimits


class Instalments:
    """What a delta that comes in pieces has paid, as they came.

    Args:
        limits: How much its client may send.
        client_id: Whose it is.
    """

    def __init__(self, limits: SendLimits, client_id: str) -> None:
        self._limits = limits
        self._client_id = client_id
        self._size = self._paid = 0

    def pay(self, size: int) -> None:
        """Takes a piece. One that has begun goes on, however much its client owes by now.

        Raises:
            RefusedError: Nobody new is remembered now.
        """
        cost = max(DELTA_COST_MIN, size)
        self._limits.charge(self._client_id, cost)
        self._size += size
        self._paid += cost

    def keep(self) -> None:
        """It is paid for in any case: its client was ahead of its rates before it came, and sent it all the same."""
        if not self._paid and self._size:
            self.pay(self._size)

    def give_back(self) -> None:
        """All of it: nothing was done with the delta, and that was not its client's doing."""
        self._limits.give_back(self._client_id, self._paid)
        self._paid = 0

    @contextmanager
    def settled(self) -> Iterator[None]:
        """The delta that its client sends within the block is paid for, and given back like any other."""
        self._limits.prepaid[self._client_id] = self
        try:
            yield
        finally:
            self._limits.prepaid.pop(self._client_id, None)
