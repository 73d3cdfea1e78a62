"""The references of a service: settings, metrics and alerts, from the code and the rules of compose/."""

import re
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal, Union, get_args, get_origin

import yaml
from prometheus_client import CollectorRegistry, Metric
from pydantic import SecretStr
from pydantic.fields import FieldInfo

from aggregator.auth.tokens import TokenMetrics
from aggregator.config import Config
from aggregator.observability.host import HostMetrics
from aggregator.observability.metrics import Metrics, StoreMetrics
from aggregator.secure.coordinator import SumMetrics
from hushsum_cli.serve import serve

_ALERTS: Final = Path(__file__).resolve().parents[2] / "compose" / "prometheus" / "alerts.yml"
_DEFAULT_IN_HELP: Final = re.compile(r"\s*\[default: (.*)\]$")


def settings() -> str:
    """Markdown: a table of every setting."""
    rows = [f"| `{name}` | {_type(field)} | {_default(name, field)} | {meaning(name)} |" for name, field in _fields()]
    return "\n".join(["| key | type and range | default | meaning |", "|---|---|---|---|", *rows])


def _fields() -> Iterator[tuple[str, FieldInfo]]:
    yield from Config.model_fields.items()


def meaning(name: str) -> str:
    """What a setting says: the description of its field, or the help of its option.

    Raises:
        ValueError: It has neither, or both.
    """
    described, helped = Config.model_fields[name].description, _help(name)
    if bool(described) == bool(helped):
        both = (
            "both a description in Config and an option"
            if described
            else "neither a description in Config nor an option"
        )
        raise ValueError(f"setting {name} has {both} of `hushsum serve`, expected one of them")
    return described or re.sub(r"(--[a-z-]+|OTEL_\*)", r"`\1`", _DEFAULT_IN_HELP.sub("", helped))


def _help(name: str) -> str:
    names = {"log_kind": "log"}
    options = {names.get(each.name or "", each.name): getattr(each, "help", None) or "" for each in serve.params}
    return options.get(name, "")


def _default(name: str, field: FieldInfo) -> str:
    if field.default in (None, ""):
        stated = _DEFAULT_IN_HELP.search(_help(name))
        return re.sub(r"(--[a-z-]+)", r"`\1`", stated[1]) if stated else "–"
    if isinstance(field.default, bool):
        return f"`{str(field.default).lower()}`"
    return f"`{field.default:g}`" if isinstance(field.default, float) and field.default < 1e5 else f"`{field.default}`"


def _type(field: FieldInfo) -> str:
    kind = _bare(field.annotation)
    if get_origin(kind) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(kind))
    text = {int: "integer", float: "number", bool: "true or false", Path: "path", str: "text", SecretStr: "text"}[kind]
    bounds = {key: value for each in _metadata(field) for key, value in vars_of(each).items()}
    words = {"ge": "at least", "gt": "above", "le": "at most"}
    return ", ".join([text, *(f"{words[key]} {bounds[key]:,}" for key in words if key in bounds)])


def vars_of(constraint: Any) -> dict[str, Any]:
    """The bounds of one of pydantic's constraints."""
    return {key: value for key in ("ge", "gt", "le") if (value := getattr(constraint, key, None)) is not None}


def _metadata(field: FieldInfo) -> Iterator[Any]:
    """Constraints of the field, and of the type that it has where it is set."""
    yield from field.metadata
    for each in get_args(field.annotation):
        for constraint in getattr(each, "__metadata__", ()):
            yield from getattr(constraint, "metadata", (constraint,))


def _bare(annotation: Any) -> Any:
    """The type without its constraints, and without None."""
    if get_origin(annotation) in {Union, types.UnionType}:
        (annotation,) = (each for each in get_args(annotation) if each is not type(None))
    return getattr(annotation, "__origin__", annotation) if hasattr(annotation, "__metadata__") else annotation


def registry() -> CollectorRegistry:
    """Every metric that a service may have."""
    metrics = Metrics()
    StoreMetrics(metrics.registry)
    SumMetrics(metrics.registry)
    TokenMetrics(metrics.registry)
    HostMetrics(metrics.registry)
    return metrics.registry


def metrics() -> str:
    """Markdown: a table of every metric of the service; those of the process are Prometheus's own."""
    rows = {
        f"| `{name}` | {metric.type} | {', '.join(f'`{label}`' for label in labels) or '–'} | {metric.documentation} |"
        for metric, labels in _collected()
        if (name := metric.name + ("_total" if metric.type == "counter" else "")).startswith("hushsum_")
    }
    return "\n".join(["| metric | type | labels | meaning |", "|---|---|---|---|", *sorted(rows)])


def _collected() -> Iterator[tuple[Metric, tuple[str, ...]]]:
    """Each metric with its labels."""
    for collector in registry()._collector_to_names:  # noqa: SLF001 -- only collectors know labels without a sample
        declared = getattr(collector, "_labelnames", ())
        for metric in collector.collect():
            sampled = metric.samples[0].labels if metric.samples else ()
            yield metric, tuple(declared or (label for label in sampled if label != "le"))  # le: of each histogram


def alerts() -> str:
    """Markdown: a section for each alert of compose/prometheus."""
    return "\n".join(line for rule in rules() for line in _alert(rule))


def rules() -> list[dict[str, Any]]:
    """The alerts, as Prometheus reads them."""
    return [rule for group in yaml.safe_load(_ALERTS.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]


def _alert(rule: dict[str, Any]) -> Iterator[str]:
    yield f"### {rule['alert']}\n"
    yield f"{_named(rule['annotations']['summary'])}\n"
    after = f", after {rule['for']}" if "for" in rule else ""
    yield f"- **Severity**: {rule['labels']['severity']}{after}"
    yield f"- **Runbook**: [what to do](runbooks.md#{rule['alert'].lower()})"
    yield f"- **Condition**:\n\n  ```text\n  {rule['expr']}\n  ```\n"


def _named(text: str) -> str:
    """A text of Prometheus with its labels as plain words."""
    return re.sub(r"\{\{ \$labels\.(\w+) \}\}", r"*\1*", text)
