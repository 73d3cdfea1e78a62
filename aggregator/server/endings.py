"""How a call ends that fails: every error becomes a status, once."""

import re
from typing import Any, Final, NoReturn, TypeAlias

import grpc
import grpc.aio

from aggregator.errors import AggregatorError
from aggregator.journal import journal
from aggregator.refusals import FAILED, RefusedError
from aggregator.server.statuses import CODES, OTHERS, refusal_of
from aggregator.watching.metrics import Metrics
from hushsum_proto import metadata
from hushsum_proto.answers import Refusal, ServiceReason

# Any: the types of messages are those of each method. In quotes: generic in their typings alone.
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"

_journal = journal("grpc")

_FAILED_RETRY_AFTER_MS: Final = 1000
_FOLDERS: Final = re.compile(r"(?<![^\s'\"(=:])/(?!/)(?:[^\s/]+/)*")


class Endings:
    """Ends calls of one service.

    Args:
        metrics: Counts what is refused, by reason.
        for_operator: Whether callers are told what failed inside; others get one fixed sentence.
    """

    def __init__(self, metrics: Metrics, *, for_operator: bool) -> None:
        self._metrics = metrics
        self._for_operator = for_operator

    async def abort(self, context: Context, error: Exception) -> NoReturn:
        """Ends a call with the status of an error; the reason's stable name goes with it."""
        if isinstance(error, grpc.aio.AbortError):
            raise error
        for kind, code, name in OTHERS:
            if isinstance(error, kind):
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
        if not (isinstance(error, RefusedError) and error.counted):
            self._metrics.refused(refusal.reason)
        trailing = [(metadata.REASON, refusal.reason.value)]
        if refusal.retry:
            trailing.append((metadata.RETRY_AFTER_MS, str(refusal.retry_after_ms)))
        code = CODES.get(refusal.reason, grpc.StatusCode.INVALID_ARGUMENT)
        await context.abort(code, refusal.detail, tuple(trailing))


def _without_folders(text: str) -> str:
    """The text with files' names in place of their paths: where files lie is nothing for the wire."""
    return _FOLDERS.sub("", text)
