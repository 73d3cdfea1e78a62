"""What objects show in a notebook."""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import hushsum as hs
from tests.hushsum.local_plans import report_plan
from tests.plans import set_plan, small_plan, tables

NASTY = "<script>alert('x')</script>\"&"
TAGS = {"table", "caption", "tr", "td", "th"}


@pytest.fixture
def plan() -> hs.Plan:
    record = {"names": [NASTY, "y"], "classes": [f"{NASTY}a", "b"]}
    return hs.Plan.from_fields({**tables(record=record, privacy={"population": NASTY}), "name": NASTY})


def shown(html: str) -> str:
    """What a browser shows of markup in which nothing is but plain tables, that loads nothing."""
    assert set(re.findall(r"</?([a-z]+)", html)) <= TAGS
    assert not re.search(r"(?i)https?:|//|src|href|url\(|@import|on[a-z]+=", html)
    assert len(html) < 20_000
    return html


def test_names_are_escaped_wherever_they_show(plan: hs.Plan, tmp_path: Path) -> None:
    sketch = hs.Sketch(plan).add(np.ones((20, 2)), labels=["b"] * 20)
    with hs.Ledger(tmp_path / f"{NASTY.replace('/', '')}.db") as ledger:
        release = hs.release(sketch, ledger=ledger)
        for thing in (plan, sketch, release, ledger):
            html = shown(thing._repr_html_())
            assert "&lt;script&gt;alert(&#x27;x&#x27;)" in html


def test_a_sketch_shows_nothing_that_depends_on_data(plan: hs.Plan) -> None:
    empty, full = hs.Sketch(plan), hs.Sketch(plan)
    full.add(np.ones((123, 2)), labels=["b"] * 123)
    assert full._repr_html_() == empty._repr_html_()
    assert repr(full) == repr(empty)
    assert "2 x 20 x 64" in full._repr_html_()


def test_a_release_shows_its_promise_and_its_noisy_count() -> None:
    release = hs.release(hs.Sketch(small_plan()).add(np.ones((500, 2))))
    html = shown(release._repr_html_())
    assert f"{release.count:,.0f} ±" in html
    for part in ("epsilon 1 per record", "bandwidth 2.5", "unaccounted", "number 0 0 to 10, number 1 0 to 10"):
        assert part in html


def test_a_ledger_shows_what_is_spent_and_left(tmp_path: Path) -> None:
    with hs.Ledger(tmp_path / "ledger.db") as ledger:
        assert "no limits are fixed" in shown(ledger._repr_html_())
        for _ in range(25):
            hs.release(hs.Sketch(small_plan()), ledger=ledger)
        html = shown(ledger._repr_html_())
    assert "25 spent, 75 left of 100" in html
    assert "25 spends, the newest 20" in html
    assert html.count("in-process") == 20


def test_a_ledger_that_cannot_be_read_here_shows_its_path_and_why(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with hs.Ledger(path) as ledger, ThreadPoolExecutor(1) as other:
        html = shown(other.submit(ledger._repr_html_).result())
        assert str(path) in html
        assert "opened by another thread" in html
    html = shown(ledger._repr_html_())
    assert str(path) in html
    assert "closed" in html


def test_a_plan_of_sets_and_one_of_reports_show() -> None:
    assert "sets of ids below 100" in shown(set_plan()._repr_html_())
    assert "local" in shown(report_plan()._repr_html_())


@pytest.mark.parametrize(
    "answer",
    [
        lambda: hs.Answer(np.arange(30.0), np.ones(30)),
        lambda: hs.Answer(np.arange(1.0), np.full(1, np.nan), degrees=7),
        lambda: hs.Answer(np.arange(3.0), np.ones(3), bias=np.full(3, 0.5)),
    ],
)
def test_answers_are_columns(answer: Callable[[], hs.Answer]) -> None:
    given = answer()
    columns, (low, high) = given.columns(0.9), given.interval(0.9)
    assert list(columns) == ["value", "std_error", "low", "high"] + ["bias"] * (given.bias is not None)
    np.testing.assert_array_equal(columns["low"], low)
    np.testing.assert_array_equal(columns["high"], high)
    assert all(column.shape == given.value.shape and column.dtype == np.float64 for column in columns.values())
    html = shown(given._repr_html_())
    assert ("10 more" in html) == (len(given.value) == 30)


def test_columns_make_a_frame_of_pandas_polars_and_arrow() -> None:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    columns = hs.Answer(np.arange(3.0), np.ones(3)).columns()
    assert pd.DataFrame(columns).shape == pl.DataFrame(columns).shape == pa.table(columns).shape == (3, 4)
