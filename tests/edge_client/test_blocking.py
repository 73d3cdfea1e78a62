"""The blocking client: the same client behind one thread, from scripts, threads, and processes that fork."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from edge_client import (
    ClientStateError,
    Config,
    DroppedRecordsWarning,
    Event,
    EventKind,
    FlushTimeoutError,
    NotCountedError,
    NotCountedWarning,
    UnreachableError,
)
from edge_client.blocking import EdgeClient
from edge_client.testing import MemoryService
from hushsum.errors import HushsumWarning
from tests.plans import small_plan

PLAN = small_plan()


@pytest.fixture
def service() -> MemoryService:
    return MemoryService(PLAN)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert "hushsum-edge" not in {thread.name for thread in threading.enumerate()}


def test_a_script_adds_flushes_and_reads_its_status(service: MemoryService, tmp_path: Path) -> None:
    with EdgeClient(service, spool=tmp_path / "spool.db", client_id="till") as client:
        assert (client.client_id, client.plan) == ("till", PLAN)
        client.add([[1.0, 2.0], [3.0, 4.0]])
        client.add([5.0, 6.0])
        client.flush(120)
        status = client.status()
    assert (status.records, status.acknowledged, status.queued, status.connected) == (3, 2, 0, True)
    assert service.records == 3
    client.close()  # again: nothing
    assert client.status().acknowledged == 2


def test_many_threads_lose_and_double_nothing(service: MemoryService, tmp_path: Path) -> None:
    with EdgeClient(service, spool=tmp_path / "spool.db") as client, ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda number: client.add([number % 7, 1.0]), range(200)))
        client.flush(60)
    assert service.records == client.status().records == client.status().acknowledged == 200


def test_clients_of_one_process_share_one_thread(service: MemoryService, tmp_path: Path) -> None:
    first = EdgeClient(service, spool=tmp_path / "1.db")
    second = EdgeClient(service, spool=tmp_path / "2.db")
    assert [thread.name for thread in threading.enumerate()].count("hushsum-edge") == 1
    first.close()
    second.add([1.0, 2.0])
    second.flush(120)
    second.close()
    assert service.records == 1


def test_a_closed_client_and_an_event_of_it_raise(service: MemoryService, tmp_path: Path) -> None:
    raised: list[Exception] = []

    def call(event: Event) -> None:
        try:
            client.flush()
        except ClientStateError as error:
            raised.append(error)

    client = EdgeClient(service, spool=tmp_path / "spool.db", on_event=call)
    client.add([1.0, 2.0])
    client.flush(120)
    client.close()
    assert "must not call its client" in str(raised[0])
    with pytest.raises(ClientStateError, match="is closed"):
        client.add([1.0, 2.0])
    with pytest.raises(ClientStateError, match="is closed"):
        client.flush()


def test_an_event_that_closes_or_exits_ends_nothing(
    service: MemoryService, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def close_and_exit(event: Event) -> None:
        with suppress(ClientStateError):
            client.close()
        sys.exit(event.kind)

    client = EdgeClient(service, spool=tmp_path / "spool.db", on_event=close_and_exit)
    client.add([1.0, 2.0])
    client.flush(120)
    client.close()
    with EdgeClient(service, spool=tmp_path / "spool.db") as again:
        assert again.status().acknowledged == 1
    assert "SystemExit raised in on_event; the client continues" in caplog.text


@pytest.mark.parametrize("others", [0, 1])
def test_a_close_ends_calls_that_are_under_way_in_other_threads(
    service: MemoryService, tmp_path: Path, others: int
) -> None:
    kept = [EdgeClient(service, spool=tmp_path / f"other-{number}.db") for number in range(others)]
    for _ in range(10):
        client = EdgeClient(service, spool=tmp_path / "spool.db")
        working = [Endless(call, client) for call in (EdgeClient.status, EdgeClient.flush, add_one, add_one)]
        while not all(each.calls for each in working):
            time.sleep(0.001)
        client.close()
        for each in working:
            each.is_over.set()
            each.join(120)
        assert not any(each.is_alive() for each in working)
    for other in kept:
        other.close()


class Endless(threading.Thread):
    """Calls until that raises that the client is closed, or the test is over."""

    def __init__(self, call: Callable[[EdgeClient], object], client: EdgeClient) -> None:
        super().__init__(daemon=True)
        self.calls = 0
        self.is_over = threading.Event()
        self._call, self._client = call, client
        self.start()

    def run(self) -> None:
        with suppress(ClientStateError):
            while not self.is_over.is_set():  # the status of a closed client can be read for ever
                self._call(self._client)
                self.calls += 1


def add_one(client: EdgeClient) -> None:
    client.add([1.0, 2.0])


@pytest.mark.parametrize("where", ["constructor", "close"])
def test_an_interrupted_start_or_end_leaves_the_spool_free(
    service: MemoryService, tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered = threading.Event()

    async def slow(*_: object, **__: object) -> None:
        entered.set()
        await asyncio.sleep(600)

    main = threading.get_ident()

    def interrupt_it() -> None:
        entered.wait(120)
        interrupt(main)

    interrupting = threading.Thread(target=interrupt_it)
    if where == "constructor":
        monkeypatch.setattr("edge_client.client.EdgeClient._start", slow)
        interrupting.start()
        with pytest.raises(KeyboardInterrupt):
            EdgeClient(service, spool=tmp_path / "spool.db")
    else:
        client = EdgeClient(service, spool=tmp_path / "spool.db")
        monkeypatch.setattr("edge_client.participation.mode.Mode.finish", slow)
        interrupting.start()
        with pytest.raises(KeyboardInterrupt):
            client.close()
    interrupting.join()
    monkeypatch.undo()
    with EdgeClient(service, spool=tmp_path / "spool.db") as again:
        again.add([1.0, 2.0])
        again.flush(120)


def test_a_close_in_a_handler_of_a_signal_during_a_close_returns(
    service: MemoryService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask_for_the_signal(*_: object, **__: object) -> None:
        signal.raise_signal(signal.SIGUSR1)
        await asyncio.sleep(0.05)

    handled = list[int]()

    def handler(number: int, _: object) -> None:
        client.close()
        handled.append(number)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        client = EdgeClient(service, spool=tmp_path / "spool.db")
        monkeypatch.setattr("edge_client.participation.mode.Mode.finish", ask_for_the_signal)
        client.close()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert handled == [signal.SIGUSR1]


def test_warnings_are_the_callers_and_name_its_line(service: MemoryService, tmp_path: Path) -> None:
    with EdgeClient(service, spool=tmp_path / "spool.db") as client:
        with pytest.warns(DroppedRecordsWarning) as told:
            client.add([[1.0, float("nan")], [1.0, 2.0]])
        assert told[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error", HushsumWarning)
            with pytest.raises(DroppedRecordsWarning):
                client.add([[1.0, float("nan")], [1.0, 2.0]])
        client.flush(120)
    assert service.records == 1, "where a warning is an error, nothing is stored"


def test_what_counts_nowhere_is_raised_by_flush_or_warned_of_at_the_end(service: MemoryService, tmp_path: Path) -> None:
    service.late()
    client = EdgeClient(service, spool=tmp_path / "spool.db")
    client.add([1.0, 2.0])
    with pytest.raises(NotCountedError, match=r"1 delta.* \(late\)"):
        client.flush(120)
    client.add([1.0, 2.0])
    with pytest.warns(NotCountedWarning, match="late") as told:
        client.close()
    assert told[0].filename == __file__


def test_a_failed_start_and_an_error_in_the_body_leave_no_thread(service: MemoryService, tmp_path: Path) -> None:
    with pytest.raises(UnreachableError):
        EdgeClient("localhost:1", spool=tmp_path / "1.db", config=Config(first_contact_s=0.01, insecure=True))
    with suppress(ZeroDivisionError), EdgeClient(service, spool=tmp_path / "2.db") as client:
        service.go_away()
        client.add([1.0, 2.0])
        raise ZeroDivisionError
    service.come_back()
    with EdgeClient(service, spool=tmp_path / "2.db") as client:
        client.flush(120)
    assert service.records == 1, "what was added before the error is sent at the next start"


def test_an_interrupted_wait_ends_and_the_client_goes_on(service: MemoryService, tmp_path: Path) -> None:
    with EdgeClient(service, spool=tmp_path / "spool.db", config=Config(backoff_longest_s=0.01)) as client:
        service.go_away()
        client.add([1.0, 2.0])
        with pytest.raises(FlushTimeoutError, match="the service is unavailable"):
            client.flush(0.05)
        main = threading.get_ident()
        timer = threading.Timer(0.1, lambda: interrupt(main))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            client.flush()
        service.come_back()
        client.flush(120)
    assert service.records == 1


def interrupt(thread: int) -> None:
    """As Ctrl+C does."""
    signal.pthread_kill(thread, signal.SIGINT)


def test_a_client_may_be_closed_at_exit(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_bytes(PLAN.bundle)
    code = f"""
