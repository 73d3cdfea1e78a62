"""No line that a service writes of a local or secure plan holds anything of one client, at any level.

Whole services run at their most talkative, with clients that keep to the protocol and clients that do not, and with
errors inside that name a client; the journal, both outputs and the loggers of libraries are searched for the clients'
ids, their deltas' streams, their keys and their peers' addresses.
"""

import asyncio
import io
import logging
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
import pytest
import structlog

from aggregator import logs as journals
from aggregator.app import Service
from aggregator.auth.authenticators import DeclaredNameAuthenticator
from aggregator.ingest.gateway import Gateway
from aggregator.ingest.inflight import OnAnswer, ReceivedDelta
from aggregator.ingest.validation import SubmissionPolicy
from aggregator.interfaces import Log
from aggregator.logs import journal, write_journal
from aggregator.model import Peer, Scope
from aggregator.secure import coordinator
from aggregator.secure.round import RoundDriver, RoundEnd
from hushsum.delta import DeltaId
from hushsum.entropy import OsEntropy
from hushsum.plan import Plan
from hushsum.secure_sum.client import ClientRound
from hushsum.secure_sum.messages import Kind
from hushsum.secure_sum.server import ServerRound
from hushsum.signing import Directory, DirectoryKey, Role, SigningKey, toml_of
from hushsum_proto import convert
from hushsum_proto.messages import Authenticity, chunks_of
from hushsum_proto.rounds import Message
from tests.aggregator.local_clients import batch_of, large_call, noised, report_plan, silo_plan, submit_shuffled
from tests.aggregator.secure_clients import Line, SecureClient, fleet_of, stub_of
from tests.aggregator.secure_site import SIZE, all_parts, plan_of, site_config
from tests.plans import small_plan
from tests.services import WINDOW, Contributor, HeldLog, RawClient, config_of, service_of

CLIENTS = tuple(f"zebra-{n}-of-device" for n in range(4))
STREAMS = tuple(0xFACE_0000_BEEF_0000 + n for n in range(64))
PLANS = {"reports": report_plan(), "silo": silo_plan(), "central": small_plan()}

Plant = Callable[[pytest.MonkeyPatch], None]


