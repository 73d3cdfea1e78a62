"""Plans for tests: small ones of each unit, and the tables that they are made of."""

from collections.abc import Mapping
from copy import deepcopy

from hushsum import Plan

TABLES: dict[str, dict[str, object]] = {
    "record": {"kind": "vector", "dim": 2, "lower": [0, 0], "upper": [10, 10]},
    "sketch": {"family": "hashed", "kernel": "euclidean", "bandwidth": 2.5, "rows": 20, "buckets": 64, "seed": 3},
    "privacy": {"epsilon": 1.0, "total_epsilon": 100},
    "window": {"length": "1h", "lateness": "5m"},
}


def tables(**changes: Mapping[str, object]) -> dict[str, object]:
    """The tables of a small plan; ``sketch={"rows": 5}`` changes a key, a value of ``...`` removes it."""
    result: dict[str, object] = {"name": "test", **deepcopy(TABLES)}
    for name, keys in changes.items():
        table = dict(result.get(name, {}))  # type: ignore[call-overload]  # tables are dicts, names are strings
        table.update(keys)
        result[name] = {key: value for key, value in table.items() if value is not ...}
    return result


def small_plan(**changes: Mapping[str, object]) -> Plan:
    """A small plan of unit record."""
    return Plan.from_fields(tables(**changes))


def classed_plan(*classes: str, **changes: Mapping[str, object]) -> Plan:
    """A small plan whose records have labels: those given, or ``a``, ``b`` and ``c``."""
    record = {**changes.pop("record", {}), "classes": list(classes or "abc")}
    return small_plan(record=record, **changes)


def set_plan(**changes: Mapping[str, object]) -> Plan:
    """A small plan of sets of ids below 100."""
    record = {**dict.fromkeys(("dim", "lower", "upper"), ...), "kind": "set", "universe": 100}
    return small_plan(record=record, sketch={"kernel": "jaccard", "bandwidth": ...}, **changes)


def model_plan(**changes: Mapping[str, object]) -> Plan:
    """A small plan of the paired family: models of two coefficients."""
    record: dict[str, object] = {"dim": 3, "lower": [-2, -2, -2], "upper": [2, 2, 2]}
    sketch: dict[str, object] = {"kernel": ..., "bandwidth": ..., "buckets": ..., "family": "paired", "radius": 2}
    return small_plan(record=record, sketch=sketch, **changes)


def client_plan(records_per_client: int = 3) -> Plan:
    """A small plan of unit client."""
    return small_plan(privacy={"unit": "client", "records_per_client": records_per_client})


def secure_plan(cohort: Mapping[str, object] | None = None, **changes: Mapping[str, object]) -> Plan:
    """A small plan of mode secure, pure unless it has a delta: of ten clients one may be corrupt and one vanish."""
    keys = {"cohort": 10, "corrupt": "0.1", "dropout": "0.1", **(cohort or {})}
    privacy = {"mode": "secure", "total_delta": "0.000001", "secure": keys, **changes.pop("privacy", {})}
    return small_plan(privacy=privacy, **changes)
