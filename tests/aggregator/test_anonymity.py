"""Reports are nobody's for real: whatever a running service writes is searched, byte by byte, for those who sent them.

Searched are its whole data folder (log, store, their write-ahead logs, receipts) before and after a window's outcome,
its journal at its most talkative, standard output and error, and the metrics page: for ids, as they are, as the wire
escapes them and as hashes, for the addresses of peers, and for the times at which something came.
"""

import asyncio
import hashlib
import itertools
import json
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import grpc.aio
import pytest

from aggregator.app import Service
from aggregator.auth.authenticators import DeclaredNameAuthenticator
from aggregator.ingest import gateway
from aggregator.ingest.inflight import OnAnswer, ReceivedDelta
from aggregator.ingest.validation import AnonymousReports, AttributedDeltas
from aggregator.logs import journal, write_journal
from aggregator.model import Peer, Scope
from aggregator.rate_limits import QuotaReservation
from hushsum.bitpacking import varint
from hushsum_proto import metadata
from hushsum_proto.answers import Status
from hushsum_proto.convert import entry_from_bytes, entry_to_bytes
from hushsum_proto.entries import ReportsEntry
from tests.aggregator.local_clients import batch_of, report_plan, submit_large
from tests.services import (
    HOUR_MS,
    NOW_MS,
    WINDOW,
    RawClient,
    SetRuntime,
    config_of,
    folded_all,
    page_of,
    service_of,
)

PLAN = report_plan()
CLIENTS = tuple(f"Zoë Wren №{n} of device-{0xC0FFEE + n:x}" for n in range(5))
ARRIVED = {client: NOW_MS + 61_003 * (n + 1) for n, client in enumerate(CLIENTS)}
BAD = 7  # reports of the batches that are refused


def _escaped(client: str) -> tuple[bytes, ...]:
    """As JSON and as Python write it."""
    return json.dumps(client)[1:-1].encode(), ascii(client)[1:-1].encode()


class Traces(NamedTuple):
    """Bytes that would tell of a sender, and what each is."""

    needles: Mapping[bytes, str]

    @classmethod
    def of(cls, peers: set[str]) -> "Traces":
        found: dict[bytes, str] = {}
        for client in CLIENTS:
            raw, escaped = client.encode(), urllib.parse.quote(client, safe="")
            hashed = hashlib.sha256(raw).digest()
            forms = [raw, escaped.encode(), escaped.lower().encode(), *_escaped(client), hashed[:8]]
            forms += [
                metadata.client_id_to_metadata(client).encode(),
                hashed.hex().encode(),
                hashlib.blake2b(raw, digest_size=16).digest(),
            ]
            found |= dict.fromkeys(forms, f"the id {client}")
        for at_ms in ARRIVED.values():
            times = [varint(at_ms), at_ms.to_bytes(6, "big"), at_ms.to_bytes(8, "little"), str(at_ms).encode()]
            found |= dict.fromkeys(times, f"the time {at_ms}")
        for peer in peers:
            host = peer.partition(":")[2]
            forms = [peer.encode(), host.encode(), urllib.parse.quote(host, safe="").encode()]
            found |= dict.fromkeys(forms, f"the peer {peer}")
        return cls(found)

    def within(self, place: str, data: bytes) -> Iterator[str]:
        yield from (f"{what} in {place}" for needle, what in self.needles.items() if needle in data)


async def send(service: Service, client_id: str, streams: Iterator[int]) -> None:
    """Everything that one client may say, right and wrong."""
    async with RawClient(service.grpc) as client:
        client.metadata = ((metadata.CLIENT_ID, metadata.client_id_to_metadata(client_id)),)
        await client.hello(PLAN.id)
        data = [batch_of(PLAN, next(streams), reports) for reports in (1, 20, 300)]
        answers = await client.submit(PLAN.id, [*data, data[0], b"\0 no batch", batch_of(PLAN, 3, BAD)[:-1]])
        answers += [await submit_large(client, PLAN, batch_of(PLAN, next(streams), 2))]
        assert [answer.status for answer in answers].count(Status.ACKNOWLEDGED) == 5
        await client.submit_one(PLAN.id, data[1])
        await client.submit_one(bytes(32), data[1])
        for reports in (1200, 1200):  # the second is beyond its rate
            try:
                await client.submit_one(PLAN.id, batch_of(PLAN, next(streams), reports))
            except grpc.aio.AioRpcError as error:
                assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED  # noqa: PT017  either may come


def times_in(entries: list[ReportsEntry]) -> Iterator[str]:
    """Times in the log that are no window's start."""
    for entry in entries:
        if entry.arrived_ms % HOUR_MS or entry.arrived_ms != WINDOW * HOUR_MS:
            yield f"a time finer than the window in the log: {entry.arrived_ms}"


