"""A page over HTTP, from threads of its own: few connections at once, none for long, and a new one always gets in."""

import socket
import socketserver
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from email.message import Message
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Final, NamedTuple, Protocol

from aggregator.addresses import host_and_port
from aggregator.errors import ConfigError

CONNECTIONS_MAX: Final = 32  # beyond them the oldest is let go: who is served takes milliseconds
CONNECTION_S_MAX: Final = 10.0
_POLL_S: Final = 0.25
_WAITING_MAX: Final = 64  # connections that nobody has accepted yet


class Reply(NamedTuple):
    """What is said to one request."""

    status: HTTPStatus
    body: bytes
    kind: str = "text/plain; charset=utf-8"


Answer = Callable[[str, "Message[str, str]"], Reply | None]


class Tls(Protocol):
    """How TLS is spoken, and with whom."""

    def context(self) -> ssl.SSLContext:
        """For the next connection; its clients show a certificate that it verifies."""

    def admits(self, certificate: bytes) -> bool:
        """Whether who shows this verified certificate (DER) is answered; else it is told that it is forbidden."""


class HttpPage:
    """Answers GET and HEAD until it is closed. What is wrong with a request is told by its status alone.

    Args:
        key: Of the settings, for errors.
        listen: ``host:port``; port 0 takes any free one.
        answer: What to say to a path and the request's headers, from any thread; None: there is no such page.
        clock: Seconds of a clock that never goes back.
        tls: With whom TLS is spoken; None: plaintext.

    Attributes:
        address: ``listen`` with the port that was taken.

    Raises:
        ConfigError: The address cannot be used.
    """

    def __init__(
        self,
        key: str,
        listen: str,
        answer: Answer,
        clock: Callable[[], float],
        tls: Tls | None = None,
    ) -> None:
        try:
            self._server = _Server(host_and_port(listen), answer, clock, tls)
        except OSError as error:
            raise ConfigError(f"{key}: {listen} cannot be used: {error.strerror or error}") from error
        self.address = f"{listen.rpartition(':')[0]}:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(_POLL_S,), name=key, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the threads and frees the port."""
        self._server.shutdown()
        self._server.server_close()
        self._server.let_go_of_all()
        self._thread.join()


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = _WAITING_MAX

    def __init__(
        self,
        address: tuple[str, int],
        answer: Answer,
        clock: Callable[[], float],
        tls: Tls | None,
    ) -> None:
        self.answer, self._clock, self.tls = answer, clock, tls
        self._guard, self._paused = threading.Lock(), threading.Event()
        self._open: dict[socket.socket, float] = {}  # with when it came; oldest first
        self.address_family = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][0]
        super().__init__(address, _Handler)

    def get_request(self) -> tuple[socket.socket, object]:
        """A new connection; its TLS handshake is made in its own thread, where it holds up nobody."""
        try:
            connection, peer = self.socket.accept()
        except OSError:
            self._paused.wait(_POLL_S)  # no more files can be opened now: to ask again at once would take a core
            raise
        connection.settimeout(CONNECTION_S_MAX)
        if self.tls is not None:
            try:
                connection = self.tls.context().wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
            except (OSError, ValueError) as error:
                connection.close()
                raise OSError("it was gone before it began") from error
        with self._guard:
            self._open[connection] = self._clock()
            oldest = [*self._open][: max(len(self._open) - CONNECTIONS_MAX, 0)]
        self._let_go(oldest)
        return connection, peer

    def service_actions(self) -> None:
        """Lets go of what has had its time, whatever it still sends."""
        until_s = self._clock() - CONNECTION_S_MAX
        with self._guard:
            late = [connection for connection, came_s in self._open.items() if came_s < until_s]
        self._let_go(late)

    def shutdown_request(self, request: "socket.socket | tuple[bytes, socket.socket]") -> None:
        """Ends one connection."""
        assert isinstance(request, socket.socket), "a server of streams"
        with self._guard:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Whoever goes away, or speaks something else, is no news."""

    def let_go_of_all(self) -> None:
        """Ends every connection."""
        with self._guard:
            every = [*self._open]
        self._let_go(every)

    def _let_go(self, connections: list[socket.socket]) -> None:
        """Wakes their threads, which end them."""
        for connection in connections:
            with self._guard:
                self._open.pop(connection, None)
            with suppress(OSError, ValueError):  # it is gone
                # Not the TLS socket's own: that forgets its TLS first, and who writes meanwhile writes in clear.
                socket.socket.shutdown(connection, socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    timeout = CONNECTION_S_MAX
    server: _Server

    def setup(self) -> None:
        if isinstance(self.request, ssl.SSLSocket):
            self.request.do_handshake()
        super().setup()

    def do_GET(self) -> None:
        if not self._is_admitted():
            self._say(Reply(HTTPStatus.FORBIDDEN, b""))
            return
        reply = self.server.answer(self.path.partition("?")[0], self.headers)
        self._say(reply or Reply(HTTPStatus.NOT_FOUND, b""))

    do_HEAD = do_GET  # noqa: N815  http.server's form

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002  the base class says what it gets
        """The status alone: nothing of what came is sent back."""
        self._say(Reply(HTTPStatus(code), b""))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  http.server's form
        """Who asks is no news."""

    def _is_admitted(self) -> bool:
        if self.server.tls is None:
            return True
        shown = self.request.getpeercert(binary_form=True) if isinstance(self.request, ssl.SSLSocket) else None
        return shown is not None and self.server.tls.admits(shown)

    def _say(self, reply: Reply) -> None:
        self.close_connection = True
        if self.request_version == "HTTP/0.9":
            return
        self.send_response_only(reply.status)
        self.send_header("Content-Type", reply.kind)
        self.send_header("Content-Length", str(len(reply.body)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(reply.body)