class Heard:
    """What tells of clients, and every place where a service may write it."""

    def __init__(self, level: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lines, self.peers = io.StringIO(), set[str]()
        self.more: list[str] = []  # other words that tell of one client
        write_journal(level, form, self.lines)
        admits = DeclaredNameAuthenticator.admit

        def noted(of: DeclaredNameAuthenticator, peer: Peer, *scopes: Scope) -> str:
            self.peers.add(peer.address)
            return admits(of, peer, *scopes)

        monkeypatch.setattr(DeclaredNameAuthenticator, "admit", noted)

    def found(self, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> list[str]:
        """What was written of anybody."""
        output = capfd.readouterr()
        text = self.lines.getvalue() + output.out + output.err + caplog.text
        needles = [*CLIENTS, *self.more]
        needles += [form for stream in STREAMS for form in (str(stream), f"{stream:016x}")]
        needles += [f":{peer.rpartition(':')[2]}" for peer in self.peers]
        assert "stopped" in self.lines.getvalue(), "the journal was written"
        assert self.peers, "somebody called"
        return [needle for needle in needles if needle.lower() in text.lower()]


def delta_of(plan: Plan, stream: int, window: int = WINDOW) -> bytes:
    if plan is PLANS["reports"]:
        return batch_of(plan, stream, 3, window=window)
    if plan is PLANS["silo"]:
        return noised(plan, DeltaId(stream, 0), window=window)
    return Contributor(plan, stream, window).delta()[1]


async def misbehave(service: Service, plan: Plan, client_id: str, streams: list[int]) -> None:
    """Everything that a client may say, right and wrong, and ways to be gone."""
    async with RawClient(service.grpc, client_id) as client:
        data = [delta_of(plan, stream) for stream in streams]
        await client.hello(plan.id)
        await client.submit(plan.id, [data[0], data[0], data[1], data[0][:-1], b"\x01 no delta", b""])
        await client.submit(plan.id, [delta_of(plan, streams[0], WINDOW + each) for each in (-9, 0, 9)])
        await client.submit(bytes(32), [data[2]])
        signed = submit_shuffled(client, plan, data[3], Authenticity(key_id=client_id, suite=1, tag=bytes(64)))
        for call in (
            client.submit_one(plan.id, bytes(10**6)),
            client.hello(bytes(32)),
            client.hello(b"", (9,)),
            signed,
        ):
            with suppress(grpc.aio.AioRpcError):
                await call
        cut = large_call(client, list(chunks_of(plan.id, data[4] * 9))[:1])
        await asyncio.sleep(0)
        cut.cancel()
        stream = client.collection.Submit(None, metadata=client.metadata)
        await stream.write(convert.submission_to_wire(plan.id, data[5]))
        stream.cancel()
        open_raw: Any = client.channel.stream_stream  # whatever bytes, as a stranger's software would send
        raw = open_raw("/hushsum.v1.Collection/Submit")(metadata=client.metadata)
        await raw.write(b"\xff no message")
        await raw.read()
        raw.cancel()
        for path in ("/hushsum.v1.Collection/Submit", "/hushsum.v1.Nothing/Known"):
            call_raw: Any = client.channel.unary_unary(path)  # as above
            other = call_raw(b"\xff", metadata=(*client.metadata, ("x-own", client_id)))
            with suppress(grpc.aio.AioRpcError):
                await other
    unnamed = RawClient(service.grpc, None)
    with suppress(grpc.aio.AioRpcError):
        await unnamed.hello()
    await unnamed.channel.close(None)


def fails_inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Now and then something breaks inside, with words of a client."""
    honest, step, calls = SubmissionPolicy.parse, ServerRound.handle, iter(range(10**6))

    def parse(self: SubmissionPolicy, plan_id: bytes, data: bytes, parsed: object) -> object:
        if next(calls) % 5 == 4:
            raise KeyError(CLIENTS[0], f"{STREAMS[0]:016x}")
        return honest(self, plan_id, data, parsed)  # type: ignore[arg-type]  # as it came

    def handle(self: ServerRound, event: object) -> object:
        if next(calls) % 97 == 96:
            raise ValueError(f"no {CLIENTS[0]}")
        return step(self, event)  # type: ignore[arg-type]  # as it came

    monkeypatch.setattr(SubmissionPolicy, "parse", parse)
    monkeypatch.setattr(ServerRound, "handle", handle)


async def heard_of(mode: str, folder: Path, heard: Heard) -> None:
    """A service of reports, of silos or of a central plan, from its start to its end."""
    plan, held = PLANS[mode], list[HeldLog]()

    def failing(log: Log) -> Log:
        held.append(HeldLog(log))
        held[0].failures += [KeyError(CLIENTS[1]), OSError("disk full")]
        return held[0]

    config = config_of(
        folder, plan, client_rate=0.1, client_burst=900, client_bytes_burst=30_000, client_bytes_rate=0.1
    )
    async with service_of(config, wrap_log=failing) as service:
        streams = list(STREAMS)
        for client_id in CLIENTS:
            await misbehave(service, plan, client_id, [streams.pop() for _ in range(6)])
        async with RawClient(service.grpc) as operator:
            await operator.seal()
            with suppress(grpc.aio.AioRpcError):
                await operator.release()
    heard.more += [f"{client_id!r}" for client_id in CLIENTS]


async def cohorts_of(folder: Path, heard: Heard, rng: np.random.Generator) -> None:
    """Rounds of a secure plan with a directory, whose clients vanish, lie, babble and sign with a wrong key."""
    keys = [SigningKey.generate(OsEntropy()) for _ in range(SIZE)]
    names = [*CLIENTS, *(f"zebra-{n}-of-device" for n in range(len(CLIENTS), SIZE))]
    entries = [DirectoryKey(name, Role.CLIENT, key.verify_key) for name, key in zip(names, keys, strict=True)]
    toml = "\n".join(map(toml_of, entries))
    (folder / "clients.toml").write_text(toml)
    directory = Directory.from_toml(toml)
    plan = plan_of(directory=directory.digest().hex(), cohort_wait="1s")
    heard.more += names
    for number, misdeed in enumerate(MISDEEDS):
        fleet = fleet_of(plan, SIZE, rng)
        for client, name, key in zip(fleet, names, keys, strict=True):
            client.client_id, client.key, client.directory = name, key, directory
        misdeed(fleet[0])
        own = folder / str(number)
        own.mkdir()
        config = site_config(
            own, plan, client_directory=str(folder / "clients.toml"), secure_step_s=0.5, secure_upload_s=3.0
        )
        async with service_of(config) as service, stub_of(service.grpc) as stub:
            await all_parts(fleet, stub)
            line = Line.open(stub, CLIENTS[2])
            await line.say(Message(b"no message of any round"))
            with suppress(grpc.aio.AioRpcError):
                await line.hear()


def _vanishes(client: SecureClient) -> None:
    client.vanishes_at = Kind.ROSTER


def _babbles(client: SecureClient) -> None:
    def hook(_: SecureClient, kind: Kind) -> None:
        if kind is Kind.ROSTER:
            client._said = client.client_id.encode()

    client.hook, client.stutters = hook, True
    client.silent_at = Kind.INBOX


def _chunks(client: SecureClient) -> None:
    client.vanishes_at = Kind.GRANT


def _forges(client: SecureClient) -> None:
    client.key = SigningKey.generate(OsEntropy())


def _corrupted(client: SecureClient, *, voids: bool) -> None:
    honest = client.machine_of

    def corrupt(window: int, round_id: bytes) -> ClientRound:
        machine = honest(window, round_id)
        own = machine._own
        assert own is not None
        if voids:
            sealed = own.sealed_shares
            own.sealed_shares = lambda: [bytes(32), *sealed()[1:]]  # type: ignore[method-assign]  # its own lie, of this one
        else:
            own.revealed = lambda survivors: [bytes(16)] * (len(survivors) - 1)  # type: ignore[method-assign]  # its own lie
        return machine

    client.machine_of = corrupt  # type: ignore[method-assign]  # this one alone


def _lies(client: SecureClient) -> None:
    _corrupted(client, voids=False)


def _voids(client: SecureClient) -> None:
    _corrupted(client, voids=True)


MISDEEDS: tuple[Callable[[SecureClient], None], ...] = (_vanishes, _lies, _voids, _babbles, _chunks, _forges)


async def searched(
    mode: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    rng: np.random.Generator,
    *,
    form: str = "json",
    plant: Plant = fails_inside,
) -> list[str]:
    """What one life of a service writes of anybody; a central plan's at its usual level."""
    level = "info" if mode == "central" else "debug"
    caplog.set_level(logging.DEBUG if level == "debug" else logging.INFO)
    plant(monkeypatch)
    heard = Heard(level, form, monkeypatch)
    await (cohorts_of(folder, heard, rng) if mode == "secure" else heard_of(mode, folder, heard))
    return heard.found(capfd, caplog)


@pytest.mark.parametrize("form", ["json", "console"])
@pytest.mark.parametrize("mode", ["reports", "silo", "central"])
async def test_nothing_that_is_written_tells_of_a_client(
    mode: str,
    form: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    rng: np.random.Generator,
) -> None:
    assert await searched(mode, tmp_path, monkeypatch, capfd, caplog, rng, form=form) == []


def broken_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    fails_inside(monkeypatch)


def whole(_: pytest.MonkeyPatch) -> None:
    """Nothing breaks inside."""


@pytest.mark.parametrize("plant", [whole, broken_now_and_then])
async def test_nothing_that_is_written_tells_of_a_client_of_a_cohort(
    plant: Plant,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    rng: np.random.Generator,
) -> None:
    assert await searched("secure", tmp_path, monkeypatch, capfd, caplog, rng, plant=plant) == []


def a_client_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Gateway.send

    def told(self: Gateway, received: ReceivedDelta, on_answer: OnAnswer) -> None:
        journal("gateway").debug("a delta came", client=received.client_id)
        honest(self, received, on_answer)

    monkeypatch.setattr(Gateway, "send", told)


def the_words_of_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    fails_inside(monkeypatch)
    monkeypatch.setattr(journals, "_without_words", structlog.processors.format_exc_info)


def the_words_of_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "describe_error", str)


def a_peer_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = DeclaredNameAuthenticator.admit

    def told(self: DeclaredNameAuthenticator, peer: Peer, *scopes: Scope) -> str:
        journal("grpc").info("a call", peer=peer.address)
        return honest(self, peer, *scopes)

    monkeypatch.setattr(DeclaredNameAuthenticator, "admit", told)


def suspects_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def named(ongoing: RoundDriver, end: RoundEnd) -> None:
        journal("secure sums").warning("suspects", window=ongoing.window, clients=end.suspects)

    monkeypatch.setattr(coordinator, "_warn", named)
    monkeypatch.setattr(sys.modules[__name__], "MISDEEDS", (_voids,))


def a_stream_by_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Gateway.send

    def told(self: Gateway, received: ReceivedDelta, on_answer: OnAnswer) -> None:
        logging.getLogger("hushsum").warning("a delta of %016x", int.from_bytes(received.data[33:41], "big"))
        honest(self, received, on_answer)

    monkeypatch.setattr(Gateway, "send", told)


@pytest.mark.parametrize(
    ("mode", "plant"),
    [
        ("reports", a_client_in_a_line),
        ("silo", the_words_of_errors),
        ("reports", the_words_of_trouble),
        ("central", a_peer_in_a_line),
        ("silo", a_stream_by_a_library),
        ("secure", suspects_by_name),
    ],
)
async def test_a_planted_mistake_is_found(
    mode: str,
    plant: Plant,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    rng: np.random.Generator,
) -> None:
    assert await searched(mode, tmp_path, monkeypatch, capfd, caplog, rng, plant=plant)