import atexit
from pathlib import Path
import hushsum as hs
from edge_client.blocking import EdgeClient
from edge_client.testing import MemoryService
service = MemoryService(hs.Plan.from_bytes(Path({str(tmp_path / "plan.json")!r}).read_bytes()))
client = EdgeClient(service, spool={str(tmp_path / "spool.db")!r})
atexit.register(lambda: (client.close(), print(service.records)))
client.add([1.0, 2.0])
"""
    ended = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (0, "1\n"), ended.stderr


def test_a_process_that_ends_without_closing_is_not_held_up_and_loses_nothing(
    service: MemoryService, tmp_path: Path
) -> None:
    (tmp_path / "plan.json").write_bytes(PLAN.bundle)
    code = f"""
import hushsum as hs
from edge_client.blocking import EdgeClient
from edge_client.testing import MemoryService
from pathlib import Path
service = MemoryService(hs.Plan.from_bytes(Path({str(tmp_path / "plan.json")!r}).read_bytes()))
client = EdgeClient(service, spool={str(tmp_path / "spool.db")!r})
service.go_away()
client.add([1.0, 2.0])
print("added")
"""
    ended = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (0, "added\n"), ended.stderr
    with EdgeClient(service, spool=tmp_path / "spool.db") as client:
        client.flush(120)
    assert service.records == 1


GRPC_CHILD = """
import os, sys
from edge_client import ClientStateError, Config
from edge_client.blocking import EdgeClient
spool, early = sys.argv[1:]
def start(name):
    EdgeClient("localhost:1", spool=spool + name, config=Config(first_contact_s=0.01, insecure=True))
