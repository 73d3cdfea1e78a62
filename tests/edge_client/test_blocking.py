"""The blocking client: the same client behind one thread, from scripts, threads, and processes that fork."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
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
        client.flush(30)
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
    second.flush(30)
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
    client.flush(30)
    client.close()
    assert "must not call its client" in str(raised[0])
    with pytest.raises(ClientStateError, match="is closed"):
        client.add([1.0, 2.0])
    with pytest.raises(ClientStateError, match="is closed"):
        client.flush()


def test_warnings_are_the_callers_and_name_its_line(service: MemoryService, tmp_path: Path) -> None:
    with EdgeClient(service, spool=tmp_path / "spool.db") as client:
        with pytest.warns(DroppedRecordsWarning) as told:
            client.add([[1.0, float("nan")], [1.0, 2.0]])
        assert told[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error", HushsumWarning)
            with pytest.raises(DroppedRecordsWarning):
                client.add([[1.0, float("nan")], [1.0, 2.0]])
        client.flush(30)
    assert service.records == 1, "where a warning is an error, nothing is stored"


def test_what_counts_nowhere_is_raised_by_flush_or_warned_of_at_the_end(service: MemoryService, tmp_path: Path) -> None:
    service.late()
    client = EdgeClient(service, spool=tmp_path / "spool.db")
    client.add([1.0, 2.0])
    with pytest.raises(NotCountedError, match=r"1 delta came after their window was sealed \(late\)"):
        client.flush(30)
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
        client.flush(30)
    assert service.records == 1, "what was added before the error is sent at the next start"


def test_an_interrupted_wait_ends_and_the_client_goes_on(service: MemoryService, tmp_path: Path) -> None:
    with EdgeClient(service, spool=tmp_path / "spool.db", config=Config(backoff_longest_s=0.01)) as client:
        service.go_away()
        client.add([1.0, 2.0])
        with pytest.raises(FlushTimeoutError, match="the service is away"):
            client.flush(0.05)
        main = threading.get_ident()
        timer = threading.Timer(0.1, lambda: interrupt(main))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            client.flush()
        service.come_back()
        client.flush(30)
    assert service.records == 1


def interrupt(thread: int) -> None:
    """As Ctrl+C does."""
    import signal

    signal.pthread_kill(thread, signal.SIGINT)


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
    ended = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stdout) == (0, "added\n"), ended.stderr
    with EdgeClient(service, spool=tmp_path / "spool.db") as client:
        client.flush(30)
    assert service.records == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_is_told_and_makes_a_client_of_its_own(service: MemoryService, tmp_path: Path) -> None:
    with EdgeClient(service, spool=tmp_path / "parent.db") as client:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads: what is tested
            child = os.fork()
        if child == 0:
            code = 1
            try:
                with pytest.raises(ClientStateError, match="made before a fork"):
                    client.add([1.0, 2.0])
                mine = MemoryService(PLAN)
                with EdgeClient(mine, spool=tmp_path / "child.db") as own:
                    own.add([1.0, 2.0])
                    own.flush(30)
                code = 0 if mine.records == 1 else 2
            finally:
                os._exit(code)
        deadline = time.monotonic() + 60
        while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert ended == (child, 0)
        client.add([1.0, 2.0])
        client.flush(30)
    assert service.records == 1


def test_events_come_from_the_background_thread_in_order(service: MemoryService, tmp_path: Path) -> None:
    events: list[tuple[str, EventKind]] = []
    with EdgeClient(
        service,
        spool=tmp_path / "spool.db",
        on_event=lambda event: events.append((threading.current_thread().name, event.kind)),
    ) as client:
        client.add([1.0, 2.0])
        client.flush(30)
    assert {thread for thread, _ in events} == {"hushsum-edge"}
    assert [kind for _, kind in events] == [EventKind.CONNECTED, EventKind.ACKNOWLEDGED]


async def test_it_works_beside_a_running_loop(service: MemoryService, tmp_path: Path) -> None:
    def work() -> None:
        with EdgeClient(service, spool=tmp_path / "spool.db") as client:
            client.add([1.0, 2.0])
            client.flush(30)

    await asyncio.to_thread(work)
    assert service.records == 1
    gc.collect()
