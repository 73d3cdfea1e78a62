"""The page over HTTP: a bounded listener, and uvicorn on an event loop of its own."""

import asyncio
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from hushsum_page.middleware import HEADERS, NO_STORE

#: Beyond them one is ended, the oldest of the address that has most: a request takes a fraction of a second.
CONNECTIONS_MAX: Final = 64
#: No connection lasts longer, whatever it does: one that sends slowly holds a place no longer than that.
CONNECTION_S_MAX: Final = 60.0
_HANDSHAKE_S_MAX: Final = 10.0
_LOOK_S: Final = 1.0
_IDLE_S_MAX: Final = 15
_STOP_S: Final = 3
_HEAD_BYTES_MAX: Final = 16_384


class BoundedListener(socket.socket):
    """A listening socket that ends connections when there are too many, and all that last long.

    They are counted from the moment at which they are accepted, before TLS, so that none is outside of the bound. Of
    too many, the oldest one of the address with the most connections is ended: who opens many ends its own.

    Raises:
        OSError: The address cannot be used.
    """

    def __init__(self, host: str, port: int, clock: Callable[[], float]) -> None:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        super().__init__(family, socket.SOCK_STREAM)
        self._clock = clock
        # When each began, and from where; the oldest first.
        self._open: dict[socket.socket, tuple[float, str]] = {}
        try:
            self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self.bind((host, port))
            self.listen(CONNECTIONS_MAX)
            self.settimeout(0.0)  # it does not block
        except OSError:
            self.close()
            raise

    @property
    def port(self) -> int:
        """The port that was taken."""
        number: int = self.getsockname()[1]
        return number

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection; others are ended where there are too many."""
        connection, peer = super().accept()
        self._open[connection] = self._clock(), str(peer[0])
        self.end_old()
        return connection, peer

    def end_old(self) -> None:
        """Ends what is too old or too many; forgets what has ended."""
        began_min = self._clock() - CONNECTION_S_MAX
        for each in [each for each in self._open if each.fileno() < 0]:
            del self._open[each]
        for each in [each for each, (began, _) in self._open.items() if began < began_min]:
            self._end(each)
        while len(self._open) > CONNECTIONS_MAX:
            addresses = Counter(address for _, address in self._open.values())
            most = max(addresses.values())
            self._end(next(each for each, (_, address) in self._open.items() if addresses[address] == most))

    def _end(self, connection: socket.socket) -> None:
        del self._open[connection]
        with suppress(OSError):  # it has ended
            connection.shutdown(socket.SHUT_RDWR)


class _Loop(asyncio.SelectorEventLoop):
    """An event loop that gives TLS handshakes little time."""

    async def create_server(self, *arguments: Any, **settings: Any) -> Any:  # Any: asyncio's own form
        if settings.get("ssl") is not None:
            settings["ssl_handshake_timeout"] = _HANDSHAKE_S_MAX
        return await super().create_server(*arguments, **settings)


class _HttpProtocol(H11Protocol):
    """HTTP/1.1, whose answers to what is no HTTP have the headers of all others."""

    def send_400_response(self, msg: str) -> None:
        headers = [
            *HEADERS.items(),
            ("cache-control", NO_STORE),
            ("content-type", "text/plain"),
            ("connection", "close"),
        ]
        for event in (h11.Response(status_code=400, headers=headers), h11.Data(data=msg.encode()), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class PageServer:
    """Serves an application until it is stopped.

    Args:
        listener: Where; it is closed at the end.
        app: What answers.
        tls: For TLS; None: plaintext.
    """

    def __init__(self, listener: BoundedListener, app: ASGIApp, tls: ssl.SSLContext | None) -> None:
        self._listener, self._app, self._tls = listener, app, tls
        self._server: uvicorn.Server | None = None
        self._is_stopped = False
        self._thread = threading.Thread(target=self.run, name="page", daemon=True)

    def start(self) -> None:
        """Serves from a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """Ends it from another thread, and waits for that."""
        self._is_stopped = True
        if self._server is not None:
            self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join()

    def run(self) -> None:
        """Serves in this thread, until :meth:`stop`; in the main thread until it is interrupted."""
        with asyncio.Runner(loop_factory=_Loop) as runner, self._listener:
            runner.run(self._serve())

    async def _serve(self) -> None:
        config = uvicorn.Config(
            self._app,
            http=_HttpProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=_IDLE_S_MAX,
            timeout_graceful_shutdown=_STOP_S,
            h11_max_incomplete_event_size=_HEAD_BYTES_MAX,
            ssl_context_factory=None if self._tls is None else self._context,
        )
        self._server = uvicorn.Server(config)
        self._server.should_exit = self._is_stopped
        looking = asyncio.create_task(self._look())
        try:
            await self._server.serve(sockets=[self._listener])
        finally:
            looking.cancel()

    def _context(self, *_: object) -> ssl.SSLContext:
        assert self._tls is not None, "asked for with TLS alone"
        return self._tls

    async def _look(self) -> None:
        while True:
            self._listener.end_old()
            await asyncio.sleep(_LOOK_S)