if early == "early":
    try:
        start("parent")
    except Exception as error:
        print(type(error).__name__, flush=True)
child = os.fork()
if child == 0:
    try:
        start("child")
    except Exception as error:
        print(type(error).__name__, flush=True)
    os._exit(0)
print(os.waitpid(child, 0)[1], flush=True)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.parametrize(
    ("early", "said"),
    [("early", "UnreachableError\nClientStateError\n0\n"), ("late", "UnreachableError\n0\n")],
)
def test_a_forked_process_whose_parent_used_grpc_is_told(tmp_path: Path, early: str, said: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", GRPC_CHILD, str(tmp_path / "spool-"), early]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert (ended.returncode, ended.stdout) == (0, said), ended.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_is_told_and_makes_a_client_of_its_own(service: MemoryService, tmp_path: Path) -> None:
    with EdgeClient(service, spool=tmp_path / "parent.db") as client:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads: what is tested
            child = os.fork()
        if child == 0:
            code = 1
            try:
                with pytest.raises(ClientStateError, match="created before a fork"):
                    client.add([1.0, 2.0])
                mine = MemoryService(PLAN)
                with EdgeClient(mine, spool=tmp_path / "child.db") as own:
                    own.add([1.0, 2.0])
                    own.flush(120)
                code = 0 if mine.records == 1 else 2
            finally:
                os._exit(code)
        deadline = time.monotonic() + 120
        while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert ended == (child, 0)
        client.add([1.0, 2.0])
        client.flush(120)
    assert service.records == 1


def test_events_come_from_the_background_thread_in_order(service: MemoryService, tmp_path: Path) -> None:
    events: list[tuple[str, EventKind]] = []
    with EdgeClient(
        service,
        spool=tmp_path / "spool.db",
        on_event=lambda event: events.append((threading.current_thread().name, event.kind)),
    ) as client:
        client.add([1.0, 2.0])
        client.flush(120)
    assert {thread for thread, _ in events} == {"hushsum-edge"}
    assert [kind for _, kind in events] == [EventKind.CONNECTED, EventKind.ACKNOWLEDGED]


async def test_it_works_beside_a_running_loop(service: MemoryService, tmp_path: Path) -> None:
    def work() -> None:
        with EdgeClient(service, spool=tmp_path / "spool.db") as client:
            client.add([1.0, 2.0])
            client.flush(120)

    await asyncio.to_thread(work)
    assert service.records == 1
    gc.collect()
