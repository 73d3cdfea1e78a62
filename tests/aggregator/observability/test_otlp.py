"""Log lines and metrics for a collector: what an operator sees there, and nothing of who sent what or when."""

import io
import json
import logging
import math
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import structlog
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import InMemoryLogRecordExporter, SimpleLogRecordProcessor
from opentelemetry.sdk.metrics.export import Gauge, Histogram, MetricExporter, MetricExportResult, MetricsData, Sum
from opentelemetry.sdk.resources import Resource
from prometheus_client import Counter as PrometheusCounter
from prometheus_client import Gauge as PrometheusGauge
from prometheus_client import Histogram as PrometheusHistogram
from typing_extensions import override

from aggregator.app import running
from aggregator.errors import ConfigError
from aggregator.logs import journal, write_journal
from aggregator.observability import health
from aggregator.observability.health import ProcessTelemetry
from aggregator.observability.metrics import Metrics, ProcessRegistry
from aggregator.observability.otlp import OtlpLines, OtlpMetrics, metrics_data, otlp_exports
from aggregator.runtime import SystemRuntime
from hushsum.plan import Plan
from tests.aggregator.local_clients import batch_of, report_plan
from tests.plans import small_plan
from tests.services import NOW_MS, Contributor, RawClient, SetRuntime, config_of

CENTRAL = small_plan()
REPORTS = report_plan()
NAME = "client-whose-name-nobody-needs"
HOUR_MS = 3_600_000


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


class Kept:
    """Log lines that stay here."""

    def __init__(self) -> None:
        self._exporter = InMemoryLogRecordExporter()  # type: ignore[no-untyped-call]  # as the package has it
        provider = LoggerProvider(shutdown_on_exit=False)
        provider.add_log_record_processor(SimpleLogRecordProcessor(self._exporter))
        self.lines = OtlpLines(provider)
        self.lines.start()

    @property
    def texts(self) -> list[str]:
        return [str(each.log_record.body) for each in self._exporter.get_finished_logs()]

    def close(self) -> list[dict[str, object]]:
        """Everything that was sent."""
        found = [json.loads(each.to_json()) for each in self._exporter.get_finished_logs()]
        self.lines.close(10.0)
        return found


def test_a_line_is_a_record_with_its_time_level_text_and_fields() -> None:
    written = io.StringIO()
    write_journal("debug", "json", written)
    kept = Kept()
    journal("gateway").warning("slow", seconds=2, partitions=[0, 1], nothing=None)
    journal("gateway").debug("a client sent something")
    (sent,) = kept.close()
    journal("gateway").warning("after the end")

    assert (sent["body"], sent["severity_text"], sent["severity_number"]) == ("slow", "warning", 13)
    assert sent["attributes"] == {"hushsum.part": "gateway", "hushsum.seconds": 2, "hushsum.partitions": "[0, 1]"}
    first, *others = [json.loads(line) for line in written.getvalue().splitlines()]
    assert first["event"] == "slow", "the line itself is written as before"
    assert str(sent["timestamp"])[:19] == first["timestamp"][:19]
    assert [each["event"] for each in others] == ["a client sent something", "after the end"]


def test_an_error_is_sent_as_its_kind_and_its_places_without_its_words() -> None:
    write_journal("info", "console", io.StringIO())
    kept = Kept()
    secret = "of a" + " client"
    try:
        raise ValueError(secret)
    except ValueError:
        journal("grpc").exception("call failed")
    (sent,) = kept.close()
    assert "ValueError" in str(sent)
    assert secret not in str(sent)


async def lived(folder: Path, plan: Plan, deltas: list[bytes]) -> tuple[list[str], list[dict[str, object]]]:
    """The lines of a service's life that were sent while deltas came, and all of them."""
    write_journal("debug", "json", io.StringIO())
    kept, runtime = Kept(), SetRuntime()
    async with running(config_of(folder, plan, checkpoint_entries=1), runtime) as service:
        before = len(kept.texts)
        for number, delta in enumerate(deltas):
            async with RawClient(service.grpc, f"{NAME}-{number}") as client:
                await client.submit_one(plan.id, delta)
        meanwhile = kept.texts[before:]
        runtime.set_ms = NOW_MS + HOUR_MS
        async with RawClient(service.grpc, None) as operator:
            await operator.seal()
            await operator.release()
    return meanwhile, kept.close()


