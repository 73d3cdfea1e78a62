"""Work that takes milliseconds or more, off the event loop and bounded; and caches that are bounded, too.

Work of seconds has a thread of its own, so that no view waits for it.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Generic, TypeVar

T = TypeVar("T")

#: Calls that run or wait; one more is refused.
WAITING_MAX: Final = 32


class BusyError(Exception):
    """More is asked for at once than is worked on: to be asked again later. Its text, if any, is for the caller."""


class Workers:
    """A few threads for computing. Only for use on one event loop.

    Args:
        threads: How many calls run at once.
        waiting_max: How many run or wait.
    """

    def __init__(self, threads: int = 2, waiting_max: int = WAITING_MAX) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="hushsum-page")
        self._of_seconds = ThreadPoolExecutor(1, thread_name_prefix="hushsum-page-seconds")
        self._waiting, self._waiting_max = 0, waiting_max

    async def run(self, function: Callable[..., T], *arguments: object) -> T:
        """What a call returns, from a thread.

        Raises:
            BusyError: Too many wait already.
            Exception: Whatever the call raises.
        """
        if self._waiting >= self._waiting_max:
            raise BusyError
        loop, self._waiting = asyncio.get_running_loop(), self._waiting + 1
        work = self._pool.submit(function, *arguments)
        # Counted until the call itself has ended, also where nobody waits for it any more.
        work.add_done_callback(lambda _: loop.call_soon_threadsafe(self._ended))
        return await asyncio.wrap_future(work)

    def prepare(self, function: Callable[[], object]) -> None:
        """Runs a call before all others, whose result nobody waits for."""
        self._pool.submit(function)

    def begin(self, function: Callable[..., T], *arguments: object) -> "Future[T]":
        """Begins a call of seconds, of which one runs at a time."""
        return self._of_seconds.submit(function, *arguments)

    def _ended(self) -> None:
        self._waiting -= 1

    def close(self) -> None:
        """Ends the threads once what runs has ended; what waits does not begin."""
        for pool in (self._pool, self._of_seconds):
            pool.shutdown(wait=False, cancel_futures=True)


class BoundedCache(Generic[T]):
    """Values that were used last, up to a total size; one value may be larger than that alone.

    Args:
        size_max: The total, in the unit of ``size_of``.
        size_of: The size of a value.
    """

    def __init__(self, size_max: int, size_of: Callable[[T], int]) -> None:
        self._size_max, self._size_of = size_max, size_of
        self._values: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self.size = 0

    def get(self, key: Hashable) -> T | None:
        """A value, which is used now; None if it is not there."""
        found = self._values.get(key)
        if found is None:
            return None
        self._values.move_to_end(key)
        return found[0]

    def put(self, key: Hashable, value: T) -> T:
        """Keeps a value, and drops those that were not used for longest; the value again."""
        self._drop(key)
        size = self._size_of(value)
        self._values[key] = value, size
        self.size += size
        while self.size > self._size_max and len(self._values) > 1:
            self._drop(next(iter(self._values)))
        return value

    def _drop(self, key: Hashable) -> None:
        found = self._values.pop(key, None)
        if found is not None:
            self.size -= found[1]
