"""The service's own log lines: structured, for people or for machines.

What they may hold: the service's states, addresses, windows, durations, errors. Never a client's data, a counter, a
client id with what it sent, or a secret.
"""

import logging
import sys
from typing import Final, TextIO

import structlog
from structlog.typing import FilteringBoundLogger, Processor

CALM_S: Final = 10.0
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
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if form == "json"
        # Not the default traceback: that one shows local variables, and with them what clients sent.
        else [structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=structlog.dev.plain_traceback)]
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(out),
        cache_logger_on_first_use=False,
    )


class Spell:
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
        tell(event, error=str(error), kind=kind)

    def worked(self, now_s: float, event: str) -> None:
        """It worked."""
        if self._kinds and now_s - self._last_s >= CALM_S:
            self._kinds.clear()
            self._to.info(event)
