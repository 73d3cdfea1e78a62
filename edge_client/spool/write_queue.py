"""Group commit of the spool: changes that arrive while one transaction reaches the disk share the next one.

:meth:`edge_client.spool.spool.Spool.commit` makes that transaction, and :mod:`edge_client.spool.transaction` applies
the changes in it.

A silo's submission alone goes before everything that waits, in a transaction of its own: neither the number of waiting
records nor the effect of their bytes on a disk may delay it.

On a disk that is full, or fails for a while, additions are refused to their callers. Answers are never given up: their
deltas stay in the spool, where a resend is harmless (same id, same bytes), and the removal is tried again and again.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Iterator
from typing import Final

from edge_client.runtime import Runtime
from edge_client.spool.changes import Change, Remove, Result, StoredDelta, Submit
from edge_client.spool.spool import Spool
from hushsum.errors import HushsumError

_LOG: Final = logging.getLogger("edge_client")
_RETRY_FIRST_S: Final = 0.1
_RETRY_LONGEST_S: Final = 5.0
_DOUBLINGS_MAX: Final = 10
_ERASURES_APART_S: Final = 5.0  # each costs two syncs

_Waiting = tuple[Change, "asyncio.Future[tuple[StoredDelta, ...]]"]


class SpoolWriter:
    """Puts changes into a spool, many to a transaction; no task runs while there is nothing to write.

    Once the spool is empty, it also erases what was answered from the log beside the file, at most every five seconds.
    One transaction has at most ``commits_max`` changes.
    """

    def __init__(self, spool: Spool, runtime: Runtime, commits_max: int) -> None:
        self._spool = spool
        self._runtime = runtime
        self._commits_max = commits_max
        self._submits: deque[_Waiting] = deque()
        self._adds: deque[_Waiting] = deque()
        self._removes: deque[_Waiting] = deque()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.Task[None] | None = None
        self._wake_at = 0.0  # when the timer ends
        self._failures = 0  # of removes, in a row
        self._apart = False  # removes and adds share no transaction: neither meets the errors of the others
        self._retry_at = 0.0
        self._unerased = False  # the log may hold what was answered
        self._erase_at = runtime.monotonic()
        self._closing = False

    def put(self, change: Change) -> "asyncio.Future[tuple[StoredDelta, ...]]":
        """Takes a change; the future has what it stored once that is durable, or the error that refused it.

        A removal is never refused: its future is cancelled if it could not be made before the end. Callers shield the
        future, because the change is made even if they are cancelled.
        """
        future: asyncio.Future[tuple[StoredDelta, ...]] = asyncio.get_running_loop().create_future()
        queue = self._removes if isinstance(change, Remove) else self._adds
        if isinstance(change, Submit):
            queue = self._submits
        queue.append((change, future))
        self._start()
        return future

    async def close(self) -> None:
        """Returns once everything that was put is written; removals that still fail are left to the next start."""
        self._closing = True
        if self._timer is not None:
            self._timer.cancel()
            await asyncio.wait([self._timer])
        if self._submits or self._adds or self._removes:
            self._start()
        while self._task is not None and not self._task.done():
            await asyncio.wait([self._task])

    def _start(self) -> None:
        if self._task is None or self._task.done():
            self._task = self._runtime.spawn(self._write(), "hushsum-edge-spool")

    async def _write(self) -> None:
        while True:
            if batch := self._pick():
                await self._commit(batch)
            elif self._wants_erasure() and self._runtime.monotonic() >= self._erase_at:
                self._unerased = not await self._runtime.blocking(self._spool.erase_answered)
                self._erase_at = self._runtime.monotonic() + _ERASURES_APART_S
            else:
                break
        self._set_timer()

    def _pick(self) -> list[_Waiting]:
        """What the next transaction takes from the queues: submissions alone, or removes first, for they make room."""
        if self._submits:
            return [*_pop(self._submits)]
        batch: list[_Waiting] = []
        if self._closing or not self._failures or self._runtime.monotonic() >= self._retry_at:
            batch += _pop(self._removes, self._commits_max)
        if not (batch and self._apart):
            batch += _pop(self._adds, self._commits_max - len(batch))
        return batch

    async def _commit(self, batch: list[_Waiting]) -> None:
        try:
            results = await self._runtime.blocking(self._spool.commit, [change for change, _ in batch])
        except Exception as error:  # noqa: BLE001  whatever it is, it is raised for the additions that it refused
            self._failed(batch, error)
            return
        except BaseException:
            for _, future in (*batch, *_pop(self._submits), *_pop(self._removes), *_pop(self._adds)):
                future.cancel()
            raise
        if any(isinstance(change, Remove) for change, _ in batch):
            self._failures = 0
            self._unerased = True
        elif not isinstance(batch[0][0], Submit):
            self._apart = self._failures > 0
        for (_, future), result in zip(batch, results, strict=True):
            _resolve(future, result)

    def _failed(self, batch: list[_Waiting], error: Exception) -> None:
        """A transaction that fails changes nothing: adds fail, removes wait, both together are tried apart."""
        removes = [waiting for waiting in batch if isinstance(waiting[0], Remove)]
        adds = batch[len(removes) :]
        self._removes.extendleft(reversed(removes))
        if removes and adds:
            self._adds.extendleft(reversed(adds))
            self._apart = True
            return
        for _, future in adds:
            if not future.done():
                future.set_exception(error)
        if adds:
            if not isinstance(adds[0][0], Submit):
                self._apart = self._failures > 0
            return
        if not self._failures:
            _LOG.warning("answers not stored, retrying: %s", error)
        wait_s = min(_RETRY_LONGEST_S, _RETRY_FIRST_S * 2.0 ** min(self._failures, _DOUBLINGS_MAX))
        self._failures += 1
        self._apart = True
        self._retry_at = self._runtime.monotonic() + wait_s
        if self._closing:
            for _, future in _pop(self._removes):
                future.cancel()

    def _wants_erasure(self) -> bool:
        return self._unerased and not self._closing and self._spool.is_empty

    def _set_timer(self) -> None:
        """Starts the writer again when something is due by itself."""
        times = [self._retry_at] if self._removes else []
        if self._wants_erasure():
            times.append(self._erase_at)
        if not times or self._closing:
            return
        # A wake that comes too early finds nothing to do and sets the next one.
        if self._timer is not None and not self._timer.done():
            if self._wake_at <= min(times):
                return
            self._timer.cancel()
        self._wake_at = min(times)
        self._timer = self._runtime.spawn(self._wake(self._wake_at), "hushsum-edge-spool-timer")

    async def _wake(self, at: float) -> None:
        await self._runtime.sleep(max(0.0, at - self._runtime.monotonic()))
        self._timer = None
        self._start()


def _pop(queue: deque[_Waiting], limit: int | None = None) -> Iterator[_Waiting]:
    """Takes at most so many out of a queue; all of it without a limit."""
    for _ in range(len(queue) if limit is None else min(limit, len(queue))):
        yield queue.popleft()


def _resolve(future: "asyncio.Future[tuple[StoredDelta, ...]]", result: Result) -> None:
    if future.done():
        return
    if isinstance(result, HushsumError):
        future.set_exception(result)
    else:
        future.set_result(result)
