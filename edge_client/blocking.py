"""The device SDK without an event loop: for scripts, web servers with threads, and blocking libraries.

>>> from edge_client.blocking import EdgeClient
>>> with EdgeClient("localhost:7443", spool="spool.db") as client:
...     client.add(records)
...     client.flush(60)

Each method runs the method of :class:`edge_client.EdgeClient` on an event loop in one background thread, and waits for
it. All clients of a process share this thread. A forked process does not have it: create its clients after the fork,
each with its own spool.
"""

import asyncio
import os
import threading
import warnings
from collections.abc import Coroutine
from concurrent.futures import Future, wait
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from edge_client import client
from edge_client.config import Config
from edge_client.errors import ClientStateError
from edge_client.policy import Policy
from edge_client.runtime import SystemRuntime
from edge_client.status import Event, OnEvent, Status
from hushsum.plan import Plan
from hushsum.signing import SigningKey
from hushsum.tables import Columns
from hushsum_proto.credentials import Credentials

if TYPE_CHECKING:
    from edge_client.transport.interface import Transport

T = TypeVar("T")


class _LoopThread:
    """A thread that runs an event loop, and the runtime of the clients on it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.runtime: Final = SystemRuntime()
        self.clients = 0
        self._loop: Final = loop
        self._calls: dict[Future[Any], asyncio.Task[Any]] = {}
        self._submitting = threading.RLock()  # a signal handler may call while its thread holds the lock
        self._stopping = False
        # A daemon thread does not delay the end of a process with open clients: added records are safe in their spools.
        self._thread: Final = threading.Thread(target=self._loop.run_forever, name="hushsum-edge", daemon=True)
        self._thread.start()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this thread. It must not wait for the work of its own loop."""
        return threading.current_thread() is self._thread

    def run(self, work: Coroutine[object, object, T]) -> T:
        """Runs work on the loop and waits for it. An interrupt cancels the work and waits for its end.

        Raises:
            ClientStateError: The last client was closed in the meantime.
        """
        result: Future[T] = Future()
        with self._submitting:
            if self._stopping:
                work.close()
                raise _closed_error()
            self._loop.call_soon_threadsafe(self._begin, work, result)
        try:
            return result.result()
        finally:
            if not result.done():
                self._loop.call_soon_threadsafe(self._cancel, result)
                wait([result])  # a cancelled call cleans up first

    def close(self) -> None:
        """Cancels the running calls, waits until they have cleaned up, and ends the thread."""
        with self._submitting:
            self._stopping = True
            ending = asyncio.run_coroutine_threadsafe(self._end_calls(), self._loop)
        ending.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self.runtime.close()

    def _begin(self, work: Coroutine[object, object, T], result: "Future[T]") -> None:
        called: Coroutine[object, object, Any] = work
        task: asyncio.Task[Any] = self.runtime.spawn(called, "hushsum-edge-call")
        self._calls[result] = task
        task.add_done_callback(lambda _: self._ended(task, result))

    def _ended(self, task: "asyncio.Task[T]", result: "Future[T]") -> None:
        del self._calls[result]
        error = _closed_error() if task.cancelled() else task.exception()
        if error is not None:
            result.set_exception(error)
        else:
            result.set_result(task.result())

    def _cancel(self, result: "Future[Any]") -> None:
        if result in self._calls:  # otherwise it has just ended
            self._calls[result].cancel()

    async def _end_calls(self) -> None:
        while self._calls:
            for call in self._calls.values():
                call.cancel()
            await asyncio.wait(self._calls.values())


class _Shared:
    """The thread of this process. It starts with the first client and ends with the last one."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Resets the state in a forked process, which does not have the thread."""
        self._lock = threading.RLock()
        # One loop for the life of the process: gRPC calls a loop that it has used, and fails if it is closed.
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: _LoopThread | None = None

    def acquire(self) -> _LoopThread:
        with self._lock:
            self._loop = self._loop or asyncio.new_event_loop()
            self._thread = self._thread or _LoopThread(self._loop)
            self._thread.clients += 1
            return self._thread

    def release(self, thread: _LoopThread) -> None:
        with self._lock:
            thread.clients -= 1
            if thread.clients:
                return
            self._thread = None
            thread.close()  # within the lock: the next thread runs the same loop


_SHARED: Final = _Shared()
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_SHARED.reset)


