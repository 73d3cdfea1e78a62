"""Small plans of mode local for tests, one of each form."""

from collections.abc import Mapping

from hushsum import Plan
from tests.plans import small_plan

#: A delta, and a shuffler for it.
SHUFFLED: dict[str, object] = {"epsilon": 1, "delta": "0.000001", "local": {"shuffle_min": 1000}}


def report_plan(**changes: Mapping[str, object]) -> Plan:
    """A small plan of randomised reports, of epsilon 4: of 20 rows of 64 buckets."""
    privacy = {"mode": "local", "epsilon": 4, **changes.pop("privacy", {})}
    return small_plan(privacy=privacy, **changes)


def silo_plan(**changes: Mapping[str, object]) -> Plan:
    """A small plan whose clients noise all their counters."""
    privacy = {"mode": "local", "local": {"form": "silo"}, **changes.pop("privacy", {})}
    return small_plan(privacy=privacy, **changes)


def bit_plan(**changes: Mapping[str, object]) -> Plan:
    """A small plan of reports of one bit, of 20 pairs of the fourier family."""
    sketch = {"family": "fourier", "kernel": "gaussian", "buckets": ..., "seed": 3, **changes.pop("sketch", {})}
    return report_plan(sketch=sketch, **changes)