START = ["store opened", "plan registered", "log opened", "loops loaded", "folds started", "windows loaded",
         "releaser started", "log and store probed", "listening"]  # fmt: skip


@pytest.mark.parametrize("plan", (CENTRAL, REPORTS), ids=("central", "reports"))
async def test_a_start_is_a_line_a_step_an_outcome_is_one_and_nothing_is_sent_because_a_delta_came(
    tmp_path: Path, plan: Plan
) -> None:
    streams = (0xABCDEF01, 0xABCDEF02, 0xABCDEF03)
    if plan is REPORTS:
        deltas = [batch_of(plan, stream, 5) for stream in streams]
    else:
        deltas = [Contributor(plan, stream).delta()[1] for stream in streams]
    meanwhile, sent = await lived(tmp_path, plan, deltas)
    assert meanwhile == []
    texts = [str(each["body"]) for each in sent]
    assert [text for text in texts if text in START] == START
    assert texts.count("released") == 1
    for secret in (NAME, "abcdef", str(0xABCDEF01), "ipv4"):
        assert secret not in str(sent)


# ------------------------------------------------------------------------------------------------------------ metrics
def of(data: MetricsData) -> dict[str, Gauge | Histogram | Sum]:
    (resource,) = data.resource_metrics
    (scope,) = resource.scope_metrics
    return {metric.name: metric.data for metric in scope.metrics}  # type: ignore[misc]  # no exponential histograms here


def test_metrics_keep_their_names_labels_and_values() -> None:
    registry = ProcessRegistry()
    counter = PrometheusCounter("deltas", "of a kind", ["kind"], registry=registry)
    counter.labels("late").inc(3)
    PrometheusGauge("ready", "is", registry=registry).set(0.5)
    histogram = PrometheusHistogram("seconds", "of steps", ["step"], buckets=(1, 10), registry=registry)
    for value in (0.5, 2, 3, 99):
        histogram.labels("fold").observe(value)

    found = of(metrics_data(registry.collect(), Resource({}), 1, 2))
    assert found.keys() == {"deltas", "ready", "seconds"}
    deltas, ready, seconds = found["deltas"], found["ready"], found["seconds"]
    assert isinstance(deltas, Sum)
    assert isinstance(ready, Gauge)
    assert isinstance(seconds, Histogram)
    assert [(dict(each.attributes or {}), each.value) for each in deltas.data_points] == [({"kind": "late"}, 3)]
    assert deltas.is_monotonic
    assert [each.value for each in ready.data_points] == [0.5]
    (point,) = seconds.data_points
    assert (point.count, point.sum, list(point.bucket_counts), list(point.explicit_bounds)) == (
        4,
        104.5,
        [1, 2, 1],
        [1, 10],
    )
    assert dict(point.attributes or {}) == {"step": "fold"}
    assert (point.start_time_unix_nano, point.time_unix_nano) == (1, 2)


def test_every_metric_of_a_process_can_be_sent() -> None:
    metrics = Metrics()
    metrics.plan(CENTRAL, "all")
    metrics.committed(3, 100, 0.01)
    found = of(metrics_data(metrics.registry.collect(), Resource({}), 1, 2))
    assert {"hushsum_deltas", "hushsum_group_entries", "hushsum_ready", "hushsum_plan_info"} <= found.keys()
    assert not [name for name in found if name.endswith("_created")]


