"""Many windows: cumulative releases beside sums of tumbling releases of the same ε, through the service's own parts.

The records are dealt out to windows. A service releases them under a cumulative plan, and another one under a tumbling
plan with the same promise for a record. What the noise adds to the answers is compared, window by window.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from hushsum import query
from hushsum.plan import Plan
from hushsum.privacy.factorisation import SignedDigitTree
from hushsum.privacy.guarantee import CENTRAL
from hushsum.privacy.relations import RECORD
from hushsum.releases import Release
from hushsum.schedule import CUMULATIVE, TUMBLING
from hushsum_simulator.audit.cases import Submission
from hushsum_simulator.audit.pipelines import sequence
from hushsum_simulator.data import Floats, clip
from hushsum_simulator.errors import SettingsConflictError
from hushsum_simulator.progress import Progress
from hushsum_simulator.scenario import RunSettings, gather

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SIZES: Final = {"rows": 200, "buckets": 256}  # of a run's own plan: each window draws noise for all counters, twice
_TOLERANCE: Final = 0.1  # of the noise of a release beside the stated one
_COLOURS: Final = {CUMULATIVE: "#0072b2", TUMBLING: "#d55e00"}


@dataclass(frozen=True)
class WindowErrors:
    """What noise adds to the answers about all windows so far.

    Attributes:
        step: The number of windows.
        records: In them.
        cumulative: Root mean square over the queries, in records: of the cumulative release.
        stated: What its plan says.
        tumbling: Of the sum of the tumbling releases.
        tumbling_stated: What their plan says.
    """

    step: int
    records: int
    cumulative: float
    stated: float
    tumbling: float
    tumbling_stated: float


@dataclass(frozen=True)
class OverTime:
    """A run over many windows.

    Attributes:
        plan: The cumulative one.
        windows: By step, from 1 on.
        variance_ratio: The mean square of the noise of all counters of all releases, over the stated one.
        seconds: How long it took.
    """

    plan: Plan
    windows: tuple[WindowErrors, ...]
    variance_ratio: float
    seconds: float

    def violations(self) -> list[str]:
        """What must not be, a sentence each."""
        if abs(self.variance_ratio - 1) <= _TOLERANCE:
            return []
        return [f"the variance of the noise of the cumulative releases is {self.variance_ratio:.3f} × the stated one"]

    def figure(self) -> "Figure":
        """Errors by window, both axes logarithmic: measured and stated, cumulative beside tumbling sums."""
        from hushsum.plots import new_figure

        figure = new_figure((8.0, 4.6))
        axis = figure.add_subplot()
        steps = [each.step for each in self.windows]
        lines = (
            (TUMBLING, "sum of tumbling releases", "tumbling"),
            (CUMULATIVE, "cumulative release", "cumulative"),
        )
        for kind, label, name in lines:
            stated = "stated" if kind == CUMULATIVE else "tumbling_stated"
            axis.plot(steps, [getattr(each, name) for each in self.windows], color=_COLOURS[kind], label=label)
            expected = [getattr(each, stated) for each in self.windows]
            axis.plot(steps, expected, color=_COLOURS[kind], linestyle="--", linewidth=1, label=f"{label}, stated")
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axis.set_xlabel("windows so far")
        axis.set_ylabel("error by noise of an answer, in records")
        axis.grid(visible=True, which="major", color="0.9", linewidth=0.7)
        axis.legend(frameon=False, fontsize=9)
        return figure


def simulate_over_time(settings: RunSettings, progress: Progress) -> OverTime:
    """Runs many windows, and writes errors.png, plan.json and the last release to ``settings.out``.

    Raises:
        HushsumError: A step failed.
        SettingsConflictError: The plan is not of mode ``central`` and unit ``record``.
    """
    began = time.monotonic()
    material = gather(settings, progress)
    promise, count = material.plan.privacy, settings.windows
    if promise.mode != CENTRAL or promise.unit != RECORD:
        came = f"mode {promise.mode!r} and unit {promise.unit!r}"
        raise SettingsConflictError(f"--windows: got a plan of {came}, expected mode 'central' and unit 'record'")
    plans = {kind: _plan_of(material.plan, kind, count, own=settings.plan is None) for kind in (CUMULATIVE, TUMBLING)}
    parts = np.array_split(np.random.default_rng(settings.seed).permutation(material.counted), count)
    most = material.plan.delta_records_max
    contents = [
        tuple(Submission(f"client-{at // most}", part[at : at + most]) for at in range(0, len(part), most))
        for part in parts
    ]
    found = {}
    for kind, plan in plans.items():
        progress.step(f"{count} windows of a {kind} plan, ε = {float(promise.epsilon):g}")
        found[kind] = sequence(plan, contents, lambda _: None)
    queries = clip(material.plan, material.queries)
    windows, ratio = _compare(plans, found, [len(part) for part in parts], queries)
    settings.out.mkdir(parents=True, exist_ok=True)
    (settings.out / "plan.json").write_bytes(plans[CUMULATIVE].bundle)
    found[CUMULATIVE][-1][0].save(settings.out / "release.hush")
    made = OverTime(plans[CUMULATIVE], windows, ratio, time.monotonic() - began)
    made.figure().savefig(settings.out / "errors.png")
    return made


def _plan_of(plan: Plan, kind: str, windows: int, *, own: bool) -> Plan:
    """The same promise for windows of another kind; a run's own plan with fewer counters."""
    fields = plan.to_fields()
    window = {key: value for key, value in plan.window.to_fields().items() if key not in ("release", "horizon", "late")}
    if kind == CUMULATIVE:
        window |= {"release": CUMULATIVE, "horizon": windows}
    sketch = {**plan.family.to_fields(), "family": plan.family.name, **(_SIZES if own else {})}
    tables = {"name": plan.name, "record": fields["record"], "sketch": sketch, "window": window}
    return Plan.from_fields({**tables, "privacy": plan.privacy.changed({})}, plan.parameters)


