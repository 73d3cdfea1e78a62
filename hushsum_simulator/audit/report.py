"""The result of an audit: claimed and audited ε side by side, and checks that no ε expresses.

Counts of an event on two neighbouring data sets give a lower limit of ε that holds with a stated confidence.
"""

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from hushsum.plan import Plan

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

ERROR: Final = 1e-6  # of one audited bound: how likely it is above the true ε


@dataclass(frozen=True)
class Hits:
    """How often an event happened in independent runs."""

    hits: int
    runs: int


def at_least(hits: npt.ArrayLike, runs: int, error: float) -> Floats:
    """The Clopper–Pearson lower limit of a probability: above the truth with probability ``error`` at most."""
    from scipy.special import betaincinv

    seen = np.asarray(hits, dtype=np.float64)
    limit = betaincinv(np.maximum(seen, 1.0), runs - np.maximum(seen, 1.0) + 1.0, error)
    return np.where(seen > 0, limit, 0.0)


def at_most(hits: npt.ArrayLike, runs: int, error: float) -> Floats:
    """The Clopper–Pearson upper limit of a probability: below the truth with probability ``error`` at most."""
    seen = np.asarray(hits, dtype=np.float64)
    return 1.0 - at_least(runs - seen, runs, error)


def epsilon_at_least(likelier: Hits, rarer: Hits, *, delta: float, error: float) -> float:
    """A lower limit of ε, from the hits of one event on two neighbouring data sets; at least 0.

    (ε, δ) promises p <= e^ε·q + δ for every event, so that ε >= ln((p − δ)/q). The limit is above the true ε with
    probability ``error`` at most, half of it for either probability.
    """
    p = float(at_least(likelier.hits, likelier.runs, error / 2))
    q = float(at_most(rarer.hits, rarer.runs, error / 2))
    return max(0.0, math.log((p - delta) / q)) if p > delta else 0.0


_ROUNDING: Final = 1e-9  # relative, of an exact ε in floats


@dataclass(frozen=True)
class AuditRow:
    """A claim of (ε, δ), and the audit's results.

    Attributes:
        what: Which pipeline or relation, in words.
        exact: ε over all outcomes, from real counters and the law of the noise; None: not computed.
        audited: Lower limit of ε from runs of the whole pipeline; None: not run.
        event: What distinguishes the neighbours best.
        runs: On each of the two data sets; half of them learn the event, the others test it.
        redrawn: Runs in which a window was reported as withheld and released later: an outcome is drawn once.
    """

    what: str
    unit: str
    relation: str
    mechanism: str
    epsilon: float
    delta: float
    exact: float | None = None
    audited: float | None = None
    event: str = ""
    runs: int = 0
    redrawn: int = 0
    mode: str = "central"

    @property
    def holds(self) -> bool:
        """Whether no result is above the claim."""
        exact = self.exact is None or self.exact <= self.epsilon * (1 + _ROUNDING)
        return exact and (self.audited is None or self.audited <= self.epsilon) and self.redrawn == 0


def claimed(what: str, plan: Plan) -> AuditRow:
    """The claim of a plan, without results."""
    privacy, promise = plan.privacy, plan.guarantee
    epsilon, delta = float(privacy.epsilon), float(privacy.delta)
    return AuditRow(what, promise.unit, promise.relation, privacy.mechanism.name, epsilon, delta, mode=privacy.mode)


@dataclass(frozen=True)
class Check:
    """A requirement that no ε expresses."""

    what: str
    holds: bool
    found: str


@dataclass(frozen=True)
class Report:
    """All results of one audit, and how long it took."""

    rows: tuple[AuditRow, ...]
    checks: tuple[Check, ...]
    seconds: float

    def violations(self) -> list[str]:
        """A sentence for each broken promise."""
        return [
            *(_sentence(row) for row in self.rows if not row.holds),
            *(f"{check.what}: {check.found}" for check in self.checks if not check.holds),
        ]

    def to_json(self) -> str:
        """One JSON object; an infinite ε is the text ``infinite``."""
        fields = {
            "error": ERROR,
            "seconds": round(self.seconds, 1),
            "rows": [{**dataclasses.asdict(row), "holds": row.holds} for row in self.rows],
            "checks": [dataclasses.asdict(check) for check in self.checks],
        }
        for row in fields["rows"]:  # type: ignore[attr-defined]  # the list above
            if row["exact"] is not None and math.isinf(row["exact"]):
                row["exact"] = "infinite"
        return json.dumps(fields, indent=2, allow_nan=False) + "\n"


def _sentence(row: AuditRow) -> str:
    found = [f"{row.exact:.4g} exactly"] if row.exact is not None else []
    found += [f"at least {row.audited:.4g}"] if row.audited is not None else []
    found += [f"{row.redrawn} withheld outcomes drawn again"] if row.redrawn else []
    where = f"{row.what}, unit {row.unit}, {row.relation}, {row.mechanism}"
    where += f", mode {row.mode}" if row.mode != "central" else ""
    return f"{where}: claimed epsilon {row.epsilon:g}, found {' and '.join(found)}"


def print_report(report: Report) -> None:
    """Prints the tables on standard output."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    table = Table(box=box.SIMPLE_HEAD, title="Claimed and audited ε", title_style="bold", padding=(0, 1, 0, 0))
    for name in ("what", "mode", "unit", "relation", "noise"):
        table.add_column(name, overflow="fold")
    for name in ("claim ε δ", "exact", "at least", "runs"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in report.rows:
        table.add_row(*_cells(row), style=None if row.holds else "red")
    console.print(table)
    others = Table(box=box.SIMPLE_HEAD, title="Checks without an ε", title_style="bold", padding=(0, 1, 0, 0))
    for name in ("what", "found"):
        others.add_column(name, overflow="fold")
    for check in report.checks:
        others.add_row(check.what, check.found, style=None if check.holds else "red")
    console.print(others)
    console.print(
        "exact: over all outcomes. at least: a lower limit by runs on two neighbouring data sets, "
        f"above the true ε with probability {ERROR:g} at most. {report.seconds:.0f} s."
    )
    if not report.violations():
        console.print("[green]No finding is above its claim.[/green]")


def _cells(row: AuditRow) -> tuple[str, ...]:
    claimed = f"{row.epsilon:.4g}" + (f" {row.delta:.2g}" if row.delta else "")
    exact = "" if row.exact is None else f"{row.exact:.4f}"
    audited = "" if row.audited is None else f"{row.audited:.3f}"
    noise = row.mechanism.removeprefix("discrete-").removeprefix("report-")
    return (
        row.what,
        row.mode,
        row.unit,
        row.relation,
        noise,
        claimed,
        exact,
        audited,
        f"{row.runs:,}" if row.runs else "",
    )
