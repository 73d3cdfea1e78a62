"""Spans of a real service: what an operator sees of its steps, and nothing of who sent what or when."""

import asyncio
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from aggregator.app import Service, running
from aggregator.errors import ConfigError, StoreUnavailableError
from aggregator.interfaces import Tracer
from aggregator.log.sqlite import SqliteLog
from aggregator.observability.tracing import OtelTracer
from hushsum.plan import Plan
from tests.aggregator.local_clients import batch_of, report_plan
from tests.aggregator.secure_clients import fleet_of, stub_of
from tests.aggregator.secure_site import SIZE, all_parts, plan_of, sealed, site_config
from tests.pages import QuickRuntime, until
from tests.plans import small_plan
from tests.services import NOW_MS, Contributor, RawClient, SetRuntime, config_of, ends_of

CENTRAL = small_plan()
REPORTS = report_plan()
NAME = "client-whose-name-nobody-needs"
HOUR_MS = 3_600_000


class Traced:
    """A tracer whose spans stay here."""

    def __init__(self) -> None:
        self._kept = InMemorySpanExporter()
        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.tracer = OtelTracer(provider)

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self._kept.get_finished_spans()

    @property
    def names(self) -> set[str]:
        return {span.name for span in self.spans}

    @property
    def text(self) -> str:
        """All of every span: names, attributes, events, states."""
        return "".join(span.to_json() for span in self.spans)

    def one(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.spans if span.name == name]
        return found

    def within(self, name: str) -> set[str]:
        """The spans whose parent is this one."""
        outer = self.one(name).context
        return {span.name for span in self.spans if span.parent is not None and span.parent.span_id == outer.span_id}


def attributes_of(span: ReadableSpan) -> dict[str, object]:
    return dict(span.attributes or {})


async def is_stored(service: Service) -> bool:
    """Whether all that stands in the log is in a checkpoint, which is told as far as it is."""
    worker = service.workers._held[0].worker
    return worker is not None and [worker.saved] == await ends_of(service)


async def lived(folder: Path, plan: Plan, deltas: list[bytes]) -> tuple[Traced, set[str]]:
    """All spans of a service's life, and the names of those that were there before the window was sealed."""
    traced, runtime = Traced(), SetRuntime()
    config = config_of(folder, plan, checkpoint_entries=1)
    async with running(config, runtime, tracer=traced.tracer) as service:
        for number, delta in enumerate(deltas):
            async with RawClient(service.grpc, f"{NAME}-{number}") as client:
                await client.submit_one(plan.id, delta)
            await until(partial(is_stored, service))
        before = traced.names
        runtime.set_ms = NOW_MS + HOUR_MS
        async with RawClient(service.grpc, None) as operator:
            await operator.seal()
            await operator.release()
    return traced, before


async def test_an_outcome_is_a_tree_of_its_steps(tmp_path: Path) -> None:
    traced, before = await lived(tmp_path, CENTRAL, [Contributor(CENTRAL, 3).delta()[1]])
    assert before == {"commit", "checkpoint"}
    assert {"seal", "outcome"} <= traced.names
    assert traced.within("outcome") == {"reserve", "draw", "commit outcome", "receipt", "publish", "forget"}
    assert attributes_of(traced.one("outcome"))["hushsum.withheld"] is False
    assert attributes_of(traced.one("commit")) == {"hushsum.entries": 1}
    assert NAME not in traced.text


def batches() -> list[bytes]:
    return [batch_of(REPORTS, stream, 5) for stream in (0xABCDEF01, 0xABCDEF02, 0xABCDEF03)]


async def test_of_a_plan_of_reports_nothing_begins_or_ends_because_one_came(tmp_path: Path) -> None:
    traced, before = await lived(tmp_path, REPORTS, batches())
    assert before == set()
    assert traced.names == {"seal", "outcome", "reserve", "draw", "commit outcome", "receipt", "publish", "forget"}
    for secret in (NAME, "abcdef", str(0xABCDEF01), "127.0.0.1", "ipv4"):
        assert secret not in traced.text


def untold(tracer: Tracer, _: Plan) -> Tracer:
    return tracer


@pytest.mark.parametrize("where", ["aggregator.app.of_commits", "aggregator.workers.pool.of_checkpoints"])
async def test_a_planted_mistake_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    monkeypatch.setattr(where, untold)
    _, before = await lived(tmp_path, REPORTS, batches())
    assert before


async def test_a_round_shows_its_steps_and_sizes_and_none_of_its_clients(
    tmp_path: Path, rng: np.random.Generator
) -> None:
    plan, traced = plan_of(), Traced()
    async with running(site_config(tmp_path, plan), SetRuntime(), tracer=traced.tracer) as service:
        async with stub_of(service.grpc) as stub:
            fleet = fleet_of(plan, SIZE, rng)
            await all_parts(fleet, stub)
        await sealed(service)
    assert "commit" not in traced.names
    found = traced.one("round")
    assert attributes_of(found) | {"hushsum.window": 0} == {
        "hushsum.window": 0,
        "hushsum.members": SIZE,
        "hushsum.outcome": "counted",
        "hushsum.survivors": SIZE,
        "hushsum.dropped": 0,
    }
    steps = [event.name for event in found.events]
    assert len(steps) == len(set(steps)) >= 3
    for client in fleet:
        assert client.client_id not in traced.text


async def test_a_look_that_fails_is_told_by_its_kind_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traced = Traced()
    async with running(config_of(tmp_path, CENTRAL), QuickRuntime(), tracer=traced.tracer):
        assert traced.names == set()

        async def away(*_: object) -> int:
            raise StoreUnavailableError(f"of {NAME} nothing is known")

        monkeypatch.setattr(SqliteLog, "end", away)

        async def told() -> bool:
            return bool(traced.spans)

        await until(told)
        monkeypatch.undo()
    assert traced.names == {"dependency check failed"}
    assert attributes_of(traced.spans[0])["hushsum.kind"] == "StoreUnavailableError"
    assert NAME not in traced.text


async def test_an_error_ends_a_span_by_its_kind_and_goes_on() -> None:
    traced = Traced()
    with pytest.raises(ValueError, match="secret"), traced.tracer.span("step", size=3):
        raise ValueError("secret")
    (span,) = traced.spans
    assert attributes_of(span) == {"hushsum.size": 3, "error.type": "ValueError"}
    assert not span.status.is_ok
    assert "secret" not in traced.text


@contextmanager
def silent_collector() -> Iterator[str]:
    """It takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"


async def test_a_collector_that_does_not_answer_keeps_no_service_from_serving_or_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with silent_collector() as endpoint:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "600")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "10")
        config = config_of(tmp_path, CENTRAL, otlp=True, stop_s=0.5)
        async with asyncio.timeout(120), running(config, SetRuntime()) as service, RawClient(service.grpc) as client:
            answers = await client.submit(CENTRAL.id, [Contributor(CENTRAL, 3).delta()[1] for _ in range(5)])
            assert len(answers) == 5


async def test_without_opentelemetry_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.grpc.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"otlp: needs the extra `server`: pip install 'hushsum\[server\]'"):
        async with running(config_of(tmp_path, CENTRAL, otlp=True), SetRuntime()):
            pass
