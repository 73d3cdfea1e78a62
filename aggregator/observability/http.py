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
from pathlib import Path
from typing import Final, NamedTuple, Protocol, Self

from prometheus_client.exposition import choose_encoder

from aggregator.auth.authenticators import holder_of_der
from aggregator.config import Config, host_and_port, is_loopback
from aggregator.errors import ConfigError
from aggregator.logs import journal
from aggregator.model import Scope
from aggregator.observability.metrics import Metrics

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


_PATHS: Final = ("/metrics", "/")

_journal = journal("metrics")


class MutualTls:
    """TLS that asks clients for a certificate of the scope ``admin``; its files are read again when they change.

    What cannot be read then leaves everything as it was, is told in the journal, and is tried again. The scope is asked
    for as clients of gRPC may have certificates of the same authority.

    Args:
        certificate: The certificate that is shown, with its chain (PEM).
        key: Its private key.
        client_ca: The authority of the clients' certificates.

    Raises:
        ConfigError: A file cannot be used.
    """

    def __init__(self, certificate: Path, key: Path, client_ca: Path) -> None:
        self._certificate, self._key, self._client_ca = certificate, key, client_ca
        self._seen, self._trouble = self._stamps(), ""
        try:
            self._context = self._read()
        except (OSError, ValueError) as error:
            text = f"{certificate}, {key} or {client_ca} cannot be used: {error}"
            raise ConfigError(f"metrics_client_ca: {text}") from error

    @classmethod
    def of(cls, config: Config) -> Self | None:
        """As the settings say; None: plaintext.

        Raises:
            ConfigError: A file cannot be used, or there is no certificate.
        """
        if config.metrics_client_ca is None:
            return None
        if config.tls_cert is None or config.tls_key is None:
            raise ConfigError("metrics_client_ca: needs tls_cert and tls_key, which the page shows its callers")
        return cls(config.tls_cert, config.tls_key, config.metrics_client_ca)

    def context(self) -> ssl.SSLContext:
        """For the next connection."""
        stamps = self._stamps()  # before they are read: what is written while this reads changes them again
        if stamps == self._seen:
            self._trouble = ""
            return self._context
        try:
            self._context = self._read()
            self._seen, self._trouble = stamps, ""
        except (OSError, ValueError) as error:
            if str(error) != self._trouble:  # each connection tries it again
                self._trouble = str(error)
                _journal.error("the metrics page keeps its certificates: the new ones cannot be used", error=str(error))
        return self._context

    def admits(self, certificate: bytes) -> bool:
        """Whether a verified certificate (DER) is one for exact counts."""
        holder = holder_of_der(certificate)
        return holder is not None and Scope.ADMIN in holder.scopes

    def _read(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self._certificate, self._key, password=lambda: "")  # nobody is there to be asked
        context.load_verify_locations(self._client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _stamps(self) -> list[tuple[int, int, int]]:
        return [_stamp(path) for path in (self._certificate, self._key, self._client_ca)]


def metrics_page(metrics: Metrics, config: Config, clock: Callable[[], float]) -> HttpPage:
    """Shows them where the settings say.

    In plaintext on loopback only to who asks for it by a name of loopback: a web page that a browser of this machine
    shows could have given its own name this machine's address, and would read the counts (DNS rebinding).

    Raises:
        ConfigError: The address or a certificate cannot be used.
    """
    is_local = config.metrics_client_ca is None

    def answer(path: str, headers: "Message[str, str]") -> Reply | None:
        if path not in _PATHS:
            return None
        if is_local and not _is_own_name(headers.get("Host", "")):
            return Reply(HTTPStatus.FORBIDDEN, b"the Host header names another machine, expected this one\n")
        encode, kind = choose_encoder(headers.get("Accept", ""))
        return Reply(HTTPStatus.OK, encode(metrics.registry), kind)

    return HttpPage("metrics_listen", config.metrics_listen, answer, clock, MutualTls.of(config))


def _is_own_name(host: str) -> bool:
    """Whether a Host header names loopback; a port may follow."""
    name = host.rpartition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    return name.lower() == "localhost" or (bool(name) and is_loopback(name))


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()  # through links, as secrets are mounted
    except OSError:
        return (0, 0, 0)
    return found.st_ino, found.st_mtime_ns, found.st_size
