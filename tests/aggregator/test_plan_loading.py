"""The signature of a plan: read beside its file, kept beside its bytes, and shown with it."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from aggregator.errors import ConfigError, StoreError
from aggregator.plan_loading import plan_of, signature_of
from aggregator.release.catalog import ReleaseCatalog
from aggregator.store.store import Store, open_sqlite_store
from hushsum.errors import PlanError
from hushsum.signed_plan import SignedPlan, signature_file
from hushsum.signing import SigningKey
from tests.aggregator.reports import silo_plan
from tests.aggregator.stores import PLAN
from tests.doubles import ManualRuntime, MemoryStore

KEY, OTHER = SigningKey(b"k" * 32), SigningKey(b"o" * 32)
SIGNED = SignedPlan.sign(PLAN.bundle, KEY, "planner")


@pytest.fixture
async def store(empty_store: Store) -> Store:
    return empty_store


async def test_a_kept_signature_is_given_back_with_its_plan(store: Store) -> None:
    await store.register(PLAN, 1, 0)
    assert await store.signed_plan(PLAN.id) is None
    assert await ReleaseCatalog(PLAN, store).signed_plan() is None
    await store.keep_plan_signature(SIGNED)
    await store.keep_plan_signature(SIGNED)
    assert await store.signed_plan(PLAN.id) == SIGNED
    shown = await ReleaseCatalog(PLAN, store).signed_plan()
    assert shown is not None
    assert shown.verify([KEY.verify_key]) == KEY.verify_key
    again = SignedPlan.sign(PLAN.bundle, OTHER, "another-planner")
    await store.keep_plan_signature(again)
    assert await store.signed_plan(PLAN.id) == again


async def test_a_signature_of_a_plan_that_is_not_registered_is_not_kept(store: Store) -> None:
    await store.register(PLAN, 1, 0)
    with pytest.raises(StoreError, match="not registered"):
        await store.keep_plan_signature(SignedPlan.sign(silo_plan().bundle, KEY, "planner"))
    assert await store.signed_plan(PLAN.id) is None


async def test_a_signature_outlives_the_process(tmp_path: Path) -> None:
    first = await open_sqlite_store(tmp_path / "store.db", ManualRuntime())
    await first.register(PLAN, 1, 0)
    await first.keep_plan_signature(SIGNED)
    await first.close()
    again = await open_sqlite_store(tmp_path / "store.db", ManualRuntime())
    assert await again.signed_plan(PLAN.id) == SIGNED
    await again.close()


# --------------------------------------------------------------------------------------------------------- its file


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    path = tmp_path / "plan.json"
    path.write_bytes(PLAN.bundle)
    return path


async def test_a_plan_without_a_signature_beside_it_has_none(plan_file: Path) -> None:
    assert await plan_of(plan_file, MemoryStore()) == PLAN
    assert signature_of(plan_file, PLAN) is None


async def test_the_signature_beside_a_plan_is_read(plan_file: Path) -> None:
    signature_file(plan_file).write_bytes(SIGNED.to_bytes())
    assert await plan_of(plan_file, MemoryStore()) == PLAN
    assert signature_of(plan_file, PLAN) == SIGNED


@pytest.mark.parametrize("data", (SignedPlan.sign(silo_plan().bundle, KEY, "planner").to_bytes(), b"", b"junk"))
async def test_a_plan_beside_which_lies_another_plans_signature_or_none_at_all_is_refused(
    plan_file: Path, data: bytes
) -> None:
    signature_file(plan_file).write_bytes(data)
    with pytest.raises(PlanError, match=r"plan\.json\.sig"):
        await plan_of(plan_file, MemoryStore())


async def test_a_signature_that_cannot_be_read_is_named(plan_file: Path) -> None:
    signature_file(plan_file).mkdir()
    with pytest.raises(ConfigError, match=r"plan\.json\.sig cannot be read"):
        await plan_of(plan_file, MemoryStore())


async def test_a_store_with_a_plan_that_this_version_cannot_read_says_so(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = await open_sqlite_store(path, ManualRuntime())
    await store.register(PLAN, 1, 0)
    await store.close()
    public = PLAN.bundle.replace(b'"participation":"protected"', b'"participation":"public"')
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE plans SET bytes = ?", (public,))
    database.close()
    store = await open_sqlite_store(path, ManualRuntime())
    for question in (store.plans(), store.load_plan(PLAN.id), store.plan_named(PLAN.name)):
        with pytest.raises(StoreError, match=r"a plan that this version cannot read: .*'public' was removed"):
            await question
    await store.close()
