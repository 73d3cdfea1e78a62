"""Log lines and metrics to a collector by OTLP, beside the spans of :mod:`aggregator.observability.tracing`.

Both are what this machine shows anyway: lines of the journal from ``info`` on, which never name a client, and the
metrics of the registry. For a plan of reports, whose arrival times are erased, the registry has values of whole
minutes, so that an export tells no more than a scrape, whenever it happens; and no line from ``info`` on is written
because a report was accepted.
"""

import math
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.samples import Sample

import hushsum
from aggregator.errors import ConfigError
from aggregator.logs import copy_lines
from aggregator.observability.tracing import (
    PREFIX,
    OtelTracer,
    close_within,
    otlp_tracer,
    redirect_messages,
    resource_of,
    sent_signals,
)
from hushsum.plan import Plan

if TYPE_CHECKING:
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk.metrics.export import Metric as OtelMetric
    from opentelemetry.sdk.metrics.export import MetricExporter, MetricsData
    from opentelemetry.sdk.resources import Resource

_INTERVAL_S: Final = 60.0
_LEVELS: Final = {"info": 9, "warning": 13, "error": 17, "critical": 21}  # SeverityNumber of OpenTelemetry
_NS_PER_MS: Final = 10**6

Labels = tuple[tuple[str, str], ...]


class OtlpLines:
    """Copies the journal's lines from ``info`` on to a collector, from its start until it is closed."""

    def __init__(self, provider: "LoggerProvider") -> None:
        self._provider = provider
        self._logger = provider.get_logger("hushsum", hushsum.__version__)
        self._stop_copying: Callable[[], None] | None = None

    def start(self) -> None:
        self._stop_copying = copy_lines(self._emit)

    def close(self, seconds: float) -> None:
        """Sends what is left, for so long at most; blocks."""
        if self._stop_copying is not None:
            self._stop_copying()
        close_within(seconds, self._provider.shutdown, "log lines")

    def _emit(self, line: Mapping[str, object]) -> None:
        from opentelemetry._logs import SeverityNumber

        level = str(line["level"])
        at = line.get("timestamp")
        fields = {name: value for name, value in line.items() if name not in {"event", "level", "timestamp"}}
        self._logger.emit(
            timestamp=None if at is None else round(datetime.fromisoformat(str(at)).timestamp() * 1000) * _NS_PER_MS,
            severity_number=SeverityNumber(_LEVELS[level]),
            severity_text=level,
            body=str(line["event"]),
            attributes={PREFIX + name: _value(value) for name, value in fields.items() if value is not None},
        )


