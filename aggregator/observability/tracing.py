"""Spans of the service's own steps, sent to a collector by OpenTelemetry, or nowhere.

No span may show a client, its data, or its address. Nor arrival times of anonymous reports, which are erased by design:
in plans of reports no span begins or ends because a report arrived, so neither commits nor checkpoints have one (a
checkpoint is due a fixed time after the first entry that is not stored yet). Commits have spans in central plans alone.
An error has its type and no text: a text may quote a client's data.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import hushsum
from aggregator.errors import ConfigError
from aggregator.interfaces import NO_TRACES, Span, Tracer
from aggregator.logs import journal
from hushsum.plan import Plan
from hushsum.privacy.guarantee import CENTRAL

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span as OtelSpan

PREFIX: Final = "hushsum."  # of attributes
_SIGNALS: Final = ("traces", "logs", "metrics")

_journal = journal("otlp")


def of_commits(tracer: Tracer, plan: Plan) -> Tracer:
    """The tracer of group commits, which tell when deltas arrived: of central plans alone."""
    return tracer if plan.privacy.mode == CENTRAL else NO_TRACES


def of_checkpoints(tracer: Tracer, plan: Plan) -> Tracer:
    """The tracer of checkpoints: none where entries are anonymous reports."""
    return tracer if plan.privacy.reports is None else NO_TRACES


class OtelTracer:
    """Spans of OpenTelemetry, by a provider that is not the global one."""

    def __init__(self, provider: "TracerProvider") -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("hushsum", hushsum.__version__)

    @contextmanager
    def span(self, name: str, **attributes: str | float) -> Iterator[Span]:
        from opentelemetry.trace import StatusCode

        with self._tracer.start_as_current_span(
            name, attributes=_named(attributes), record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield _Open(span)
            except BaseException as error:
                span.set_attribute("error.type", type(error).__name__)
                span.set_status(StatusCode.ERROR)
                raise

    def close(self, seconds: float) -> None:
        """Sends what is left, for so long at most; blocks. Later spans are dropped."""
        close_within(seconds, self._provider.shutdown, "traces")


class _Open:
    def __init__(self, span: "OtelSpan") -> None:
        self._span = span

    def note(self, **attributes: str | float) -> None:
        self._span.set_attributes(_named(attributes))

    def event(self, name: str, **attributes: str | float) -> None:
        self._span.add_event(name, _named(attributes))


def close_within(seconds: float, shutdown: Callable[[], None], name: str) -> None:
    """Closes an export, for so long at most; blocks."""
    # A daemon thread: a collector that does not answer keeps no process from ending.
    closing = threading.Thread(target=shutdown, name=name, daemon=True)
    closing.start()
    closing.join(seconds)


def sent_signals(environment: Mapping[str, str]) -> frozenset[str]:
    """Which of traces, logs and metrics are sent: all, without those whose ``OTEL_*_EXPORTER`` is ``none``.

    Raises:
        ConfigError: One is neither ``otlp`` nor ``none``.
    """
    chosen = {signal: environment.get(f"OTEL_{signal.upper()}_EXPORTER") or "otlp" for signal in _SIGNALS}
    for signal, exporter in chosen.items():
        if exporter not in {"otlp", "none"}:
            raise ConfigError(f"otlp: OTEL_{signal.upper()}_EXPORTER: expected otlp or none, got {exporter!r}")
    return frozenset(signal for signal, exporter in chosen.items() if exporter == "otlp")


def resource_of(plan: Plan, role: str) -> "Resource":
    """What a process says of itself; ``OTEL_SERVICE_NAME`` and ``OTEL_RESOURCE_ATTRIBUTES`` of the environment win."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource

    own = {"service.name": "hushsum", "service.version": hushsum.__version__, "hushsum.role": role}
    of_plan = {"hushsum.plan": plan.hex_id, "hushsum.plan_name": plan.name}
    return Resource.create({**own, **of_plan, **OTELResourceDetector().detect().attributes})


def otlp_tracer(plan: Plan, role: str) -> OtelTracer:
    """A tracer to the collector that the environment names by its standard variables (``OTEL_*``).

    Raises:
        ConfigError: OpenTelemetry is not installed, or cannot use the environment.
    """
    try:
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigError(f"otlp: needs the extra `server`: pip install 'hushsum[server]' ({error})") from error
    try:
        provider = TracerProvider(resource=resource_of(plan, role), shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    except Exception as error:
        raise ConfigError(f"otlp: invalid OTEL_* environment variables: {error}") from error
    return OtelTracer(provider)


def _named(attributes: Mapping[str, str | float]) -> dict[str, str | float]:
    return {PREFIX + name: value for name, value in attributes.items()}


class _ToJournal(logging.Handler):
    """Logs the exporter's first message as a warning, and others at debug: a missing collector stops no service."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._is_logged = False

    def emit(self, record: logging.LogRecord) -> None:
        (_journal.debug if self._is_logged else _journal.warning)("telemetry is lost", why=record.getMessage())
        self._is_logged = True


def redirect_messages() -> None:
    """Redirects what OpenTelemetry logs into our journal."""
    logger = logging.getLogger("opentelemetry")
    if not any(isinstance(handler, _ToJournal) for handler in logger.handlers):
        logger.addHandler(_ToJournal())
        logger.propagate = False