class EdgeClient:
    """Contributes records to a collection, for blocking code; safe to use from several threads.

    The constructor opens the client: it waits for the plan, the first time up to ``config.first_contact_s``. Arguments,
    errors and guarantees are those of :class:`edge_client.EdgeClient`. Warnings are raised in the calling thread.
    ``on_event`` is called in the background thread.

    A process that ends without :meth:`close` loses nothing: added records are sent at the next start. After a fork only
    the parent can use a client.
    """

    def __init__(  # noqa: PLR0913  as of the client that it runs
        self,
        target: "str | Transport",
        *,
        spool: str | os.PathLike[str],
        client_id: str | None = None,
        policy: Policy | None = None,
        config: Config | None = None,
        key: str | os.PathLike[str] | SigningKey | None = None,
        credentials: Credentials | None = None,
        on_event: OnEvent | None = None,
    ) -> None:
        self._process = os.getpid()
        self._closing = threading.RLock()
        self._closer: int | None = None  # id of the thread that closes or closed the client
        self._ended = threading.Event()
        self._thread = _SHARED.acquire()
        try:
            self._client = client.EdgeClient(
                target,
                spool=spool,
                client_id=client_id,
                policy=policy,
                config=config,
                runtime=self._thread.runtime,
                key=key,
                credentials=credentials,
                on_event=_guarded(on_event),
            )
            self._thread.run(self._client.__aenter__())
        except BaseException:
            _SHARED.release(self._thread)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the client. If the block raised an error, it does not wait for answers."""
        self._close(wait=error is None)

    @property
    def client_id(self) -> str:
        """The client id."""
        return self._client.client_id

    @property
    def plan(self) -> Plan:
        """The plan that this client contributes to."""
        return self._client.plan

    def add(
        self,
        records: Any,
        time: int | datetime | None = None,
        labels: object = None,
        *,
        columns: Columns | None = None,
        by_position: bool = False,
    ) -> None:
        """Contributes records. Returns when they are safe on disk (:meth:`edge_client.EdgeClient.add`)."""
        work = self._client.encode(records, time, labels, columns=columns, by_position=by_position)
        addition = self._run(work)
        for warning in addition.warnings_before:  # if warnings are errors, nothing is stored
            warnings.warn(warning, stacklevel=2)
        for warning in self._run(self._client.store(addition)):
            warnings.warn(warning, stacklevel=2)

    def flush(self, timeout_s: float | None = None) -> None:
        """Returns when every delta has a definitive answer; raises as :meth:`edge_client.EdgeClient.flush` does."""
        self._run(self._client.flush(timeout_s))

    def status(self, *, since_start: bool = False) -> Status:
        """The state of all added records (:meth:`edge_client.EdgeClient.status`)."""
        if self._ended.is_set():
            return self._client.status(since_start=since_start)
        return self._run(self._status(since_start=since_start))

    def close(self) -> None:
        """Ends the client; waits up to ``config.close_flush_s`` for answers. A second call does nothing.

        A running call in another thread ends with :class:`ClientStateError`, or with its result.

        Raises:
            EdgeError: The error that stopped the client, unless it was raised before.
        """
        self._close(wait=True)

    def _close(self, *, wait: bool) -> None:
        self._check_caller()
        with self._closing:
            first, self._closer = self._closer is None, self._closer or threading.get_ident()
        if not first:
            if self._closer != threading.get_ident():  # otherwise a signal handler interrupts that call
                self._ended.wait()
            return
        try:
            warned = self._thread.run(self._client.end(wait=wait))
        finally:
            try:
                _SHARED.release(self._thread)
            finally:
                self._ended.set()
        for warning in warned:
            warnings.warn(warning, stacklevel=3)

    async def _status(self, *, since_start: bool) -> Status:
        return self._client.status(since_start=since_start)

    def _run(self, work: Coroutine[object, object, T]) -> T:
        try:
            self._check_caller()
            if self._closer is not None:
                raise _closed_error()
        except ClientStateError:
            work.close()
            raise
        return self._thread.run(work)

    def _check_caller(self) -> None:
        if os.getpid() != self._process:
            raise ClientStateError(
                "this client was created before a fork: create one in each process, with its own spool"
            )
        if self._thread.is_current:
            raise ClientStateError("on_event must not call its client: the client would wait for itself")


def _guarded(on_event: OnEvent | None) -> OnEvent | None:
    """The same function. Its errors, `sys.exit` included, do not end the thread of all clients."""
    if on_event is None:
        return None

    def call(event: Event) -> None:
        try:
            on_event(event)
        except Exception:
            raise  # the client logs it
        except BaseException as error:
            raise RuntimeError(f"{type(error).__name__} raised in on_event; the client continues") from error

    return call


def _closed_error() -> ClientStateError:
    return ClientStateError("this client is closed")
