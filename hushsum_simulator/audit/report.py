"""What an audit comes to: claimed and audited ε side by side, and the checks that no ε can express.

What counts of an event on two neighbouring data sets prove about ε is an interval that holds with a stated
confidence.
"""

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

ERROR: Final = 1e-6  # of one audited bound: how likely it is above the true ε


@dataclass(frozen=True)
class Hits:
    """How often an event was seen.

    Attributes:
        hits: From 0 to ``runs``.
        runs: Independent ones.
    """

    hits: int
    runs: int


def at_least(hits: npt.ArrayLike, runs: int, error: float) -> Floats:
    """The Clopper–Pearson lower limit of a probability; it is above the truth with probability ``error`` at most."""
    from scipy.special import betaincinv

    seen = np.asarray(hits, dtype=np.float64)
    limit = betaincinv(np.maximum(seen, 1.0), runs - np.maximum(seen, 1.0) + 1.0, error)
    return np.where(seen > 0, limit, 0.0)


def at_most(hits: npt.ArrayLike, runs: int, error: float) -> Floats:
    """The Clopper–Pearson upper limit of a probability; it is below the truth with probability ``error`` at most."""
    seen = np.asarray(hits, dtype=np.float64)
    return 1.0 - at_least(runs - seen, runs, error)


def epsilon_at_least(likelier: Hits, rarer: Hits, *, delta: float, error: float) -> float:
    """A lower limit of ε, from how often one event was seen on either of two neighbouring data sets.

    (ε, δ) promises p <= e^ε·q + δ for every event, so that ε >= ln((p − δ)/q).

    Args:
        likelier: On the data set of p.
        rarer: On that of q.
        delta: The δ that is claimed.
        error: How likely the limit may be above the true ε; half of it goes to either probability.

    Returns:
        At least 0: an event that proves nothing gives 0.
    """
    p = float(at_least(likelier.hits, likelier.runs, error / 2))
    q = float(at_most(rarer.hits, rarer.runs, error / 2))
    return max(0.0, math.log((p - delta) / q)) if p > delta else 0.0


_ROUNDING: Final = 1e-9  # relative, of an exact ε in floats


@dataclass(frozen=True)
class AuditRow:
    """One promise, and what an audit found of it.

    Attributes:
        what: Which road or relation, in words.
        unit: Whom the promise protects.
        relation: How neighbours differ.
        mechanism: Whose noise.
        epsilon: The ε that is claimed,
        delta: and the δ.
        exact: The ε over all outcomes, from real counters and the law of the noise; None: not computed.
        audited: ε is at least this, by ``runs`` runs of the whole road; None: not run.
        event: What tells the neighbours apart best.
        runs: On each of the two data sets; half of them learn the event, the others test it.
        redrawn: In how many runs a window was told withheld, and released later: an outcome is drawn once.
        mode: Who draws the noise: ``central``, or ``secure``: the clients, in shares.
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
        """Whether nothing that was found is above what is claimed."""
        exact = self.exact is None or self.exact <= self.epsilon * (1 + _ROUNDING)
        return exact and (self.audited is None or self.audited <= self.epsilon) and self.redrawn == 0


@dataclass(frozen=True)
class Check:
    """Something that must be so, whatever ε is.

    Attributes:
        what: In words.
        holds: Whether it is so.
        found: What was seen.
    """

    what: str
    holds: bool
    found: str


@dataclass(frozen=True)
class Report:
    """Everything that one audit found.

    Attributes:
        rows: Promises.
        checks: What else must be so.
        seconds: Of the whole audit.
    """

    rows: tuple[AuditRow, ...]
    checks: tuple[Check, ...]
    seconds: float

    def violations(self) -> list[str]:
        """One sentence for each promise that is broken; empty when all hold."""
        return [
            *(_sentence(row) for row in self.rows if not row.holds),
            *(f"{check.what}: {check.found}" for check in self.checks if not check.holds),
        ]

    def to_json(self) -> str:
        """One JSON object; an ε that no finite one bounds is the text ``infinite``."""
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
    """Prints the tables of an audit on standard output."""
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
    others = Table(box=box.SIMPLE_HEAD, title="What no ε expresses", title_style="bold", padding=(0, 1, 0, 0))
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
        console.print("[green]Nothing that was found is above what is claimed.[/green]")


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
