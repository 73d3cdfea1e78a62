"""Whether this process runs, and whether it can be used: two pages over plain HTTP, and nothing else on them.

They answer from threads of their own, so that an event loop that hangs is told by somebody else.
"""

from collections.abc import Callable
from email.message import Message
from http import HTTPStatus
from typing import Final

from aggregator.ports import Runtime
from aggregator.watching.http_page import HttpPage, Reply

BEAT_S: Final = 1.0
STALLED_S: Final = 30.0

_OK: Final = Reply(HTTPStatus.OK, b"ok\n")
_NOT_ALIVE: Final = Reply(HTTPStatus.SERVICE_UNAVAILABLE, b"stalled\n")
_NOT_READY: Final = Reply(HTTPStatus.SERVICE_UNAVAILABLE, b"unready\n")


class Health:
    """How a process does, as far as others need to know. Written on the event loop, read from any thread.

    Args:
        runtime: Time.

    Attributes:
        serves: Whether callers are answered: it has started, and does not stop yet.
        answers: Whether what it stands on can be reached.
        failed: Whether it cannot go on.
    """

    def __init__(self, runtime: Runtime) -> None:
        self.serves, self.answers, self.failed = False, True, False
        self._runtime = runtime
        self._beat_s = runtime.monotonic()

    @property
    def is_alive(self) -> bool:
        """Whether the event loop runs, and nothing has failed for good."""
        return not self.failed and self._runtime.monotonic() - self._beat_s < STALLED_S

    @property
    def is_ready(self) -> bool:
        """Whether it can be used now."""
        return self.is_alive and self.serves and self.answers

    async def beat(self) -> None:
        """The event loop's heartbeat, for ever."""
        while True:
            self._beat_s = self._runtime.monotonic()
            await self._runtime.sleep(BEAT_S)


def health_page(health: Health, listen: str, clock: Callable[[], float]) -> HttpPage:
    """``/livez`` and ``/readyz``.

    Raises:
        ConfigError: The address cannot be used.
    """

    def answer(path: str, _: "Message[str, str]") -> Reply | None:
        if path == "/livez":
            return _OK if health.is_alive else _NOT_ALIVE
        if path == "/readyz":
            return _OK if health.is_ready else _NOT_READY
        return None

    return HttpPage("health_listen", listen, answer, clock)
