"""A refused client learns nothing about others: every refusal is the same, byte for byte, whoever else was there.

The same requests go to two services, one that is empty and one in which others have contributed, under the same ids as
the refused client uses, and have streams open. Status, words and trailing metadata are compared; waits aside, which are
the refused client's own.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
import pytest

from aggregator.api.secure_sum import SecureSumService
from aggregator.app import Service
from aggregator.errors import RefusedError
from aggregator.ingest.gateway import Gateway
from aggregator.ingest.validation import AttributedDeltas
from aggregator.rate_limits import DeltaStreamQuota, QuotaReservation, RateLimits
from aggregator.secure.coordinator import CohortCoordinator
from hushsum.delta import DeltaId
from hushsum.plan import Plan
from hushsum.signing import Directory, DirectoryKey, Role, SigningKey, toml_of
from hushsum_proto import convert
from hushsum_proto.answers import Answer, Refusal
from hushsum_proto.messages import Authenticity, DeltaChunk
from hushsum_proto.rounds import Enter, Message, RoundRequest, VectorChunk
from hushsum_proto.v1 import wire_pb2 as pb
from tests.aggregator.local_clients import batch_of, large_call, noised, report_plan, silo_plan, submit_shuffled
from tests.aggregator.secure_clients import Line, fleet_of, stub_of
from tests.aggregator.secure_site import SIZE, plan_of, site_config
from tests.plans import small_plan
from tests.services import HOUR_MS, WINDOW, Contributor, RawClient, SetRuntime, config_of, folded_all, service_of

Told = list[tuple[str, object]]

CENTRAL = small_plan(privacy={"unit": "client", "records_per_client": 3})
SILO, REPORTS = silo_plan(), report_plan()
KEYS = [SigningKey(bytes([number]) * 32) for number in range(1, SIZE + 1)]
CLIENTS_TOML = "\n".join(
    toml_of(DirectoryKey(f"client-{number}", Role.CLIENT, key.verify_key)) for number, key in enumerate(KEYS)
)
SECURE = plan_of(directory=Directory.from_toml(CLIENTS_TOML).digest().hex(), cohort_wait="20s")

_WAITS = re.compile(r"in \d+ ms")


def masked(detail: str | None) -> str:
    return _WAITS.sub("in … ms", detail or "")


async def end_of(call: Awaitable[object]) -> object:
    """How a call ends: its answer, or its status with all that goes with it."""
    try:
        reply = await call
    except grpc.aio.AioRpcError as error:
        trailing = sorted((key, value) for key, value in error.trailing_metadata() or ())
        return error.code(), masked(error.details()), [pair for pair in trailing if pair[0] != "hushsum-retry-after-ms"]
    if isinstance(reply, list):
        return [as_told(each) for each in reply]
    return as_told(reply)


def as_told(reply: object) -> object:
    refusal = reply.refusal if isinstance(reply, Answer) else None
    if not isinstance(reply, Answer) or refusal is None:
        return reply
    return reply.id, reply.status, Refusal(refusal.reason, masked(refusal.detail), refusal.fault, refusal.retry)


def delta_of(plan: Plan, stream: int, records: int = 1, window: int = WINDOW, sequence: int = 0) -> bytes:
    if plan is REPORTS:
        return batch_of(plan, stream, records, window=window)
    if plan is SILO:
        return noised(plan, DeltaId(stream, sequence), window=window)
    return Contributor(plan, stream).delta(records, window=window, sequence=sequence)[1]


# What the refused client sends, and drew once: the same bytes go to both services.
FORMS = {
    plan.hex_id: {
        "first": delta_of(plan, 7),
        "reused": delta_of(plan, 7, 2),
        "moved": delta_of(plan, 7, window=WINDOW - 1),
        "past": delta_of(plan, 8, window=-5),
        "future": delta_of(plan, 8, window=WINDOW + 9),
        "many": delta_of(plan, 9, 3, sequence=1),
        "second": delta_of(plan, 7, sequence=1),
        "another stream": delta_of(plan, 10),
        "one stream more": delta_of(plan, 11),
    }
    for plan in (CENTRAL, SILO, REPORTS)
}


async def refusals(service: Service, plan: Plan) -> Told:
    """Whatever a client can be refused for, in order; each with its name."""
    told: Told = []
    form = FORMS[plan.hex_id]
    raw: Any
    async with RawClient(service.grpc, "refused") as client, RawClient(service.grpc, None) as nobody:

        async def note(what: str, call: Awaitable[object]) -> None:
            told.append((what, await end_of(call)))

        await note("nobody", nobody.hello())
        for path in ("Hello", "SubmitOne"):
            raw = client.channel.unary_unary(f"/hushsum.v1.Collection/{path}")
            await note(f"malformed {path}", raw(b"\xff", metadata=client.metadata))
            await note(f"nobody's {path}", raw(b"", metadata=(("hushsum-client-id", "%zz"),)))
        await note("wrong plan", client.hello(bytes(32)))
        await note("version", client.hello(b"", (77,)))
        await note("versions", client.hello(b"", tuple(range(1, 99))))
        await note("plan", client.catalog.GetPlan(pb.GetPlanRequest(plan_id=bytes(32))))
        await note("release", client.catalog.GetRelease(pb.GetReleaseRequest(kind="tumbling", window=1)).read())
        await note("secure", takes_part(service, plan, "refused", Enter(plan.id, WINDOW)))
        await note("taken", client.submit_one(plan.id, form["first"]))
        await folded_all(service)  # what a fold refuses is refused by the gateway from here on
        for name in ("another stream", "one stream more"):
            await note(name, client.submit(plan.id, [form[name]]))
        for name in ("first", "reused", "moved", "past", "future", "many", "second"):
            await note(name, client.submit(plan.id, [form[name]]))
            await note(f"{name}, alone", client.submit_one(plan.id, form[name]))
        for data in (b"", b"\x01", b"\xff" * 50, form["first"][:-1], bytes(plan.upload_bytes_max + 1)):
            await note(f"bytes {data[:4]!r}", client.submit(plan.id, [data]))
        await note("of another plan", client.submit_one(bytes(32), form["first"]))
        await note("signed", submit_shuffled(client, plan, form["first"], Authenticity("somebody", bytes(64))))
        for chunk in (DeltaChunk(5, b"x", plan.id, 9), DeltaChunk(0, b"x", plan.id, 10**9)):
            await note("chunks", large_call(client, [chunk]))
        streams = [client.collection.Submit(None, metadata=client.metadata) for _ in range(2)]
        for stream in streams:
            await stream.write(convert.submission_to_wire(plan.id, form["first"]))
            await stream.read()
        await note("sessions", client.submit(plan.id, []))
        for _ in range(25):
            await end_of(client.hello())
        await note("calls", client.hello())
        for _ in range(60):
            await end_of(client.submit_one(plan.id, form["past"]))
        await note("bytes", client.submit_one(plan.id, form["past"]))
        for stream in streams:
            stream.cancel()
        service.gateway.stop_accepting()
        await note("stopping", client.submit_one(plan.id, form["first"]))
    return told


async def takes_part(service: Service, plan: Plan, name: str, *said: RoundRequest) -> object:
    """What a client of a secure sum hears, first of all, after it has said this."""
    del plan
    async with stub_of(service.grpc) as stub:
        line = Line.open(stub, name)
        for each in said:
            await line.say(each)
        return await line.hear()


async def secure_refusals(service: Service, plan: Plan) -> Told:
    """The same of a client of secure sums."""
    told: Told = []
    signed = fleet(plan)[0]
    stranger, forger = Enter(plan.id, WINDOW), signed.enter(WINDOW)
    for what, name, said in (
        ("stranger", "nobody", (stranger,)),
        ("unsigned", "client-0", (stranger,)),
        ("another's signature", "client-1", (forger,)),
        ("wrong plan", "client-0", (Enter(bytes(32), WINDOW),)),
        ("no entry", "client-0", (Message(b"x"),)),
        ("no entry of a vector", "client-0", (VectorChunk(0, b"x"),)),
        ("past", "client-0", (signed.enter(-5),)),
        ("future", "client-0", (signed.enter(WINDOW + 9),)),
        ("unknown round", "client-0", (signed.enter(WINDOW, bytes(32)),)),
    ):
        told.append((what, await end_of(takes_part(service, plan, name, *said))))
    async with RawClient(service.grpc, "client-0") as client:
        told.append(("deltas", await end_of(client.submit_one(plan.id, b"x"))))
        told.append(("hello", await end_of(client.hello(bytes(32)))))
    return told


def fleet(plan: Plan) -> list[Any]:
    clients = fleet_of(plan, SIZE, np.random.default_rng(5))
    for client, key in zip(clients, KEYS, strict=True):
        client.key, client.directory = key, Directory.from_toml(CLIENTS_TOML)
    return clients


async def test_an_exhausted_ledger_does_not_tell_what_others_have_used_of_it(tmp_path: Path) -> None:
    """That it is exhausted is told; how much is left, which counts the windows that anybody had, is not."""
    told = []
    for number, others in enumerate((0, 1)):
        plan = small_plan(
            privacy={
                "mode": "local",
                "unit": "client",
                "records_per_client": 3,
                "epsilon": 2,
                "total_epsilon": 3 + 2 * others,
                "local": {"form": "silo"},
            }
        )
        (own := tmp_path / str(number)).mkdir()
        runtime, window = SetRuntime(), WINDOW
        async with (
            service_of(config_of(own, plan), runtime) as service,
            RawClient(service.grpc) as client,
            RawClient(service.grpc, "bob") as bob,
        ):
            for who in [bob] * others + [client]:
                await end_of(who.hello())
                taken = await who.submit_one(plan.id, noised(plan, DeltaId(3, window), window=window))
                assert taken.status == "acknowledged"
                runtime.set_ms += HOUR_MS
                window += 1
            await end_of(client.hello())
            answer = await client.submit_one(plan.id, noised(plan, DeltaId(4, 1), window=window))
            told.append(await end_of(client.submit_one(plan.id, noised(plan, DeltaId(4, 1), window=window))))
            assert answer.refusal is not None
            assert answer.refusal.reason == "budget"
    assert told[0] == told[1]


@asynccontextmanager
async def crowded(service: Service, plan: Plan) -> AsyncIterator[None]:
    """Others have contributed, under the ids that the refused client uses, and are still there."""
    if plan is SECURE:
        async with stub_of(service.grpc) as stub:
            lines = []
            for client in fleet(plan)[2:6]:
                lines.append(Line.open(stub, client.client_id))
                await lines[-1].say(client.enter(WINDOW))
                await lines[-1].hear()
            yield
            for line in lines:
                line.cut()
        return
    async with RawClient(service.grpc, "bob") as bob, RawClient(service.grpc, "carol") as carol:
        for other in (bob, carol):
            await other.hello()
            streams = range(100, 110) if plan is REPORTS else range(6, 10)  # batches have streams of their own
            for stream in streams:
                await other.submit(plan.id, [delta_of(plan, stream, 2)])
            open_stream = other.collection.Submit(None, metadata=other.metadata)
            await open_stream.write(convert.submission_to_wire(plan.id, b""))
            await open_stream.read()
            other.catalog.WatchReleases(pb.ListReleasesRequest())
        yield


LIMITS = {
    "client_streams_max": 2,
    "client_sessions_max": 2,
    "client_calls_rate": 0.001,
    "client_calls_burst": 60,
    "client_bytes_rate": 0.001,
    "client_bytes_burst": 64 * 1024,
}


async def differences(folder: Path, plan: Plan) -> list[tuple[object, object]]:
    """What is told differently where others are."""
    both: list[Told] = []
    for number, is_crowded in enumerate((False, True)):
        own = folder / str(number)
        own.mkdir()
        if plan is SECURE:
            (own / "clients.toml").write_text(CLIENTS_TOML)
            config = site_config(own, plan, client_directory=str(own / "clients.toml"))
        else:
            config = config_of(own, plan, **LIMITS)
        asked = secure_refusals if plan is SECURE else refusals
        async with service_of(config) as service, asyncio.timeout(120):
            if is_crowded:
                async with crowded(service, plan):
                    both.append(await asked(service, plan))
            else:
                both.append(await asked(service, plan))
    alone, among_others = both
    assert [what for what, _ in alone] == [what for what, _ in among_others]
    assert len({str(told) for _, told in alone}) > 5, "these are refusals of many kinds"
    assert (plan is CENTRAL) == ("has used 2 streams in this window" in str(dict(alone).get("one stream more")))
    return [(one, other) for one, other in zip(alone, among_others, strict=True) if one != other]


@pytest.mark.parametrize("plan", [CENTRAL, SILO, REPORTS, SECURE], ids=["central", "silo", "reports", "secure"])
async def test_a_refusal_is_the_same_whoever_else_was_there(tmp_path: Path, plan: Plan) -> None:
    assert await differences(tmp_path, plan) == []


def totals_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Gateway._answer

    def answer(self: Gateway, on_answer: Callable[[Answer], None], found: Answer) -> None:
        self._total = getattr(self, "_total", 0) + 1  # type: ignore[attr-defined]  # the mistake's own
        refusal = found.refusal
        if refusal is not None:
            words = f"{refusal.detail}, of {self._total}"  # type: ignore[attr-defined]  # it is set above
            found = Answer(found.id, found.status, Refusal(refusal.reason, words, refusal.fault, refusal.retry))
        honest(self, on_answer, found)

    monkeypatch.setattr(Gateway, "_answer", answer)


def ids_of_all_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AttributedDeltas, "reserve", lambda *_: QuotaReservation("everybody"))


def streams_of_all_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = DeltaStreamQuota.of
    monkeypatch.setattr(
        DeltaStreamQuota,
        "of",
        lambda self, _, window: sum(honest(self, client_id, window) for client_id in ("refused", "bob", "carol")),
    )


def calls_of_all_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = RateLimits.wait_ms

    def wait_ms(self: RateLimits, name: str, units: int, now_s: float) -> int | None:
        is_call = units == 1  # a delta costs more
        return honest(self, "everybody" if is_call else name, units, now_s)

    monkeypatch.setattr(RateLimits, "wait_ms", wait_ms)


def how_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = SecureSumService._secure

    def check(self: SecureSumService, plan_id: bytes) -> CohortCoordinator:
        try:
            return honest(self, plan_id)
        except RefusedError as error:
            assert self._sums is not None, "the plan has a secure sum"
            reason = error.refusal.reason
            assert reason is not None, "a refusal has one"
            error.refusal = Refusal.of(reason, f"{len(self._sums._participants)} wait")
            raise

    monkeypatch.setattr(SecureSumService, "_secure", check)


@pytest.mark.parametrize(
    ("plan", "plant"),
    [
        (CENTRAL, totals_in_words),
        (CENTRAL, ids_of_all_in_one),
        (CENTRAL, streams_of_all_in_one),
        (SILO, ids_of_all_in_one),
        (REPORTS, calls_of_all_in_one),
        (SECURE, how_many_wait),
    ],
    ids=["totals", "ids", "streams", "second-delta", "calls", "waiting"],
)
async def test_a_planted_mistake_is_found(
    tmp_path: Path, plan: Plan, plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert await differences(tmp_path, plan)