Counters = npt.NDArray[np.int64]
_Found = dict[str, list[tuple[Release, Counters]]]


def _compare(
    plans: dict[str, Plan], found: _Found, records: Sequence[int], queries: Floats
) -> tuple[tuple[WindowErrors, ...], float]:
    """The errors by window, and the ratio of variances of all counters (:attr:`OverTime.variance_ratio`)."""
    plan, tumbling = plans[CUMULATIVE], plans[TUMBLING]
    single = query.noise_std_error(tumbling)
    unit = plan.privacy.mechanism.noise_variance
    exact, summed = (np.zeros(plan.counters_shape, np.int64) for _ in range(2))
    windows, squares = [], 0.0
    for step, ((release, sealed), (alone, again)) in enumerate(zip(found[CUMULATIVE], found[TUMBLING], strict=True), 1):
        assert np.array_equal(sealed, again), "both services have counted the same records"
        exact, summed = exact + sealed, summed + alone.counters
        noise = release.counters - exact
        squares += float((noise.astype(np.float64) ** 2).mean() / (query.noise_covariance(plan, step, step) * unit))
        answers = [_error(plan, counters, exact, queries) for counters in (release.counters, summed)]
        stated = query.noise_std_error(plan, draws=release.draws)
        windows.append(
            WindowErrors(step, sum(records[:step]), answers[0], stated, answers[1], single * float(np.sqrt(step)))
        )
    return tuple(windows), squares / len(windows)


def _error(plan: Plan, noisy: Counters, exact: Counters, queries: Floats) -> float:
    """The root mean square of what the noise of counters adds to answers, over the queries and all classes together."""
    answers = [plan.family.answer(counters.sum(axis=0), queries).value for counters in (noisy, exact)]
    return float(np.sqrt(((answers[0] - answers[1]) ** 2).mean()))


def rows(run: OverTime) -> list[list[str]]:
    """A table of some windows: powers of two, and the last."""
    last = len(run.windows)
    shown = sorted({*(2**power for power in range(last.bit_length()) if 2**power <= last), last})
    return [
        [
            f"{each.step:,}",
            f"{each.records:,}",
            f"{each.cumulative:.1f}",
            f"{each.stated:.1f}",
            f"{each.tumbling:.1f}",
            f"{each.tumbling_stated:.1f}",
            f"{each.tumbling_stated / each.stated:.2f}",
        ]
        for each in (run.windows[step - 1] for step in shown)
    ]


#: The columns of :func:`rows`.
COLUMNS: Final = ("windows", "records", "cumulative", "stated", "sum of tumbling", "stated", "ratio")
_MEANINGS: Final = (
    "windows: released so far",
    "records: in these windows",
    "cumulative: observed error of the cumulative release, root mean square over the queries",
    "stated: standard error of the cumulative release that its plan states",
    "sum of tumbling: observed error of the sum of the tumbling releases, root mean square over the queries",
    "stated: standard error of that sum that the tumbling plan states",
    "ratio: stated error of the sum over that of the cumulative release; above 1, the latter has less noise",
)


def explanation(plan: Plan) -> list[str]:
    """What each column of :func:`rows` is, a line each; and where cumulative releases have the noise of sums."""
    cumulation = plan.privacy.cumulation
    tree = None if cumulation is None else cumulation.factorisation
    if not isinstance(tree, SignedDigitTree) or tree.levels > 1:
        return [*_MEANINGS]
    return [*_MEANINGS, "this plan's releases have the same noise as sums of windows: δ = 0 and a short horizon"]


def files(out: Path) -> str:
    """Where the results are."""
    return f"errors.png, release.hush and plan.json are in {out}"
