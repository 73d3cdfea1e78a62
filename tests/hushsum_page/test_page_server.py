"""The page over HTTP: connections that are slow or many, requests that are many, and its end."""

import http.client
import re
import resource
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import PlainTextResponse

from hushsum.entropy import OsEntropy
from hushsum_page.files import FilesSource
from hushsum_page.middleware import HEADERS
from hushsum_page.server import CONNECTION_S_MAX, CONNECTIONS_MAX, BoundedListener, PageServer
from hushsum_page.viewer import Viewer, opening_page
from hushsum_simulator.testbed.process import free_port
from tests.authorities import Certified
from tests.hushsum_page.page_releases import MAKERS, Browser, Clock, address_of, central, points, saved
from tests.plans import small_plan

REQUESTS = 10_000


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def listener(clock: Clock) -> Iterator[BoundedListener]:
    made = BoundedListener("127.0.0.1", 0, clock)
    yield made
    made.close()


HELLO = PlainTextResponse("hello")


@pytest.fixture
def server(listener: BoundedListener) -> Iterator[PageServer]:
    made = PageServer(listener, HELLO, None)
    made.start()
    yield made
    made.stop()


def connected(listener: BoundedListener, source: str = "") -> socket.socket:
    return socket.create_connection(("127.0.0.1", listener.port), timeout=120, source_address=(source, 0))


def asked(listener: BoundedListener) -> bytes:
    with connected(listener) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        return b"".join(iter(lambda: connection.recv(4096), b""))


def test_slow_connections_keep_nobody_out(server: PageServer, listener: BoundedListener) -> None:
    """More than there is room for, each in the middle of its first line."""
    slow = []
    for _ in range(CONNECTIONS_MAX + 20):
        slow.append(connected(listener))
        slow[-1].sendall(b"GET / HT")
    assert asked(listener).endswith(b"hello")
    assert slow[0].recv(1) == b""  # the oldest were ended
    for each in slow:
        each.close()


def test_many_connections_of_one_address_end_no_connection_of_another(
    server: PageServer, listener: BoundedListener
) -> None:
    with connected(listener, "127.0.0.2") as other:
        other.sendall(b"GET / HT")  # a request that takes long
        many = [connected(listener) for _ in range(2 * CONNECTIONS_MAX)]
        assert asked(listener).endswith(b"hello")
        assert many[0].recv(1) == b""
        other.sendall(b"TP/1.1\r\nHost: x\r\n\r\n")
        assert other.recv(4096).startswith(b"HTTP/1.1 200 ")
    for each in many:
        each.close()


def test_a_connection_that_lasts_too_long_is_ended(server: PageServer, listener: BoundedListener, clock: Clock) -> None:
    with connected(listener) as slow:
        slow.sendall(b"GET / HT")
        assert asked(listener).endswith(b"hello")
        clock.now_s += CONNECTION_S_MAX + 1
        assert slow.recv(1) == b""


def test_a_head_that_is_too_long_is_refused(server: PageServer, listener: BoundedListener) -> None:
    with connected(listener) as connection:
        connection.sendall(b"GET /" + b"a" * 50_000)
        answer = connection.makefile("rb").read()
    head = answer.partition(b"\r\n\r\n")[0].decode().lower().split("\r\n")
    assert head[0].startswith("http/1.1 400 ")
    assert {f"{name}: {value}".lower() for name, value in HEADERS.items()} | {"cache-control: no-store"} <= set(head)


def test_what_has_ended_is_forgotten(server: PageServer, listener: BoundedListener) -> None:
    for _ in range(200):
        assert asked(listener).endswith(b"hello")
    listener.end_old()
    assert len(listener._open) <= CONNECTIONS_MAX


def test_an_address_that_cannot_be_used_is_refused(listener: BoundedListener) -> None:
    with pytest.raises(OSError, match="in use"):
        BoundedListener("127.0.0.1", listener.port, Clock())


def test_a_server_that_is_stopped_gives_its_port_back() -> None:
    port = free_port()
    listener = BoundedListener("127.0.0.1", port, Clock())
    made = PageServer(listener, HELLO, None)
    made.start()
    assert asked(listener).endswith(b"hello")
    made.stop()
    BoundedListener("127.0.0.1", port, Clock()).close()


