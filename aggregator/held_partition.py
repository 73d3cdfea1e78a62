"""One partition that is this process's to fold, through every claim of it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from aggregator.errors import FencedError, LogGapError, PartitionStoppedError
from aggregator.journal import told
from aggregator.ports import Observer, Runtime
from aggregator.retries import TRANSIENT, Backoff, within
from aggregator.worker import Worker, WorkerSettings

# Before a partition that another process has claimed is claimed back: time to hear that it is no longer ours.
_FENCED_S: Final = 3.0
_STOPPED: Final = "it was stopped with the service"


class HeldPartition:
    """Claims a partition and folds it, again and again, until it is let go or cannot go on. It begins at once.

    Args:
        partition: Which.
        claim: Takes it from whoever had it, and loads its fold.
        settings: How time is divided.
        runtime: Time and tasks.
        observer: Is told of what is tried again, and of an end that only an operator can mend.
        failed: Is told of such an end too.
        shared: Whether other processes may claim it too.

    Attributes:
        worker: Of the present claim; None between two of them.
        error: Why nothing of it is folded here any more; None while something is, or will be.
    """

    def __init__(
        self,
        partition: int,
        claim: Callable[[], Awaitable[Worker]],
        *,
        settings: WorkerSettings,
        runtime: Runtime,
        observer: Observer,
        failed: Callable[[PartitionStoppedError], None],
        shared: bool,
    ) -> None:
        self.partition = partition
        self.worker: Worker | None = None
        self.error: PartitionStoppedError | None = None
        self._claim, self._settings = claim, settings
        self._runtime, self._observer, self._failed = runtime, observer, failed
        self._shared = shared
        self._stopping = False
        self._news = asyncio.Event()  # set, and replaced, whenever worker or error changes
        self._task = runtime.spawn(self._held(), f"fold-{partition}")

    async def working(self) -> Worker:
        """The worker, at once where there is one, else once there is.

        Raises:
            PartitionStoppedError: There will be none.
        """
        while self.worker is None:
            if self.error is not None:
                raise self.error
            await self._news.wait()
        return self.worker

    async def gone(self, worker: Worker) -> None:
        """Returns once a worker that has ended is no longer the present one."""
        while self.worker is worker:
            await self._news.wait()

    async def release(self, seconds: float) -> None:
        """Stores where the fold has come to, if that can be done in so many seconds, and lets the partition go."""
        self._stopping = True
        if self.worker is None:
            self._task.cancel()  # nothing of it is unsaved
        else:
            self.worker.stop()
        try:
            await within(seconds, asyncio.wait([self._task]), runtime=self._runtime)
        except TimeoutError:
            self._observer.retried("revoke", f"partition {self.partition} was not stored within {seconds:g} s")
        self.drop()

    def drop(self) -> None:
        """Lets it go as it is. A checkpoint under way may still be stored, as long as nobody has claimed after us."""
        self._stopping = True
        self._task.cancel()
        self._now(None)
        self._end(_STOPPED)

    async def _held(self) -> None:
        try:
            await self._hold()
        finally:
            self._end(_STOPPED)  # whatever ended it: nobody waits for it any more

    async def _hold(self) -> None:
        backoff, gap = Backoff(), None
        while not self._stopping:
            try:
                await self._fold(backoff)
                return
            except LogGapError as error:
                # Who slept may find what it would read next folded and forgotten by whoever claimed the partition
                # meanwhile. A new claim gives the newest position; where the gap stands before that too, it is one.
                if not self._shared or error.position == gap:
                    self._fail(error)
                    return
                gap, pause_s = error.position, _FENCED_S
                self._observer.retried("fold", str(error))
            except (FencedError, *TRANSIENT) as error:
                self._observer.retried("fold", str(error))
                pause_s = _FENCED_S if isinstance(error, FencedError) else backoff.next_s()
            except Exception as error:  # noqa: BLE001  whatever it is, those who wait for this fold are told
                self._fail(error)
                return
            await self._runtime.sleep(pause_s)

    async def _fold(self, backoff: Backoff) -> None:
        worker = await self._claim()
        claimed = worker.saved
        self._now(worker)
        try:
            await worker.run(self._settings)
        finally:
            if worker.saved > claimed:
                backoff.reset()
            if self.worker is worker:
                self._now(None)

    def _fail(self, cause: Exception) -> None:
        self._end(told(cause), cause)
        assert self.error is not None
        self._observer.partition_stopped(self.partition, told(cause))
        self._failed(self.error)

    def _end(self, why: str, cause: Exception | None = None) -> None:
        if self.error is None:
            self.error = PartitionStoppedError(f"partition {self.partition} has stopped: {why}")
            self.error.__cause__ = cause
        self._now(self.worker)

    def _now(self, worker: Worker | None) -> None:
        self.worker = worker
        news, self._news = self._news, asyncio.Event()
        news.set()
