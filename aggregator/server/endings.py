"""How a call ends that fails: every error becomes a status, once."""

import asyncio
import re
from types import TracebackType
from typing import Any, Final, NoReturn, TypeAlias

import grpc
import grpc.aio

from aggregator.errors import AggregatorError
from aggregator.journal import journal
from aggregator.refusals import FAILED, RefusedError
from aggregator.server.connections import ConnectionGuard
from aggregator.server.statuses import CODES, OTHERS, refusal_of
from aggregator.watching.metrics import Metrics
from hushsum_proto import metadata
from hushsum_proto.answers import Refusal, ServiceReason

# Any: the types of messages are those of each method. In quotes: generic in their typings alone.
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

_journal = journal("grpc")

_FAILED_RETRY_AFTER_MS: Final = 1000
#: What says nothing of who has called.
_OURS: Final = frozenset({ServiceReason.OVERLOADED, ServiceReason.SHUTTING_DOWN, ServiceReason.UNAVAILABLE})
_FOLDERS: Final = re.compile(r"(?<![^\s'\"(=:])/(?!/)(?:[^\s/]+/)*")


class Endings:
    """Ends calls of one service.

    Args:
        metrics: Counts what is refused, by reason.
        for_operator: Whether callers are told what failed inside; others get one fixed sentence.
        guard: Is told of every call that fails; None: nobody is.
    """

    def __init__(self, metrics: Metrics, *, for_operator: bool, guard: ConnectionGuard | None = None) -> None:
        self._metrics = metrics
        self._for_operator = for_operator
        self._guard = guard

    def of(self, context: Context) -> "Ending":
        """Around a method: whatever it raises ends its call; this is where every error becomes a status."""
        return Ending(self, context)

    async def end(self, context: Context, error: BaseException | None) -> None:
        """Ends a call with the status of an error; of one that its caller has reset, only that is noted."""
        if isinstance(error, asyncio.CancelledError):
            self._failed(context)
        elif isinstance(error, Exception):
            await self._abort(context, error)

    async def _abort(self, context: Context, error: Exception) -> NoReturn:
        """The reason's stable name goes with the status."""
        if isinstance(error, grpc.aio.AbortError):
            raise error
        for kind, code, name in OTHERS:
            if isinstance(error, kind):
                self._failed(context)
                await context.abort(code, _without_folders(str(error)), ((metadata.REASON, name),))
        refusal = refusal_of(error)
        if refusal is None and isinstance(error, AggregatorError):
            _journal.error("call failed", error=str(error), kind=type(error).__name__)
            detail = _without_folders(str(error)) if self._for_operator else FAILED
            refusal = Refusal.of(ServiceReason.UNAVAILABLE, detail, _FAILED_RETRY_AFTER_MS)
        if refusal is None:
            _journal.error("call failed", exc_info=error)
            await context.abort(grpc.StatusCode.INTERNAL, FAILED, ((metadata.REASON, "internal"),))
        assert refusal.reason is not None
        if refusal.reason not in _OURS:
            self._failed(context)
        if not (isinstance(error, RefusedError) and error.counted):
            self._metrics.refused(refusal.reason)
        trailing = [(metadata.REASON, refusal.reason.value)]
        if refusal.retry:
            trailing.append((metadata.RETRY_AFTER_MS, str(refusal.retry_after_ms)))
        code = CODES.get(refusal.reason, grpc.StatusCode.INVALID_ARGUMENT)
        await context.abort(code, refusal.detail, tuple(trailing))

    def _failed(self, context: Context) -> None:
        if self._guard is not None and (peer := context.peer()):
            self._guard.failed(peer)


class Ending:
    """One call, around its method."""

    __slots__ = ("_context", "_endings")

    def __init__(self, endings: Endings, context: Context) -> None:
        self._endings, self._context = endings, context

    async def __aenter__(self) -> None:
        """It begins."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._endings.end(self._context, error)


def _without_folders(text: str) -> str:
    """The text with files' names in place of their paths: where files lie is nothing for the wire."""
    return _FOLDERS.sub("", text)
