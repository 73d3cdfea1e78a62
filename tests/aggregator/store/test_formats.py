"""Stores of older formats: read as they are, and gone on with."""

import sqlite3
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from aggregator.model import ReceiptsMark
from aggregator.store import windows as store_windows
from aggregator.store.schema import STORE_FILE, STORE_FORMAT
from aggregator.store.store import open_sqlite_store, read_sealed, read_verdicts
from hushsum.privacy.events import TUMBLING
from tests.aggregator.stores import FENCE, MARK, PARTITIONS, PLAN, Folding, W, lower_fence, reserved, seal, spend
from tests.doubles import ManualRuntime
from tests.vectors.generate_store import SIGNED

#: One window is released, one is charged with key 1111..., one is open and holds a delta: written by those versions.
SAMPLES = Path(__file__).parents[2] / "vectors" / "store"
VERSIONS = [1, 2, 3, 4, 5, 6]
TABLES = "SELECT type, name, sql FROM sqlite_master ORDER BY name"


def of_format(folder: Path, version: int) -> Path:
    """A store that this version has written; of format 1 the next one, without what it did not have."""
    written = max(version, 2)
    with zipfile.ZipFile(SAMPLES / f"format-{written}.zip") as archive:
        archive.extractall(folder)
        assert archive.read("plan") == PLAN.to_bytes()
    path = folder / "store.db"
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (written,)
    if version == 1:
        connection.execute("DROP TABLE reservations")
        connection.execute("PRAGMA user_version=1")
    connection.commit()
    connection.close()
    return path


@pytest.mark.parametrize("version", VERSIONS)
def test_an_older_store_is_read_as_it_is_and_has_the_tables_of_this_format_once_it_is_written(
    tmp_path: Path, version: int
) -> None:
    path = of_format(tmp_path, version)
    fresh = STORE_FILE.open_writing(tmp_path / "fresh.db")
    wanted = fresh.execute(TABLES).fetchall()
    fresh.close()
    for opens, expected in (
        (STORE_FILE.open_reading, version),
        (STORE_FILE.open_writing, STORE_FORMAT),
        (STORE_FILE.open_reading, STORE_FORMAT),
    ):
        connection = opens(path)
        assert connection.execute("PRAGMA user_version").fetchone() == (expected,)
        assert (connection.execute(TABLES).fetchall() == wanted) == (expected == STORE_FORMAT)
        connection.close()


@pytest.mark.parametrize("version", VERSIONS)
def test_an_older_store_can_be_looked_into(tmp_path: Path, version: int) -> None:
    path = of_format(tmp_path, version)
    sealed = read_sealed(path, PLAN, W + 1)
    assert sealed is not None
    assert sealed.records == 0
    assert [(partition, verdict.kind) for partition, verdict in read_verdicts(path, PLAN)] == [
        (1, "counted"),
        (1, "duplicate"),
    ]


def test_the_format_before_this_one_has_a_sample_and_so_has_this_one() -> None:
    assert max(VERSIONS) == STORE_FORMAT - 1
    samples = sorted(path.name for path in SAMPLES.glob("format-*.zip"))
    assert samples == [f"format-{version}.zip" for version in range(2, STORE_FORMAT + 1)]


def test_the_tables_of_this_format_are_those_of_its_sample(tmp_path: Path) -> None:
    """Who changes them makes a new format."""
    sample, fresh = (
        STORE_FILE.open_writing(path) for path in (of_format(tmp_path, STORE_FORMAT), tmp_path / "fresh.db")
    )
    assert sample.execute(TABLES).fetchall() == fresh.execute(TABLES).fetchall()
    sample.close()
    fresh.close()


@pytest.mark.parametrize("version", [2, 3, 4, 6, STORE_FORMAT])
async def test_a_service_goes_on_from_a_store_that_was_written_long_ago(tmp_path: Path, version: int) -> None:
    store = await open_sqlite_store(of_format(tmp_path, version), ManualRuntime())
    assert await store.signed_plan(PLAN.id) == (SIGNED if version >= 4 else None)
    copied = replace(MARK, copy="receipts copy.jsonl" if version >= 7 else "")
    assert await store.receipts_mark() == (copied if version >= 5 else ReceiptsMark(b"", 0, b""))
    assert await store.windows(PLAN.id) == {W: "released", W + 1: "sealed", W + 2: "open"}
    assert await store.acquire_lease(PLAN.id, "test", "", 10) is not None
    await store.database.write(lower_fence)
    assert await store.forget_asked(PLAN.id) is None
    outcome = await store.outcome(PLAN.id, TUMBLING, W)
    assert outcome is not None
    assert outcome.data == b"the draw"
    assert await reserved(store, W + 1, b"2" * 32) == b"1" * 32
    assert (await store.account("")).spends == (spend(W), spend(W + 1))
    await store.commit_outcome(PLAN, TUMBLING, W + 1, b"draw", fence=FENCE)
    await store.mark_closing(PLAN.id, W + 2, fence=FENCE)
    folds = [await Folding.of(store, partition) for partition in range(PARTITIONS)]
    for folding in folds:
        await folding.apply(folding.delta(5, W + 2, sequence=1), seal(W + 2))
    sealed = await store.sealed_window(PLAN, W + 2)
    assert sealed is not None
    assert sealed.sketch.counters[0, 0, 5] == PARTITIONS, "the one that was counted before is a duplicate"
    await store.close()


@pytest.mark.parametrize(
    ("query", "index"),
    [
        (store_windows._UNFINISHED.replace("$1", "1"), "unfinished"),
        ("SELECT 1 FROM outcomes WHERE plan = 1 AND published = 0", "unpublished"),
    ],
)
def test_what_every_pass_of_a_releaser_asks_reads_an_index_of_few_rows(query: str, index: str) -> None:
    connection = STORE_FILE.open_in_memory()
    (row,) = connection.execute(f"EXPLAIN QUERY PLAN {query}").fetchall()
    connection.close()
    assert f"INDEX {index}" in row[3]