class OtlpMetrics:
    """Sends a registry's metrics to a collector every ``interval_s`` seconds, and once more when it is closed.

    Before it is started it sends nothing, and its end sends nothing either.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        exporter: "MetricExporter",
        resource: "Resource",
        *,
        interval_s: float,
        now_ms: Callable[[], int],
    ) -> None:
        self._registry, self._exporter, self._resource = registry, exporter, resource
        self._interval_s, self._now_ms = interval_s, now_ms
        self._start_ns = 0
        self._is_closed = threading.Event()
        # A daemon thread: a collector that does not answer keeps no process from ending.
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        self._start_ns = self._now_ms() * _NS_PER_MS
        self._thread = threading.Thread(target=self._run, name="metrics export", daemon=True)
        self._thread.start()

    def close(self, seconds: float) -> None:
        """Sends the last values, for so long at most; blocks."""
        self._is_closed.set()
        close_within(seconds, self._finish, "metrics")

    def _finish(self) -> None:
        if self._thread is not None:
            self._thread.join()
        self._exporter.shutdown()

    def _run(self) -> None:
        while not self._is_closed.wait(self._interval_s):
            self._send()
        self._send()

    def _send(self) -> None:
        metrics = self._registry.collect()
        self._exporter.export(metrics_data(metrics, self._resource, self._start_ns, self._now_ms() * _NS_PER_MS))


def metrics_data(metrics: Iterable[Metric], resource: "Resource", start_ns: int, now_ns: int) -> "MetricsData":
    """Metrics of Prometheus's client in OpenTelemetry's form; names and labels are those of the page ``/metrics``."""
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    scope = InstrumentationScope("hushsum", hushsum.__version__)
    converted = [each for metric in metrics if (each := _converted(metric, start_ns, now_ns)) is not None]
    return MetricsData([ResourceMetrics(resource, [ScopeMetrics(scope, converted, "")], "")])


def _converted(metric: Metric, start_ns: int, now_ns: int) -> "OtelMetric | None":
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        Gauge,
        Histogram,
        HistogramDataPoint,
        NumberDataPoint,
        Sum,
    )
    from opentelemetry.sdk.metrics.export import Metric as OtelMetric

    since_start = AggregationTemporality.CUMULATIVE
    samples = [each for each in metric.samples if not each.name.endswith("_created")]
    data: Gauge | Histogram | Sum
    if metric.type == "histogram":
        data = Histogram(
            [
                HistogramDataPoint(
                    dict(labels),
                    start_ns,
                    now_ns,
                    count,
                    total,
                    counts,
                    bounds,
                    min=None,  # type: ignore[arg-type]  # not known: left out of the message
                    max=None,  # type: ignore[arg-type]  # not known: left out of the message
                )
                for labels, count, total, counts, bounds in _histograms(metric.name, samples)
            ],
            since_start,
        )
    else:
        points = [NumberDataPoint(dict(each.labels), start_ns, now_ns, each.value) for each in samples]
        is_sum = metric.type == "counter"
        data = Sum(points, since_start, is_monotonic=True) if is_sum else Gauge(points)
    return OtelMetric(metric.name, metric.documentation, "", data) if data.data_points else None


def _histograms(name: str, samples: Sequence[Sample]) -> Iterator[tuple[Labels, int, float, list[int], list[float]]]:
    """Labels, count, sum, the count of each bucket, and the upper bounds of all buckets but the last."""
    by_labels: dict[Labels, list[Sample]] = defaultdict(list)
    for each in samples:
        by_labels[tuple(sorted((key, value) for key, value in each.labels.items() if key != "le"))].append(each)
    for labels, alike in by_labels.items():
        buckets = sorted((float(each.labels["le"]), each.value) for each in alike if each.name == f"{name}_bucket")
        (total,) = (each.value for each in alike if each.name == f"{name}_sum")
        below = [0.0, *(value for _, value in buckets)]
        counts = [round(after - before) for before, after in pairwise(below)]
        yield labels, round(below[-1]), total, counts, [bound for bound, _ in buckets if bound < math.inf]


def _value(value: object) -> str | bool | int | float:
    return value if isinstance(value, str | bool | int | float) else str(value)


Export = OtelTracer | OtlpLines | OtlpMetrics


def otlp_exports(
    plan: Plan, role: str, registry: CollectorRegistry, now_ms: Callable[[], int], environment: Mapping[str, str]
) -> list[Export]:
    """Exports of spans, log lines and metrics to the collector that the environment names (``OTEL_*``), not started.

    One whose ``OTEL_TRACES_EXPORTER``, ``OTEL_LOGS_EXPORTER`` or ``OTEL_METRICS_EXPORTER`` is ``none`` is left out.

    Raises:
        ConfigError: OpenTelemetry is not installed, or cannot use the environment.
    """
    signals = sent_signals(environment)
    redirect_messages()
    exports: list[Export] = [otlp_tracer(plan, role)] if "traces" in signals else []
    try:
        from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk._logs import LoggerProvider
        from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
    except ImportError as error:
        raise ConfigError(f"otlp: needs the extra `server`: pip install 'hushsum[server]' ({error})") from error
    try:
        resource = resource_of(plan, role)
        if "metrics" in signals:
            interval_s = _interval_s(environment)
            exports.append(OtlpMetrics(registry, OTLPMetricExporter(), resource, interval_s=interval_s, now_ms=now_ms))
        if "logs" in signals:
            provider = LoggerProvider(resource=resource, shutdown_on_exit=False)
            provider.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter()))
            exports.append(OtlpLines(provider))
    except Exception as error:
        raise ConfigError(f"otlp: invalid OTEL_* environment variables: {error}") from error
    return exports


def _interval_s(environment: Mapping[str, str]) -> float:
    interval_s = float(environment.get("OTEL_METRIC_EXPORT_INTERVAL") or 1000 * _INTERVAL_S) / 1000
    if not 0 < interval_s < math.inf:
        raise ValueError(f"OTEL_METRIC_EXPORT_INTERVAL: expected milliseconds above 0, got {1000 * interval_s}")
    return interval_s
