"""The bytes that docs/explanation/scale.md states are those of a real broker and of real databases."""

import re
from pathlib import Path
from typing import Final

import pytest

from benchmarks.fleet.costs import log_bytes, postgres_row_bytes, sqlite_row_bytes
from hushsum_simulator.testbed.kafka import KafkaBroker
from hushsum_simulator.testbed.postgres import Postgres

PAGE: Final = (Path(__file__).parents[2] / "docs" / "explanation" / "scale.md").read_text("utf-8")
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


def test_the_page_computes_with_the_figures_that_it_states() -> None:
    assert f"LOG_KB, STREAM_KB, ROW_KB = 5.4, {stated(r'log . ([0-9.]+) kB') / 1000:g} * 3, 2.0, 0.22" in PAGE
    assert stated(r"database \| ([\d.]+) kB") == 220
    micros = re.search(r"a delta: worker \| (\d+) µs", PAGE)
    assert micros is not None
    assert f"VISIT_S, WORK_S = 3.2e-3, {micros[1]}e-6" in PAGE
