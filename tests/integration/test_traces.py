"""Spans of a real process on their way to a collector that speaks OTLP."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2

from aggregator.runtime import SystemRuntime
from tests.pages import until
from tests.plans import small_plan
from tests.processes import Aggregator
from tests.services import Contributor, RawClient

PLAN = small_plan(window={"length": "3650d"})
WINDOW = PLAN.window.index_at(SystemRuntime(1).now_ms())  # ten years long: it does not end meanwhile
NAME = "client-whose-name-nobody-needs"


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Takes spans.

    Attributes:
        came: What processes sent, with who they say they are.
    """

    def __init__(self) -> None:
        self.came: list[trace_pb2.ResourceSpans] = []

    async def Export(  # noqa: N802  the protocol's name
        self, request: trace_service_pb2.ExportTraceServiceRequest, context: object
    ) -> trace_service_pb2.ExportTraceServiceResponse:
        self.came += request.resource_spans
        return trace_service_pb2.ExportTraceServiceResponse()

    @property
    def names(self) -> set[str]:
        return {span.name for each in self.came for scope in each.scope_spans for span in scope.spans}

    async def has_commit(self) -> bool:
        return "commit" in self.names

    def of_whom(self) -> dict[str, str]:
        """What the first of them says of its process."""
        return {each.key: each.value.string_value for each in self.came[0].resource.attributes}


@asynccontextmanager
async def collecting() -> AsyncIterator[tuple[Collector, str]]:
    collector, server = Collector(), grpc.aio.server()
    add_to = trace_service_pb2_grpc.add_TraceServiceServicer_to_server
    add_to(collector, server)  # type: ignore[no-untyped-call]  # its stubs are generated without types
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield collector, f"http://127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def test_a_process_sends_its_spans_and_those_that_are_left_before_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = tmp_path / "plan.json"
    plan.write_bytes(PLAN.bundle)
    async with collecting() as (collector, endpoint):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "sums of ward 7")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        settings = {"plan": str(plan), "manual": True, "traces": True, "stop_s": 10.0}
        process = Aggregator(tmp_path, "traced", settings)
        await process.start()
        async with RawClient(await process.address(), NAME) as client:
            await client.submit(PLAN.id, [Contributor(PLAN, 3, WINDOW).delta()[1]])
            await until(collector.has_commit)
            await client.seal()
            await client.release()
        assert await process.stop() == 0

    assert {"commit", "checkpoint", "seal", "outcome", "draw", "publish", "forget"} <= collector.names
    said = collector.of_whom()
    assert said["service.name"] == "sums of ward 7"
    assert said["hushsum.plan"] == PLAN.hex_id
    assert said["hushsum.role"] == "all"
    assert NAME not in str(collector.came)
