"""HTTP pages, from threads of their own: few connections at once, none for long, and a new one always gets in."""

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
from typing import Final, NamedTuple

from prometheus_client.exposition import choose_encoder

from aggregator.auth.authenticators import holder_of_der
from aggregator.config import Config, host_and_port, is_loopback
from aggregator.data_dir import ReloadedFiles
from aggregator.errors import ConfigError
from aggregator.logs import journal
from aggregator.model import Scope
from aggregator.observability.metrics import Metrics

CONNECTIONS_MAX: Final = 32  # beyond them the oldest is ended: a request that is answered takes milliseconds
CONNECTION_S_MAX: Final = 10.0
_POLL_S: Final = 0.25
_BACKLOG_MAX: Final = 64  # connections that are not accepted yet


class Reply(NamedTuple):
    """The response to one request."""

    status: HTTPStatus
    body: bytes
    kind: str = "text/plain; charset=utf-8"


Answer = Callable[[str, "Message[str, str]"], Reply | None]


class HttpPage(socketserver.ThreadingTCPServer):
    """Answers GET and HEAD until it is closed. A wrong request gets its status and nothing else.

    ``answer`` is called from any thread with a path and the request's headers; None: there is no such page. With
    ``tls``, only clients that it admits are answered.

    Attributes:
        address: ``listen`` with the port that was taken.

    Raises:
        ConfigError: The address cannot be used; the text names ``setting``.
    """

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = _BACKLOG_MAX

    def __init__(
        self,
        setting: str,
        listen: str,
        answer: Answer,
        clock: Callable[[], float],
        tls: "MutualTls | None" = None,
    ) -> None:
        self.answer, self._clock, self.tls = answer, clock, tls
        self._guard = threading.Lock()
        self._open: dict[socket.socket, float] = {}  # the time at which each connection began; oldest first
        address = host_and_port(listen)
        try:
            self.address_family = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][0]
            super().__init__(address, _Handler)
        except OSError as error:
            raise ConfigError(f"{setting}: {listen} cannot be used: {error.strerror or error}") from error
        self.address = f"{listen.rpartition(':')[0]}:{self.server_address[1]}"
        self._thread = threading.Thread(target=self.serve_forever, args=(_POLL_S,), name=setting, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        self._end_connections(most=0, since_s=0.0)
        self._thread.join()

    def get_request(self) -> tuple[socket.socket, object]:
        """Accepts a connection; the TLS handshake is made in the connection's own thread, where it delays no other."""
        try:
            connection, peer = self.socket.accept()
        except OSError:
            threading.Event().wait(_POLL_S)  # too many open files: to try again at once would take a core
            raise
        connection.settimeout(CONNECTION_S_MAX)
        if self.tls is not None:
            try:
                connection = self.tls.context().wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
            except (OSError, ValueError) as error:
                connection.close()
                raise OSError("the connection was closed during the handshake") from error
        with self._guard:
            self._open[connection] = self._clock()
        return connection, peer

    def service_actions(self) -> None:
        """After each accept, and each ``_POLL_S``: ends the oldest of too many connections, and all that last long."""
        self._end_connections(most=CONNECTIONS_MAX, since_s=self._clock() - CONNECTION_S_MAX)

    def shutdown_request(self, request: "socket.socket | tuple[bytes, socket.socket]") -> None:
        assert isinstance(request, socket.socket), "a server of streams"
        with self._guard:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """Not logged: a client that goes away, or speaks another protocol."""

    def _end_connections(self, most: int, since_s: float) -> None:
        """Ends all but the newest ``most`` connections, and those that began before a time; their threads find out."""
        with self._guard:
            surplus = len(self._open) - most
            ended = [each for at, (each, began_s) in enumerate(self._open.items()) if at < surplus or began_s < since_s]
            for connection in ended:
                del self._open[connection]
        for connection in ended:
            with suppress(OSError, ValueError):  # it has ended
                # Not the TLS socket's own shutdown: that drops its TLS first, and a thread that writes meanwhile
                # writes in plaintext.
                socket.socket.shutdown(connection, socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    server: HttpPage

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
        """Sends the status alone: nothing of the request is sent back."""
        self._say(Reply(HTTPStatus(code), b""))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  http.server's form
        """Requests are not logged."""

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
    """TLS that asks clients for a certificate with the scope ``admin``. Its files are read again when they change.

    New files that cannot be used change nothing, are logged, and are tried again. The scope is required because
    clients of gRPC may have certificates of the same authority.

    Raises:
        ConfigError: A file cannot be used.
    """

    def __init__(self, certificate: Path, key: Path, client_ca: Path, clock: Callable[[], float]) -> None:
        paths = certificate, key, client_ca
        self._files = ReloadedFiles(paths, lambda: _context_of(*paths), _log_failure, clock)

    def context(self) -> ssl.SSLContext:
        self._files.refresh()
        return self._files.value

    def admits(self, certificate: bytes) -> bool:
        """Whether a verified certificate (DER) is one for exact counts."""
        holder = holder_of_der(certificate)
        return holder is not None and Scope.ADMIN in holder.scopes


def _context_of(certificate: Path, key: Path, client_ca: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key, password=lambda: "")  # without it OpenSSL would ask at the terminal
        context.load_verify_locations(client_ca)
    except (OSError, ValueError) as error:
        text = f"{certificate}, {key} or {client_ca} cannot be used: {error}"
        raise ConfigError(f"metrics_client_ca: {text}") from error
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def _log_failure(why: str) -> None:
    _journal.error("metrics certificates not reloaded: using the previous ones", error=why)


def metrics_page(metrics: Metrics, config: Config, clock: Callable[[], float]) -> HttpPage:
    """Shows metrics at the configured address.

    In plaintext it answers only requests whose Host header is a name of loopback: a web page in a browser of this
    machine could have given its own name this machine's address, and would read the counts (DNS rebinding).

    Raises:
        ConfigError: The address or a certificate cannot be used.
    """
    tls = None
    if config.metrics_client_ca is not None:
        assert config.tls_cert is not None, "the settings demand it"
        assert config.tls_key is not None, "as well"
        tls = MutualTls(config.tls_cert, config.tls_key, config.metrics_client_ca, clock)

    def answer(path: str, headers: "Message[str, str]") -> Reply | None:
        if path not in _PATHS:
            return None
        if tls is None and not _is_own_name(headers.get("Host", "")):
            return Reply(HTTPStatus.FORBIDDEN, b"the Host header names another machine, expected this one\n")
        encode, kind = choose_encoder(headers.get("Accept", ""))
        return Reply(HTTPStatus.OK, encode(metrics.registry), kind)

    return HttpPage("metrics_listen", config.metrics_listen, answer, clock, tls)


def _is_own_name(host: str) -> bool:
    """Whether a Host header names loopback; a port may follow."""
    name = host.rpartition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    return name.lower() == "localhost" or (bool(name) and is_loopback(name))
