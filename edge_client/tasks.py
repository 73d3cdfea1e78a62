"""The tasks of one client: what fails in them is told, and none of them outlives it."""

import asyncio
from collections.abc import Callable, Coroutine

from edge_client.ports import Runtime


async def to_the_end(runtime: Runtime, work: Coroutine[object, object, None]) -> None:
    """Runs work that must not be left half done: a cancellation is kept until it is over."""
    task = runtime.spawn(work, "hushsum-edge-whole")
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    await task


class Tasks:
    """A group of tasks.

    Args:
        runtime: Where they run.
        failed: Called with the exception that a task has ended with.
    """

    def __init__(self, runtime: Runtime, failed: Callable[[Exception], None]) -> None:
        self._runtime = runtime
        self._failed = failed
        self._open: set[asyncio.Task[None]] = set()
        self._whole: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[object, object, None], name: str) -> "asyncio.Task[None]":
        """Starts work that may be cancelled at any time."""
        return self._keep(work, name, self._open)

    def spawn_whole(self, work: Coroutine[object, object, None], name: str) -> "asyncio.Task[None]":
        """Starts work that is short, and must not be left half done."""
        return self._keep(work, name, self._whole)

    def cancel(self) -> None:
        """Cancels everything that may be cancelled."""
        for task in self._open:
            task.cancel()

    async def close(self) -> None:
        """Cancels, and returns once everything has ended."""
        self.cancel()
        while self._open or self._whole:
            await asyncio.wait(self._open | self._whole)

    def _keep(
        self, work: Coroutine[object, object, None], name: str, tasks: "set[asyncio.Task[None]]"
    ) -> "asyncio.Task[None]":
        task = self._runtime.spawn(work, f"hushsum-edge-{name}")
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._failed(error)
