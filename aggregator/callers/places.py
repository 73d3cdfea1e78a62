"""Places for calls: so many of one kind at once, so that the others always have room."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from aggregator.errors import AggregatorError
from aggregator.refusals import overloaded


class Endable(Protocol):
    """A call that can be ended from elsewhere."""

    def end(self, error: AggregatorError) -> bool:
        """Ends it, with what its caller is told; False: it waits for its reply to be read."""


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
    """A number of places for calls of nobody in particular, of which one is found for somebody who comes new.

    Where all are taken, the oldest call of the caller that has the most of them is ended; a caller is known by its
    address alone. What has been ended keeps its place until it is over, and a call that waits for its reply to be read
    is not over before that. So where twice as many places are taken, who comes new is refused, and the connections of
    those that were ended and are still there are closed.

    Args:
        most: How many there are.
        what: Who takes them, for what an ended call is told.
        does_not_read: Closes a connection, soon; given its peer.
    """

    def __init__(self, most: int, what: str, does_not_read: Callable[[str], None]) -> None:
        self._most = most
        self._what = what
        self._does_not_read = does_not_read
        self._open: dict[Endable, tuple[str, str]] = {}  # with peer and caller; the oldest first, none that was ended
        self._of_caller: Counter[str] = Counter()
        self._ended: dict[Endable, str] = {}  # with peer, until they are over

    @contextmanager
    def taken(self, peer: str, caller: str, call: Endable) -> Iterator[None]:
        """Holds one place for a call, until the block ends.

        Args:
            peer: gRPC's name of its connection.
            caller: Whose call it is, as far as its address tells.
            call: Is ended where another call needs the place.

        Raises:
            RefusedError: There is none, and none can be had now.
        """
        if len(self._open) + len(self._ended) >= 2 * self._most:
            for unread in set(self._ended.values()):
                self._does_not_read(unread)
            raise overloaded(f"at most {self._most} {self._what} at once")
        self._of_caller[caller] += 1
        if len(self._open) >= self._most:
            self._make_room(caller)
        self._open[call] = peer, caller
        try:
            yield
        finally:
            self._forget(call)
            self._ended.pop(call, None)

    def _make_room(self, newcomer: str) -> None:
        most = max(self._of_caller.values())
        is_newcomers = self._of_caller[newcomer] == most > 1  # of several that have as many, the newcomer gives one up
        oldest = next(
            call
            for call, (_, caller) in self._open.items()
            if (caller == newcomer if is_newcomers else self._of_caller[caller] == most)
        )
        self._ended[oldest], _ = self._open[oldest]
        self._forget(oldest)
        oldest.end(overloaded(f"at most {self._most} {self._what} at once, and others came"))

    def _forget(self, call: Endable) -> None:
        if call in self._open:
            _, caller = self._open.pop(call)
            self._of_caller[caller] -= 1
            if not self._of_caller[caller]:
                del self._of_caller[caller]
