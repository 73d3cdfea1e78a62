"""Spans, log lines and metrics of a real process on their way to a collector that speaks OTLP."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc.aio
import pytest
from opentelemetry.proto.collector.logs.v1 import logs_service_pb2, logs_service_pb2_grpc
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2, metrics_service_pb2_grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.logs.v1 import logs_pb2
from opentelemetry.proto.metrics.v1 import metrics_pb2
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
        lines: Takes log lines beside them.
        figures: Takes metrics beside them.
    """

    def __init__(self) -> None:
        self.came: list[trace_pb2.ResourceSpans] = []
        self.lines, self.figures = Lines(), Figures()

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


class Lines(logs_service_pb2_grpc.LogsServiceServicer):
    """Takes log lines."""

    def __init__(self) -> None:
        self.came: list[logs_pb2.ResourceLogs] = []

    async def Export(  # noqa: N802  the protocol's name
        self, request: logs_service_pb2.ExportLogsServiceRequest, context: object
    ) -> logs_service_pb2.ExportLogsServiceResponse:
        self.came += request.resource_logs
        return logs_service_pb2.ExportLogsServiceResponse()

    @property
    def texts(self) -> list[str]:
        return [each.body.string_value for came in self.came for scope in came.scope_logs for each in scope.log_records]


class Figures(metrics_service_pb2_grpc.MetricsServiceServicer):
    """Takes metrics."""

    def __init__(self) -> None:
        self.came: list[metrics_pb2.ResourceMetrics] = []

    async def Export(  # noqa: N802  the protocol's name
        self, request: metrics_service_pb2.ExportMetricsServiceRequest, context: object
    ) -> metrics_service_pb2.ExportMetricsServiceResponse:
        self.came += request.resource_metrics
        return metrics_service_pb2.ExportMetricsServiceResponse()

    def last(self) -> dict[str, metrics_pb2.Metric]:
        return {each.name: each for scope in self.came[-1].scope_metrics for each in scope.metrics}


@asynccontextmanager
async def collecting() -> AsyncIterator[tuple[Collector, str]]:
    collector, server = Collector(), grpc.aio.server()
    for add_to, taker in (
        (trace_service_pb2_grpc.add_TraceServiceServicer_to_server, collector),
        (logs_service_pb2_grpc.add_LogsServiceServicer_to_server, collector.lines),
        (metrics_service_pb2_grpc.add_MetricsServiceServicer_to_server, collector.figures),
    ):
        add_to(taker, server)  # type: ignore[no-untyped-call]  # its stubs are generated without types
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield collector, f"http://127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def test_a_process_sends_spans_lines_and_metrics_and_what_is_left_before_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = tmp_path / "plan.json"
    plan.write_bytes(PLAN.bundle)
    async with collecting() as (collector, endpoint):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "sums of ward 7")
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "50")
        # A batch that is not taken in time is lost, by design: here it never is, however slow the machine.
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "300")
        settings = {"plan": str(plan), "manual": True, "otlp": True, "stop_s": 300.0}
        process = Aggregator(tmp_path, "traced", settings)
        await process.start()
        async with RawClient(await process.address(), NAME) as client:
            await client.submit(PLAN.id, [Contributor(PLAN, 3, WINDOW).delta()[1]])
            await until(collector.has_commit)
            await client.seal()
            await client.release()
        await process.said("starting")
        assert await process.stop() == 0

    assert {"commit", "checkpoint", "seal", "outcome", "draw", "publish", "forget"} <= collector.names
    said = collector.of_whom()
    assert said["service.name"] == "sums of ward 7"
    assert said["hushsum.plan"] == PLAN.hex_id
    assert said["hushsum.role"] == "all"
    texts = collector.lines.texts
    assert {"folds started", "listening", "released", "stopping"} <= set(texts)
    figures = collector.figures.last()
    (outcomes,) = figures["hushsum_outcomes"].sum.data_points
    assert outcomes.as_double == 1
    folded = figures["hushsum_folded"].sum.data_points
    assert sum(each.as_double for each in folded) >= 1
    (groups,) = figures["hushsum_group_entries"].histogram.data_points
    assert (groups.count, groups.HasField("min")) == (1, False)
    for came in (collector.came, collector.lines.came, collector.figures.came):
        assert NAME not in str(came)
        who = {each.key: each.value.string_value for each in came[0].resource.attributes}
        assert (who["service.name"], who["hushsum.role"]) == ("sums of ward 7", "all")
