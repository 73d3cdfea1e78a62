"""Places for calls that last: so many of one kind at once, so that the others always have room."""

from collections.abc import Iterator
from contextlib import contextmanager

from aggregator.refusals import overloaded


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
