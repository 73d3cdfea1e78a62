"""The figures that docs/explanation/scale.md states are those that were measured, its bytes again here."""

import json
import re
import time
from pathlib import Path
from typing import Final

import pytest

from benchmarks.fleet.costs import log_bytes, postgres_row_bytes, sqlite_row_bytes
from benchmarks.fleet.site import Site
from benchmarks.fleet.visits import network_bytes
from benchmarks.service.deltas import Deltas, plan_of
from hushsum_simulator.testbed.kafka import KafkaBroker
from hushsum_simulator.testbed.postgres import Postgres

ROOT: Final = Path(__file__).parents[2]
PAGE: Final = (ROOT / "docs" / "explanation" / "scale.md").read_text("utf-8")
WITHIN: Final = 0.1  # pages that are partly filled, and what the page rounds


def stated(pattern: str) -> float:
    """A figure of the page in bytes; the page has kB."""
    found = re.search(pattern, PAGE)
    assert found is not None, pattern
    return 1000 * float(found[1])


@pytest.mark.parametrize(
    ("rows", "at_once", "pattern"),
    [
        (100, 1, r"a delta in the log \| ([\d.]+) kB"),
        (100, 64, r"64 appended at once: ([\d.]+)"),
        (1000, 1, r"in the log \(([\d.]+) in place of"),
    ],
)
async def test_a_delta_in_the_log_of_kafka(kafka: KafkaBroker, rows: int, at_once: int, pattern: str) -> None:
    found = await log_bytes(kafka, rows=rows, count=64, at_once=at_once)
    assert found == pytest.approx(stated(pattern), rel=WITHIN)


async def test_a_row_of_the_table_of_streams_in_postgresql(postgres: Postgres) -> None:
    assert await postgres_row_bytes(postgres, 2000) == pytest.approx(stated(r"database \| ([\d.]+) kB"), rel=WITHIN)


async def test_a_row_of_the_table_of_streams_in_sqlite(tmp_path: Path) -> None:
    assert await sqlite_row_bytes(tmp_path, 2000) == pytest.approx(stated(r"index; SQLite ([\d.]+)"), rel=WITHIN)


async def test_the_bytes_of_a_visit(tmp_path: Path) -> None:
    site = Site.made(tmp_path, plan_of(100), 1)
    window = site.plan.window.index_at(time.time_ns() // 1_000_000)
    with site.service() as service:
        sent, received = await network_bytes(site, service.address, Deltas(site.plan, window).packed(0, 0, 1)[0])
    assert sent == pytest.approx(stated(r"TLS included \| ([\d.]+) kB sent"), rel=WITHIN)
    assert received == pytest.approx(stated(r"sent, ([\d.]+) kB received"), rel=WITHIN)


def measured(name: str) -> list[dict[str, float]]:
    """Rows of a run that is committed."""
    rows: list[dict[str, float]] = json.loads((ROOT / "benchmarks" / "results" / f"fleet_{name}.json").read_text())[
        "rows"
    ]
    return rows


def test_what_the_page_states_was_measured() -> None:
    costs = {str(row["what"]): row["figure"] for row in measured("costs")}
    visit, idle = measured("visits")[0], measured("idle")[-1]
    expected = {
        r"a visit: gateway \| ([\d.]+) ms": 1e3 / visit["ours, visits/s and core"],
        r"TLS included \| ([\d.]+) kB sent": visit["sent, bytes"] / 1e3,
        r"kB sent, ([\d.]+) kB received": visit["received, bytes"] / 1e3,
        r"a connected device \| ([\d.]+) kB": idle["kB a session"],
        r"`idle`: ([\d.]+) kB": 1e3 * idle["bare grown, MB"] / idle["sessions"],
        r"a delta in the log \| ([\d.]+) kB": costs["log, R = 100, 1 appended at once"] / 1e3,
        r"a delta: worker \| ([\d.]+) µs": costs["worker with checkpoints"],
        r"without checkpoints ([\d.]+) \|": costs["worker"],
        r"changed streams in PostgreSQL \| ([\d,]+) rows": costs["PostgreSQL, changed streams"],
        r"new streams ([\d,]+) \|": costs["PostgreSQL, new streams"],
    }
    for pattern, figure in expected.items():
        found = re.search(pattern, PAGE)
        assert found is not None, pattern
        assert float(found[1].replace(",", "")) == pytest.approx(figure, rel=0.02), pattern


def test_the_page_computes_with_the_figures_that_it_states() -> None:
    visit, work = re.search(r"gateway \| ([\d.]+) ms", PAGE), re.search(r"worker \| ([\d.]+) µs", PAGE)
    assert visit is not None
    assert work is not None
    assert f"VISIT_S, WORK_S = {visit[1]}e-3, {work[1]}e-6" in PAGE
    both = (stated(r"([\d.]+) kB sent") + stated(r"sent, ([\d.]+) kB received")) / 1000
    row = stated(r"database \| ([\d.]+) kB") / 1000
    assert f"ROW_KB = {both:g}, {stated(r'log . ([0-9.]+) kB') / 1000:g} * 3, 2.0, {row:g}" in PAGE