def test_of_a_plan_of_reports_values_are_those_of_the_last_minute_whenever_they_are_sent() -> None:
    metrics = Metrics()
    metrics.registry.hold()
    metrics.committed(3, 100, 0.01)
    sent = of(metrics_data(metrics.registry.collect(), Resource({}), 1, 2))
    appended = sent["hushsum_appended_bytes"]
    assert isinstance(appended, Sum)
    assert [each.value for each in appended.data_points] == [0]
    metrics.registry.hold()
    appended = of(metrics_data(metrics.registry.collect(), Resource({}), 1, 2))["hushsum_appended_bytes"]
    assert isinstance(appended, Sum)
    assert [each.value for each in appended.data_points] == [100]
    assert math.isfinite(appended.data_points[0].value)


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"OTEL_LOGS_EXPORTER": "console"}, "OTEL_LOGS_EXPORTER: expected otlp or none, got 'console'"),
        ({"OTEL_METRIC_EXPORT_INTERVAL": "0"}, "OTEL_METRIC_EXPORT_INTERVAL: expected milliseconds above 0, got 0"),
        ({"OTEL_METRIC_EXPORT_INTERVAL": "often"}, "invalid OTEL_"),
    ],
)
def test_an_environment_that_cannot_be_used_is_refused(environment: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        otlp_exports(CENTRAL, "all", Metrics().registry, lambda: NOW_MS, environment)


def test_a_signal_can_be_left_out() -> None:
    none = {f"OTEL_{signal}_EXPORTER": "none" for signal in ("TRACES", "LOGS", "METRICS")}
    assert otlp_exports(CENTRAL, "all", Metrics().registry, lambda: NOW_MS, none) == []


def test_what_opentelemetry_says_is_in_the_journal_whichever_signals_are_left_out() -> None:
    library = logging.getLogger("opentelemetry")
    before, library.handlers = library.handlers, []
    try:
        written = io.StringIO()
        write_journal("info", "json", written)
        otlp_exports(CENTRAL, "all", Metrics().registry, lambda: NOW_MS, {"OTEL_TRACES_EXPORTER": "none"})
        logging.getLogger("opentelemetry.exporter").warning("no collector at %s", "127.0.0.1")
        (line,) = [json.loads(each) for each in written.getvalue().splitlines()]
        assert (line["event"], line["why"]) == ("telemetry is lost", "no collector at 127.0.0.1")
    finally:
        library.handlers = before


class Sent(MetricExporter):
    """Keeps what it is given; its end waits for that of others."""

    def __init__(self, ends: threading.Barrier) -> None:
        super().__init__()
        self.sent: list[MetricsData] = []
        self._ends = ends

    @override
    def export(self, metrics_data: MetricsData, timeout_millis: float = 0, **kwargs: object) -> MetricExportResult:
        self.sent.append(metrics_data)
        return MetricExportResult.SUCCESS

    @override
    def force_flush(self, timeout_millis: float = 0) -> bool:
        return True

    @override
    def shutdown(self, timeout_millis: float = 0, **kwargs: object) -> None:
        self._ends.wait()


def metrics_to(exporter: Sent) -> OtlpMetrics:
    return OtlpMetrics(Metrics().registry, exporter, Resource({}), interval_s=3600.0, now_ms=lambda: NOW_MS)


def test_an_export_that_was_not_started_sends_nothing_so_that_a_check_of_the_settings_sends_no_zeros() -> None:
    checked, served = Sent(threading.Barrier(1)), Sent(threading.Barrier(1))
    metrics_to(checked).close(60.0)
    started = metrics_to(served)
    started.start()
    started.close(60.0)
    assert (len(checked.sent), len(served.sent)) == (0, 1)


async def test_exports_end_at_the_same_time_so_that_a_collector_that_hangs_delays_a_stop_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = threading.Barrier(3, timeout=60.0)  # one after the other never reaches it
    exports = [metrics_to(Sent(ends)) for _ in range(3)]
    monkeypatch.setattr(health, "otlp_exports", lambda *_: exports)
    config = config_of(tmp_path, CENTRAL, otlp=True, stop_s=60.0)
    async with AsyncExitStack() as stack:
        ProcessTelemetry(config, SystemRuntime(), Metrics()).collect(CENTRAL, stack)
    assert not ends.broken
