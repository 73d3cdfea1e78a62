"""The plan of a run in local mode that was given none: its ``[privacy]``, the size of its sketch, its windows."""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Final

from hushsum.local.errors import best_width
from hushsum.plan import Plan
from hushsum.privacy.guarantee import LOCAL
from hushsum.privacy.local_mode import K_RR, ONE_BIT, PROJECTIVE, REPORT, SHUFFLE_MAX, SILO

# Each report names one row: more rows cost no noise and take off what the hash errs by. At 4,000 rows as wide as ε = 4
# wants them, what is left of that is below what the randomiser adds, and a report is 3 bytes.
_K_RR_ROWS: Final = 4000
# A projective response wants wide rows whatever ε is; its points are more than its buckets, and each has a counter.
_PROJECTIVE: Final = {"rows": 1000, "buckets": 256}
_PAIRS: Final = 2000
# Every silo noises, packs and sends every counter. With δ > 0 the noise of an answer is the same for any R.
_SILO: Final = {"rows": 800, "buckets": 128}
_LOCAL_DELTA: Final = Fraction(1, 10**6)  # of a silo's Gaussian noise, and of what is said of shuffled reports
#: ε of a run that is asked for none: a report bears all noise by itself.
EPSILON: Final = {REPORT: Fraction(4), SILO: Fraction(1)}
# A silo submits in every window that is open, and the hour that has just ended still is: a run is about one window.
_SILO_WINDOW: Final = {"length": "30d"}
# A shuffler forwards after a window's end: short ones, so that a run need not wait for long.
_SHUFFLED_WINDOW: Final = {"length": "10s", "lateness": "8s"}


def privacy_keys(
    *, form: str, randomiser: str | None, delta: Fraction | None, shuffled: bool, reports: int
) -> dict[str, object]:
    """What ``[privacy]`` of such a plan has beside ε, the unit and the population's limit.

    Args:
        form: ``report`` or ``silo``.
        randomiser: Of reports; None is ``k-rr``.
        delta: None: none with reports, 10⁻⁶ of a silo or of shuffled reports.
        shuffled: Whether a shuffler stands before the server.
        reports: How many there will be; a shuffled batch has at least half as many.
    """
    if form == SILO:
        delta = _LOCAL_DELTA if delta is None else delta
        keys: dict[str, object] = {"mode": LOCAL, "local": {"form": SILO}}
        return keys | ({"delta": delta, "total_delta": delta} if delta else {})
    local: dict[str, object] = {"form": REPORT, "randomiser": randomiser or K_RR}
    keys = {"mode": LOCAL, "local": local}
    if shuffled:
        local["shuffle_min"] = max(1, min(reports // 2, SHUFFLE_MAX))
        keys["delta"] = delta or _LOCAL_DELTA
    elif delta:
        keys["delta"] = delta  # the plan's own words say what is wrong with it
    return keys


def sketch_keys(privacy: Mapping[str, object], kernel: Mapping[str, object]) -> dict[str, object]:
    """``[sketch]`` without its seed, of a size that goes with ``[privacy]``.

    Args:
        privacy: Of mode ``local``.
        kernel: ``bandwidth`` and ``draws`` as in other modes.
    """
    local = privacy["local"]
    assert isinstance(local, dict), "of a run's own plan"
    hashed = {"family": "hashed", "kernel": "euclidean", **kernel}
    if local["form"] == SILO:
        return {**hashed, **_SILO}
    if local["randomiser"] == PROJECTIVE:
        return {**hashed, **_PROJECTIVE}
    if local["randomiser"] == ONE_BIT:
        return {"family": "fourier", "kernel": "gaussian", **kernel, "rows": _PAIRS}
    return {**hashed, "rows": _K_RR_ROWS, "buckets": _advised_width(privacy)}


def window_keys(privacy: Mapping[str, object]) -> Mapping[str, object]:
    """``[window]`` of such a plan."""
    local = privacy["local"]
    assert isinstance(local, dict), "of a run's own plan"
    if local["form"] == SILO:
        return _SILO_WINDOW
    return _SHUFFLED_WINDOW if local.get("shuffle_min") else {}


def central_twin(plan: Plan, sizes: Mapping[str, object]) -> Plan:
    """The plan of the same records, kernel, ε and δ in central mode, where one server adds up and draws the noise.

    Args:
        plan: Of mode ``local``.
        sizes: Keys of ``[sketch]`` that central mode would take otherwise.
    """
    fields = plan.to_fields()
    del fields["format"]
    window = {key: value for key, value in plan.window.to_fields().items() if key not in ("min_reports", "min_clients")}
    of_reports = plan.privacy.reports is not None
    changes: dict[str, object] = {"mode": None, "local": None, **({"delta": 0, "total_delta": 0} if of_reports else {})}
    sketch = {"family": plan.family.name, **plan.family.to_fields(), **sizes}
    tables = {"sketch": sketch, "window": window, "privacy": plan.privacy.changed(changes)}
    return Plan.from_fields({**fields, **tables}, plan.parameters)


def _advised_width(privacy: Mapping[str, object]) -> int:
    """W of k-rr for which a record adds the least variance."""
    epsilon, m = privacy["epsilon"], privacy.get("records_per_client", 1)
    assert isinstance(epsilon, Fraction), "as the run was told"
    assert isinstance(m, int), "as well"
    return best_width(Fraction(math.exp(min(float(epsilon) / m, 20.0))))
