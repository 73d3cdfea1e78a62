"""A service that runs until it is told to stop, or cannot go on."""

import asyncio
import signal
from typing import Any

from aggregator.config import Config
from aggregator.errors import AggregatorError
from aggregator.journal import journal, told
from aggregator.ports import SystemRuntime
from aggregator.process import bound_arenas, check_assertions, check_memory, import_modules, raise_file_limit
from aggregator.service import running
from aggregator.shuffler.service import running as shuffling

_journal = journal("service")


async def serve(config: Config) -> None:
    """Serves until SIGTERM or SIGINT, and stops gracefully; a second signal ends the process at once.

    Raises:
        HushsumError: It cannot start, or cannot go on.
    """
    check_assertions()
    bound_arenas()
    raise_file_limit()
    import_modules(config)
    check_memory(config)
    asked, loop, starting = asyncio.Event(), asyncio.get_running_loop(), asyncio.current_task()

    def ask() -> None:
        asked.set()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        if starting is not None:
            starting.cancel()  # it may wait for brokers for a long time

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ask)
    loop.set_exception_handler(_told_by_nobody)
    runtime = SystemRuntime()
    try:
        begin = shuffling if config.role == "shuffler" else running
        async with begin(config, runtime) as service:
            starting = None
            stop = runtime.spawn(_wait(asked), "signals")
            failure = runtime.spawn(service.failed(), "failure")
            await asyncio.wait([stop, failure], return_when=asyncio.FIRST_COMPLETED)
            stop.cancel()
            if failure.done():
                failure.result()
            failure.cancel()
    except asyncio.CancelledError:
        if not asked.is_set():
            raise


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


def _told_by_nobody(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:  # Any: asyncio's own form
    """What failed where nobody waits for it any more: of a connection that was given up it is no news to anybody."""
    error = context.get("exception")
    if isinstance(error, OSError | EOFError | AggregatorError):
        _journal.debug("failed after it was given up", kind=type(error).__name__, error=told(error))
    else:
        _journal.error(context.get("message", "failed"), exc_info=error)