def test_a_handshake_that_never_comes_keeps_nobody_out(listener: BoundedListener, tmp_path: Path) -> None:
    certified = Certified(tmp_path / "certificates")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certified.certificate, certified.key)
    made = PageServer(listener, HELLO, context)
    made.start()
    silent = [connected(listener) for _ in range(CONNECTIONS_MAX + 5)]
    trusting = ssl.create_default_context(cafile=certified.ca)
    connection = http.client.HTTPSConnection("localhost", listener.port, context=trusting, timeout=120)
    connection.request("GET", "/")
    assert connection.getresponse().read() == b"hello"
    connection.close()
    for each in silent:
        each.close()
    made.stop()


class Visitor:
    """A client of a viewer, with its session."""

    def __init__(self, viewer: Viewer) -> None:
        self.viewer = viewer
        address = re.fullmatch(r"http://(.+):(\d+)(/sign-in\?token=.+)", viewer.address)
        assert address is not None
        self.place = address[1], int(address[2])
        self.connection = http.client.HTTPConnection(*self.place, timeout=60)
        self.cookie = ""
        head, _ = self.get(address[3])
        self.cookie = str(head["Set-Cookie"]).partition(";")[0]

    def get(self, path: str) -> tuple[Any, bytes]:
        self.connection.request("GET", path, headers={"Cookie": self.cookie} if self.cookie else {})
        response = self.connection.getresponse()
        return response.headers, response.read()


@pytest.fixture
def viewer(tmp_path: Path) -> Iterator[Viewer]:
    made = Viewer(saved(tmp_path, {"today": MAKERS["hashed"]()}), 0, entropy=OsEntropy(), clock=time.monotonic)
    made.server.start()
    yield made
    made.server.stop()


def test_a_file_is_viewed_over_http(viewer: Viewer) -> None:
    visitor = Visitor(viewer)
    assert b"today.hush" in visitor.get("/")[1]
    assert visitor.get("//evil.example/")[0]["Content-Security-Policy"].startswith("default-src 'self'")
    visitor.connection.close()


def test_a_browser_that_leaves_a_download_gives_its_memory_back(tmp_path: Path, clock: Clock) -> None:
    plan = small_plan(sketch={"rows": 64, "buckets": 65_536})
    source = FilesSource(saved(tmp_path, {"large": central(plan, points())}))
    browser = Browser(source).sign_in()
    address, cookies = address_of(browser, "large.hush"), dict(browser.client.cookies)
    listener = BoundedListener("127.0.0.1", 0, clock)
    server = PageServer(listener, browser.page.app(browser.errors.append), None)
    server.start()
    cookie = "; ".join(f"{name}={value}" for name, value in cookies.items())
    request = f"GET {address}/release.hush HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: {cookie}\r\n\r\n"
    for _ in range(3):
        with connected(listener) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(request.encode())
            assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")
            assert browser.library._sent_bytes
    while browser.library._sent_bytes:
        time.sleep(0.01)
    server.stop()
    assert not browser.errors


def test_the_page_that_opens_a_browser_leads_to_the_address(viewer: Viewer) -> None:
    assert f"url={viewer.address}" in opening_page(viewer.address)


@pytest.mark.long
def test_ten_thousand_requests_leave_memory_as_it_is(viewer: Viewer) -> None:
    """A long run: of pictures that all differ, from four clients, after as many as fill the caches."""
    first = Visitor(viewer)
    release = re.findall(r'"(/releases/[0-9a-f]{16})"', first.get("/")[1].decode())[0]

    def ask(visitor: Visitor, numbers: range) -> None:
        for at in numbers:  # each of them another question
            place = f"hold1={at % 10}.{at}&c0={at % 7}&c1={at % 9}"
            address = f"{release}?kind=density&{place}" if at % 10 == 0 else f"{release}/at?{place}"
            head, _ = visitor.get(address)
            if head["Connection"] == "close" or at % 50 == 49:
                visitor.connection.close()
        visitor.connection.close()

    def together(start: int, number: int) -> None:
        share = number // 4
        visitors = [Visitor.__new__(Visitor) for _ in range(4)]
        for visitor in visitors:
            visitor.cookie, visitor.connection = first.cookie, http.client.HTTPConnection(*first.place, timeout=60)
        threads = [
            threading.Thread(target=ask, args=(visitor, range(start + at * share, start + (at + 1) * share)))
            for at, visitor in enumerate(visitors)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    together(0, 2000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    together(2000, REQUESTS - 2000)
    first.connection.close()
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown_kib < 40_000, grown_kib
