"""The figure of advice: its lines are what was predicted."""

from pathlib import Path

import numpy as np
import pytest

from hushsum.advice import Advice, Allowance, advise, advise_reports
from hushsum.advice_plot import error_figure, report_figure
from tests.hushsum import local_plans
from tests.plans import small_plan


@pytest.fixture(scope="module")
def advice() -> Advice:
    allowance = Allowance(memory_mib=0.25)
    return advise(small_plan(privacy={"epsilon": "0.2"}), records=20_000, density=0.2, allowance=allowance)


def test_each_promise_has_its_error_its_noise_and_its_best(advice: Advice) -> None:
    axis = error_figure(advice).axes[0]
    lines = {str(line.get_label()): np.asarray(line.get_ydata()).tolist() for line in axis.lines}
    for index, name in enumerate(("δ = 0 (pure)", "δ = 1e-6 (zCDP)")):
        assert lines[f"error, {name}"] == [size.errors[index] for size in advice.sizes]
        assert lines[f"noise, {name}"] == [size.noises[index] for size in advice.sizes]
    assert lines["hashing error"] == [size.hashing for size in advice.sizes]
    best = [label for label in lines if label.startswith("best")]
    assert len(best) == 2
    assert all(
        label.startswith(f"best: R = {promise.best:,},") for label, promise in zip(best, advice.promises, strict=True)
    )


def test_the_plan_and_the_best_rows_without_limits_are_marked(advice: Advice) -> None:
    axis = error_figure(advice).axes[0]
    marked = {str(line.get_label()): line.get_xydata() for line in axis.lines}
    plan = next(place for label, place in marked.items() if label.startswith("the plan: R = 20,"))
    assert np.asarray(plan).tolist() == [[20, advice.std_error]]
    star = np.asarray(marked[f"R* = {advice.optimal_rows:,}, without limits"])
    assert star.tolist() == [[advice.optimal_rows, advice.at(advice.optimal_rows).errors[0]]]


def test_what_is_not_allowed_is_shaded_from_the_largest_allowed_size(advice: Advice) -> None:
    axis = error_figure(advice).axes[0]
    (shade,) = (patch for patch in axis.patches if patch.get_label() == "over a limit")
    largest = max(size.rows or 0 for size in advice.sizes if not size.exceeds)
    assert shade.get_window_extent().x0 == pytest.approx(axis.transData.transform((largest, 1))[0])


def test_the_figure_is_written(advice: Advice, tmp_path: Path) -> None:
    path = tmp_path / "advice.png"
    error_figure(advice).savefig(path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_one_size_is_nothing_to_draw() -> None:
    sketch: dict[str, object] = {"family": "hermite", "kernel": "gaussian", "rows": ..., "buckets": ..., "seed": ...}
    only = advise(small_plan(sketch=sketch), records=1000, density=0.3)
    with pytest.raises(ValueError, match="number of rows of this plan is fixed"):
        error_figure(only)


def test_reports_are_drawn_against_rows_and_against_buckets_of_both_randomisers() -> None:
    advice = advise_reports(local_plans.report_plan(), records=20_000, density=0.3)
    rows, widths = report_figure(advice).axes
    lines = {str(line.get_label()): np.asarray(line.get_ydata()).tolist() for line in rows.lines}
    assert lines["error, k-rr"] == [size.error for size in advice.rows]
    assert lines["hashing error"] == [size.hashing for size in advice.rows]
    others = {str(line.get_label()): np.asarray(line.get_ydata()).tolist() for line in widths.lines}
    for name, sizes in advice.widths.items():
        assert others[f"error, {name}"] == [size.error for size in sizes]
    assert len([label for label in others if label.startswith(("best k-rr: W = ", "best projective: W = "))]) == 2


def test_reports_of_one_bit_have_no_buckets_to_draw() -> None:
    advice = advise_reports(local_plans.bit_plan(), records=20_000, density=0.3)
    assert len(report_figure(advice).axes) == 1
