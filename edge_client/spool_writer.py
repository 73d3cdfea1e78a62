"""Group commit: whatever arrives while one transaction reaches the disk shares the next one."""

import asyncio
from collections import deque
from itertools import islice

from edge_client.draft import Bound, Change, Result
from edge_client.ports import Runtime
from edge_client.spool import Spool
from hushsum.errors import HushsumError


class SpoolWriter:
    """Puts changes into a spool, many to a transaction; no task runs while there is nothing to write.

    Args:
        spool: Where they go.
        runtime: Of its task and its threads.
        commits_max: Changes in one transaction.
    """

    def __init__(self, spool: Spool, runtime: Runtime, commits_max: int) -> None:
        self._spool = spool
        self._runtime = runtime
        self._commits_max = commits_max
        self._queue: deque[tuple[Change, asyncio.Future[tuple[Bound, ...]]]] = deque()
        self._task: asyncio.Task[None] | None = None

    def put(self, change: Change) -> "asyncio.Future[tuple[Bound, ...]]":
        """Takes a change; the future has what it bound once that is durable, or the error that refused it.

        Whoever waits for it shields it: the change is made even if nobody waits any more.
        """
        future: asyncio.Future[tuple[Bound, ...]] = asyncio.get_running_loop().create_future()
        self._queue.append((change, future))
        if self._task is None or self._task.done():
            self._task = self._runtime.spawn(self._write(), "hushsum-edge-spool")
        return future

    async def close(self) -> None:
        """Returns once everything that was put is written."""
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    async def _write(self) -> None:
        while self._queue:
            batch = list(islice(self._queue, self._commits_max))
            try:
                results = await self._runtime.blocking(self._spool.commit, [change for change, _ in batch])
            except BaseException as error:
                self._fail(error)
                if not isinstance(error, Exception):
                    raise
                return
            for (_, future), result in zip(batch, results, strict=True):
                self._queue.popleft()
                _resolve(future, result)

    def _fail(self, error: BaseException) -> None:
        """A transaction that fails changes nothing: everybody who waits is told, and may try again."""
        while self._queue:
            _, future = self._queue.popleft()
            if isinstance(error, Exception) and not future.done():
                future.set_exception(error)
            else:
                future.cancel()


def _resolve(future: "asyncio.Future[tuple[Bound, ...]]", result: Result) -> None:
    if future.done():
        return
    if isinstance(result, HushsumError):
        future.set_exception(result)
    else:
        future.set_result(result)
