"""The service's own log lines: structured, for people or for machines.

What they may hold: the service's states, own addresses, windows, durations, errors. Never a client's data, a counter, a
client id, a peer, or a secret. An error that nobody foresaw could hold any of them in its words (the key that is not
there is a client's name): of it the kind and the places are written alone. So are the words of libraries below.
"""

import logging
import sys
import traceback
from typing import Final, TextIO

import structlog
from structlog.typing import EventDict, FilteringBoundLogger, Processor, WrappedLogger
from typing_extensions import override

from hushsum.errors import HushsumError

CALM_S: Final = 10.0
_LIBRARIES: Final = ("grpc", "asyncio")  # they see clients, or what is computed of them
_LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def journal(part: str) -> FilteringBoundLogger:
    """The journal of one part of the service."""
    bound: FilteringBoundLogger = structlog.get_logger(part=part)
    return bound


def write_journal(level: str, form: str, stream: TextIO | None = None) -> None:
    """Says where every journal goes from now on.

    Args:
        level: The least level that is written: debug, info, warning or error.
        form: ``console`` or ``json``.
        stream: Standard error where none is given: standard output belongs to a command's result.
    """
    out = sys.stderr if stream is None else stream
    render: list[Processor] = (
        [structlog.processors.JSONRenderer()]
        if form == "json"
        # Not the default traceback: that one shows local variables, and with them what clients sent.
        else [structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback)]
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _without_words,
            *render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(out),
        cache_logger_on_first_use=False,
    )
    for name in _LIBRARIES:
        library = logging.getLogger(name)
        library.propagate = False
        library.handlers = [_OfLibrary()]


def told(error: BaseException) -> str:
    """What may be written of an error: its words where those are ours or the system's, else its kind alone."""
    return str(error) if isinstance(error, HushsumError | OSError) else type(error).__name__


def _without_words(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    """An error as its kind and its places, with those that it came from."""
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
    """Writes that a library has said something, in its own fixed words, without what it put into them."""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        kind = None if record.exc_info is None or record.exc_info[0] is None else record.exc_info[0].__name__
        said = record.msg if isinstance(record.msg, str) and record.args else "it has said something"
        journal(record.name).log(record.levelno, said, kind=kind)


class FailureLog:
    """Trouble that lasts: one line when it begins, one when it is over, and debug lines between.

    It is over with the first success after 10 s without a failure: what comes and goes is one spell.

    Args:
        to: Where the lines go.
    """

    def __init__(self, to: FilteringBoundLogger) -> None:
        self._to = to
        self._kinds: set[str] = set()  # of errors that were told in this spell
        self._last_s = 0.0

    def failed(self, now_s: float, event: str, error: BaseException, *, passes: bool = False) -> None:
        """It failed.

        Args:
            now_s: Monotonic.
            event: What failed.
            error: How: each kind of error is told once in a spell.
            passes: Whether it mends itself: then it is a warning, else an error.
        """
        self._last_s, kind = now_s, type(error).__name__
        tell = self._to.debug if kind in self._kinds else self._to.warning if passes else self._to.error
        self._kinds.add(kind)
        tell(event, error=told(error), kind=kind)

    def worked(self, now_s: float, event: str) -> None:
        """It worked."""
        if self._kinds and now_s - self._last_s >= CALM_S:
            self._kinds.clear()
            self._to.info(event)
