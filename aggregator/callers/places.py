"""Places for calls: so many of one kind at once, so that the others always have room."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from aggregator.errors import AggregatorError
from aggregator.refusals import overloaded


class Endable(Protocol):
    """A call that can be ended from elsewhere."""

    def end(self, error: AggregatorError) -> bool:
        """Ends it, with what its caller is told."""


class Places:
    """A number of places.

    Args:
        most: How many there are.
        what: Who takes them, for the refusal.
    """

    def __init__(self, most: int, what: str) -> None:
        self._most = most
        self._what = what
        self._taken = 0

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Holds one place as long as the block runs.

        Raises:
            RefusedError: All are taken.
        """
        if self._taken >= self._most:
            raise overloaded(f"at most {self._most} {self._what} at once")
        self._taken += 1
        try:
            yield
        finally:
            self._taken -= 1


class SharedPlaces:
    """A number of places for calls of nobody in particular, of which none is ever full for somebody who comes new.

    Where all are taken, the oldest call of the address that has the most of them is ended.

    Args:
        most: How many there are.
        what: Who takes them, for what an ended call is told.
    """

    def __init__(self, most: int, what: str) -> None:
        self._most = most
        self._what = what
        self._calls: dict[Endable, str] = {}  # with their addresses; the oldest first
        self._by_address: Counter[str] = Counter()

    @contextmanager
    def taken(self, address: str, call: Endable) -> Iterator[None]:
        """Holds one place for a call from an address, until the block ends or another call needs the place."""
        if len(self._calls) >= self._most:
            most = max(self._by_address.values())
            oldest = next(each for each, where in self._calls.items() if self._by_address[where] == most)
            self._give_up(oldest)
            oldest.end(overloaded(f"at most {self._most} {self._what} at once, and others came"))
        self._calls[call] = address
        self._by_address[address] += 1
        try:
            yield
        finally:
            self._give_up(call)

    def _give_up(self, call: Endable) -> None:
        address = self._calls.pop(call, None)
        if address is not None:
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]
