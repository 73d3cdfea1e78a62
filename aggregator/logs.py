"""The service's log lines: structured, for people or for machines.

They may hold the service's states, own addresses, windows, durations and errors; never a client's data, a counter, a
client id, a peer, or a secret. The text of an unexpected error may hold any of these (a missing key is a client's
name), so only its type and its traceback are written. The same goes for what libraries log.
"""

import logging
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Final, TextIO

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger
from typing_extensions import override

from hushsum.errors import HushsumError

CALM_S: Final = 10.0
LIBRARIES: Final = ("grpc", "asyncio")  # their messages see clients, or values computed from their data
_LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def journal(part: str) -> FilteringBoundLogger:
    """The logger of one part of the service."""
    bound: FilteringBoundLogger = structlog.get_logger(part=part)
    return bound


def write_journal(level: str, form: str, stream: TextIO | None = None) -> None:
    """Configures all loggers; ``level`` is the least that is written, ``form`` is ``console``, ``json`` or ``command``.

    The last one is for commands that people run: a line such as ``hushsum: warning: ...``, without the time. Without a
    stream they write to standard error: standard output is for a command's result.
    """
    out = sys.stderr if stream is None else stream
    render: Processor
    if form == "json":
        render = structlog.processors.JSONRenderer()
    elif form == "command":
        render = _of_command
    else:  # not the default traceback: it shows local variables, and so clients' data
        render = structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _without_words,
            render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(out),
        cache_logger_on_first_use=False,
    )
    for name in LIBRARIES:
        library = logging.getLogger(name)
        library.propagate = False
        library.handlers = [_OfLibrary()]


def copy_lines(to: Callable[[Mapping[str, object]], None]) -> Callable[[], None]:
    """Hands each line from ``info`` on to ``to`` as well; what is returned ends that.

    Debug lines stay on this machine: some are written because a client sent something.
    """

    def copied(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
        if event["level"] != "debug":
            to(event)
        return event

    *before, render = structlog.get_config()["processors"]
    structlog.configure(processors=[*before, copied, render])

    def end() -> None:
        now = structlog.get_config()["processors"]
        structlog.configure(processors=[each for each in now if each is not copied])

    return end


def describe_error(error: BaseException) -> str:
    """The text of an error that is ours or the system's; of any other error only its type."""
    text = str(error) if isinstance(error, HushsumError | OSError) else ""
    return text or type(error).__name__


def _of_command(_: WrappedLogger, __: str, event: EventDict) -> str:
    """A line as commands print warnings."""
    level, text, why = event.pop("level"), event.pop("event"), event.pop("why", "")
    exception = event.pop("exception", "")
    details = ", ".join(f"{key} = {value}" for key, value in event.items() if key not in {"part", "timestamp"})
    line = f"hushsum: {level}: {text}" + (f": {why}" if why else "") + (f" ({details})" if details else "")
    return f"{line}\n{exception}" if exception else line


def _without_words(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """Replaces an error by its type and traceback, and those of its causes."""
    given = event.pop("exc_info", None)
    error = sys.exc_info()[1] if given is True else given
    if isinstance(error, BaseException):
        event["exception"] = "\n".join(_places(error))
    return event


def _places(error: BaseException) -> list[str]:
    lines: list[str] = []
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        words = f": {link}" if isinstance(link, HushsumError | OSError) else ""
        lines += [f"{type(link).__name__}{words}", *"".join(traceback.format_tb(link.__traceback__)).splitlines()]
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return lines


class _OfLibrary(logging.Handler):
    """Logs the fixed part of a library's message, without the values that it inserts."""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        kind = None if record.exc_info is None or record.exc_info[0] is None else record.exc_info[0].__name__
        said = record.msg if isinstance(record.msg, str) and record.args else "message without a fixed text"
        journal(record.name).log(record.levelno, said, kind=kind)


class FailureLog:
    """Logs a lasting failure: one line when it begins, one when it is over, and debug lines between.

    It is over with the first success after 10 s without a failure: failures that come and go are one.
    """

    def __init__(self, to: FilteringBoundLogger) -> None:
        self._to = to
        self._kinds: set[str] = set()  # of errors that were logged since it began
        self._last_s = 0.0

    def failed(self, now_s: float, event: str, error: BaseException, *, passes: bool = False) -> None:
        """Logs a failure; each kind of error once until it is over.

        What ``passes`` ends without an operator, and is a warning, not an error. ``now_s`` is monotonic.
        """
        self._last_s, kind = now_s, type(error).__name__
        tell = self._to.debug if kind in self._kinds else self._to.warning if passes else self._to.error
        self._kinds.add(kind)
        tell(event, error=describe_error(error), kind=kind)

    def worked(self, now_s: float, event: str) -> None:
        if self._kinds and now_s - self._last_s >= CALM_S:
            self._kinds.clear()
            self._to.info(event)
