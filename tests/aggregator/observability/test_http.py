"""Pages over HTTP: many idle connections, slow ones and wrong ones keep nobody from being answered."""

import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from email.message import Message
from http import HTTPStatus
from pathlib import Path

import pytest

from aggregator.errors import ConfigError
from aggregator.observability.http import CONNECTION_S_MAX, CONNECTIONS_MAX, HttpPage, MutualTls, Reply
from tests.authorities import Certified
from tests.pages import asked


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def hello(path: str, _: "Message[str, str]") -> Reply | None:
    return Reply(HTTPStatus.OK, b"hello\n") if path == "/hello" else None


@contextmanager
def served(clock: Clock | None = None, tls: MutualTls | None = None) -> Iterator[str]:
    page = HttpPage("health_listen", "127.0.0.1:0", hello, clock or Clock(), tls)
    try:
        yield page.address
    finally:
        page.close()


def connected(address: str, stack: ExitStack) -> socket.socket:
    host, _, port = address.rpartition(":")
    return stack.enter_context(socket.create_connection((host, int(port)), timeout=120))


def test_a_page_answers_what_it_has_and_says_of_the_rest_no_more_than_a_status() -> None:
    with served() as address:
        assert asked(address, "/hello") == (200, "hello\n")
        assert asked(address, "/hello?x=1") == (200, "hello\n")
        assert asked(address, "/hello", method="HEAD") == (200, "")
        assert asked(address, "/secret") == (404, "")
        assert asked(address, "/hello", method="POST") == (501, "")


def test_many_idle_connections_keep_nobody_from_being_answered() -> None:
    with served() as address, ExitStack() as stack:
        idle = [connected(address, stack) for _ in range(3 * CONNECTIONS_MAX)]
        assert asked(address, "/hello") == (200, "hello\n")
        assert idle[0].recv(1) == b"", "the oldest has made room"


def test_connections_that_say_nothing_hold_up_no_handshake(tmp_path: Path) -> None:
    files = Certified(tmp_path)
    client = files.client("prometheus", "admin")
    assert client.certificate is not None
    context = ssl.create_default_context(cafile=str(files.ca))
    context.load_cert_chain(client.certificate, client.key)
    with served(tls=MutualTls(files.certificate, files.key, files.ca, lambda: 0.0)) as address, ExitStack() as stack:
        for _ in range(2 * CONNECTIONS_MAX):
            connected(address, stack)
        assert asked(address, "/hello", context) == (200, "hello\n")


def test_a_connection_that_never_ends_its_request_is_let_go_in_time() -> None:
    clock = Clock()
    with served(clock) as address, ExitStack() as stack:
        slow = connected(address, stack)
        slow.sendall(b"GET /hello HTTP/1.0\r\nX: ")
        assert asked(address, "/hello") == (200, "hello\n")
        slow.sendall(b"a")
        clock.now_s += CONNECTION_S_MAX + 1
        assert slow.recv(100) == b""


@pytest.mark.parametrize("sent", [b"\x16\x03\x01\x00\n\n", b"secret\r\n\r\n", b"GET /" + b"a" * 70_000 + b"\r\n\r\n"])
def test_nothing_of_a_wrong_request_is_sent_back(sent: bytes) -> None:
    with served() as address, ExitStack() as stack:
        wrong = connected(address, stack)
        wrong.sendall(sent)
        came = b""
        try:
            while more := wrong.recv(1000):
                came += more
        except ConnectionResetError:
            pass  # of a request that was not read to its end
        assert b"secret" not in came
        assert b"aaa" not in came
        assert asked(address, "/hello") == (200, "hello\n")


def test_an_address_that_is_taken_is_named() -> None:
    with served() as address, pytest.raises(ConfigError, match=f"health_listen: {address} cannot be used"):
        HttpPage("health_listen", address, hello, Clock())