async def searched(folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What of the senders a whole life of a service leaves anywhere."""
    peers: set[str] = set()
    believes = DeclaredNameAuthenticator.admit

    def noted(self: DeclaredNameAuthenticator, peer: Peer, *scopes: Scope) -> str:
        peers.add(peer.address)
        return believes(self, peer, *scopes)

    monkeypatch.setattr(DeclaredNameAuthenticator, "admit", noted)
    runtime, streams, found = SetRuntime(), itertools.count(10), list[str]()
    config = config_of(
        folder,
        PLAN,
        metrics_listen="127.0.0.1:0",
        partitions=2,
        checkpoint_entries=1,
        retain_verdicts=True,
        client_rate=0.1,
        client_burst=1000,
    )

    def look(when: str) -> None:
        traces = Traces.of(peers)
        for path in sorted(each for each in folder.rglob("*") if each.is_file()):
            found.extend(traces.within(f"{path.name} {when}", path.read_bytes()))

    with (folder / "journal.jsonl").open("w") as stream:
        write_journal("debug", "json", stream)
        async with service_of(config, runtime) as service:
            for client_id in CLIENTS:
                runtime.set_ms = ARRIVED[client_id]
                await send(service, client_id, streams)
            await folded_all(service)
            positioned = [await service.log.read(partition, 0, 10**6, 0.0) for partition in range(2)]
            entries = [entry_from_bytes(each.data) for entry_batch in positioned for each in entry_batch.entries]
            found += times_in([entry for entry in entries if isinstance(entry, ReportsEntry)])
            stream.flush()
            look("while it is open")
            runtime.set_ms = NOW_MS + HOUR_MS
            async with RawClient(service.grpc, None) as operator:
                await operator.seal()
                look("when it is sealed")
                await operator.release()
            service.metrics.registry.hold()  # as the next whole minute does
            page = await asyncio.to_thread(page_of, service.metrics_page)
    look("afterwards")
    output = capfd.readouterr()
    for place, text in (("metrics", page), ("stdout", output.out), ("stderr", output.err)):
        found.extend(Traces.of(peers).within(place, text.encode()))
    assert peers, "channels of one process may share a connection, but there is one"
    return found


def under_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AnonymousReports, "reserve", lambda _self, received: QuotaReservation(received.client_id))
    monkeypatch.setattr(AnonymousReports, "entry", AttributedDeltas.entry)


def at_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def now(_: AnonymousReports, _owner: str, _window: int, data: bytes, now_ms: int) -> bytes:
        return entry_to_bytes(ReportsEntry(data, False, now_ms))

    monkeypatch.setattr(AnonymousReports, "entry", now)


def in_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = AnonymousReports.reserve

    def told(self: AnonymousReports, received: ReceivedDelta) -> QuotaReservation:
        journal("gateway").debug("a batch came", client=received.client_id)
        return honest(self, received)

    monkeypatch.setattr(AnonymousReports, "reserve", told)


def in_the_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = gateway.Gateway.send

    def counting(self: gateway.Gateway, received: ReceivedDelta, on_answer: OnAnswer) -> None:
        self._metrics._refusals.labels(received.client_id).inc()
        honest(self, received, on_answer)

    monkeypatch.setattr(gateway.Gateway, "send", counting)


def its_peer_in_the_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = DeclaredNameAuthenticator.admit

    def told(self: DeclaredNameAuthenticator, peer: Peer, *scopes: Scope) -> str:
        journal("grpc").info("a call", peer=peer.address)
        return honest(self, peer, *scopes)

    monkeypatch.setattr(DeclaredNameAuthenticator, "admit", told)


async def test_nothing_that_a_service_writes_tells_who_sent_a_report_or_when(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await searched(tmp_path, capfd, monkeypatch) == []


@pytest.mark.parametrize(
    ("plant", "what", "where"),
    [
        (under_its_name, "the id", "log.db"),
        (at_its_time, "the time", "log.db"),
        (in_the_journal, "the id", "journal.jsonl"),
        (in_the_metrics, "the id", "metrics"),
        (its_peer_in_the_journal, "the peer", "journal.jsonl"),
    ],
)
async def test_a_planted_mistake_is_found(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[pytest.MonkeyPatch], None],
    what: str,
    where: str,
) -> None:
    plant(monkeypatch)
    found = await searched(tmp_path, capfd, monkeypatch)
    assert plant is not at_its_time or any("a time finer than the window" in each for each in found)
    assert [each for each in found if each.startswith(what) and where in each], found
