"""What the metrics say of windows and of the ledger: as the store has it, rounded against us."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from aggregator.observability.metrics import (
    ANSWER_S_MAX,
    LEDGER_S,
    WINDOWS_S,
    LedgerFigures,
    StoreMetrics,
    StoreMetricsCollector,
)
from hushsum.plan import Plan
from hushsum.privacy.accountant import Account, Limits
from tests.doubles import ManualRuntime, MemoryStore
from tests.hooks import Held, Hook, Hooks, unreachable
from tests.hushsum.privacy.spends import spend
from tests.plans import small_plan

PLAN = small_plan(privacy={"population": "ward 7", "total_epsilon": "1"})
HOUR_S = PLAN.window.end_ms(0) // 1000 - PLAN.window.start_ms(0) // 1000


class Shown:
    """A survey of a store in memory."""

    def __init__(self, plan: Plan, *, manual: bool = False) -> None:
        self.plan, self.registry = plan, CollectorRegistry()
        self.metrics = StoreMetrics(self.registry)
        self.runtime = ManualRuntime(plan.window.start_ms(1000))
        self.store = MemoryStore(self.runtime)
        self.hooks, self.failed = Hooks(), list[tuple[str, str]]()
        self.collector = StoreMetricsCollector(
            plan, self.hooks.around(self.store), self.runtime, self.metrics, self.retried, manual=manual
        )

    def retried(self, what: str, why: str) -> None:
        self.failed.append((what, why))

    def value(self, name: str, **labels: str) -> float:
        value = self.registry.get_sample_value(name, labels)
        assert value is not None, name
        return value

    def windows(self) -> dict[str, float]:
        return {state: self.value("hushsum_windows", state=state) for state in ("open", "closing", "sealed")}


async def test_windows_are_shown_by_state_and_the_oldest_by_its_age() -> None:
    shown = Shown(PLAN)
    await shown.store.register(PLAN, 1, 1000)
    await shown.collector.look()
    assert shown.windows() == {"open": 0, "closing": 0, "sealed": 0}
    assert shown.value("hushsum_window_oldest_unfinished_seconds") == 0
    assert math.isnan(shown.value("hushsum_outcome_due_timestamp_seconds")), "no window is open"

    await shown.store.open_windows(PLAN.id, 1000, 1002)
    await shown.runtime.advance(WINDOWS_S)
    await shown.collector.look()
    assert shown.windows() == {"open": 3, "closing": 0, "sealed": 0}
    assert shown.value("hushsum_window_oldest_unfinished_seconds") == 0, "none has ended"
    due_s = (PLAN.window.end_ms(1000) + PLAN.window.lateness_ms) / 1000
    assert shown.value("hushsum_outcome_due_timestamp_seconds") == due_s

    fence = await shown.store.acquire_lease(PLAN.id, "test", "", 10) or 0
    await shown.store.mark_closing(PLAN.id, 1000, fence=fence)
    await shown.runtime.advance(HOUR_S + 60 - WINDOWS_S)
    await shown.collector.look()
    assert shown.windows() == {"open": 2, "closing": 1, "sealed": 0}
    assert shown.value("hushsum_window_oldest_unfinished_seconds") == 60
    assert shown.value("hushsum_outcome_due_timestamp_seconds") == due_s, "it had no outcome yet"


async def test_where_an_operator_takes_the_outcomes_none_is_due() -> None:
    shown = Shown(PLAN, manual=True)
    await shown.store.register(PLAN, 1, 1000)
    await shown.store.open_windows(PLAN.id, 1000, 1002)
    await shown.collector.look()
    assert shown.windows()["open"] == 3
    assert math.isnan(shown.value("hushsum_outcome_due_timestamp_seconds"))


@asynccontextmanager
async def surveyed() -> AsyncIterator[Shown]:
    """A survey that goes on."""
    shown = Shown(PLAN)
    await shown.store.register(PLAN, 1, 1000)
    task = asyncio.create_task(shown.collector.run())
    await shown.runtime.settle()
    try:
        yield shown
    finally:
        task.cancel()
        await asyncio.wait([task])


async def damaged(_: object) -> object:
    """A spend that nobody can read."""
    return PLAN.limits, [(b"no spend", 1)]


async def test_the_store_is_asked_now_and_then() -> None:
    async with surveyed() as shown:
        for _ in range(120):
            await shown.runtime.advance(1.0)
        assert shown.hooks.calls["spends_alike"] == 1 + 120 // LEDGER_S
        assert shown.hooks.calls["unfinished"] == 1 + 120 // WINDOWS_S
        assert shown.hooks.calls["account"] == 0, "it goes through all spends"


@pytest.mark.parametrize("failure", [unreachable, damaged, Held()], ids=["fails", "is damaged", "hangs"])
async def test_what_fails_is_asked_again_when_it_is_time_and_holds_up_nothing_else(failure: Hook) -> None:
    async with surveyed() as shown:
        shown.hooks.put("spends_alike", failure)
        for _ in range(59):
            await shown.runtime.advance(2.0)
        assert shown.hooks.calls["spends_alike"] == 2, "the failure, and nothing since"
        assert [what for what, _ in shown.failed] == ["store metrics"]
        assert shown.hooks.calls["unfinished"] >= 18

        await shown.runtime.advance(ANSWER_S_MAX + 2.0)
        assert shown.hooks.calls["spends_alike"] == 3
        assert len(shown.failed) == 1


@settings(max_examples=50)
@given(st.fractions(min_value=Fraction(1, 10**6), max_value=1000, max_denominator=10**9), st.integers(1, 5))
def test_figures_are_never_better_than_what_is_so(epsilon: Fraction, spends: int) -> None:
    account = Account(Limits("", "client", "add/remove", 6 * epsilon, Fraction(0)))
    account = account.recorded(*[spend(epsilon, plan=number, unit="client") for number in range(spends)])
    figures = LedgerFigures.of(account)
    assert Fraction(figures.epsilon_total) <= 6 * epsilon
    assert Fraction(figures.epsilon_spent) >= spends * epsilon
    assert Fraction(figures.epsilon_left) <= (6 - spends) * epsilon
    assert (figures.delta_total, figures.delta_spent, figures.delta_left) == (0, 0, 0)
    assert math.isclose(figures.epsilon_left, float((6 - spends) * epsilon), rel_tol=1e-15)


def test_spends_of_a_sort_are_added_up_as_one_by_one() -> None:
    limits = Limits("", "client", "add/remove", Fraction(10), Fraction(0))
    third, seventh = (spend(Fraction(1, part), plan=part, window=0, unit="client") for part in (3, 7))
    sorts = [(third, 7), (seventh, 3), (replace(third, events=()), 4)]
    each = [replace(one, window=window) for one, times in sorts for window in range(times)]
    alike = [(one.to_bytes(), times) for one, times in sorts]
    assert LedgerFigures.of_spends(limits, alike) == LedgerFigures.of(Account(limits).recorded(*each))


def test_windows_of_clients_in_a_ledger_of_records_are_counted_as_their_largest() -> None:
    limits = Limits("", "record", "add/remove", Fraction(10), Fraction(0))
    third, one = (spend(epsilon, plan=1, window=0, unit="client") for epsilon in (Fraction(1, 3), Fraction(1)))
    figures = LedgerFigures.of_spends(limits, [(third.to_bytes(), 100), (one.to_bytes(), 50)])
    assert (figures.epsilon_spent, figures.epsilon_left) == (2.0, 8.0)


def test_a_ledger_that_is_passed_has_nothing_left() -> None:
    limits = Limits("", "record", "add/remove", Fraction(1), Fraction(0))
    figures = LedgerFigures.of_spends(limits, [(spend(1, window=0, unit="client").to_bytes(), 100)])
    assert (figures.epsilon_total, figures.epsilon_spent, figures.epsilon_left) == (1.0, 2.0, 0.0)


async def test_the_ledger_is_shown_with_its_population_and_a_total_that_reads_none_as_nan() -> None:
    shown = Shown(PLAN)
    await shown.store.register(PLAN, 1, 1000)
    await shown.collector.look()
    whose = {"population": "ward 7", "unit": "record"}
    assert shown.value("hushsum_ledger_epsilon_total", **whose) == 1
    assert shown.value("hushsum_ledger_epsilon_left", **whose) == 1
    assert shown.value("hushsum_ledger_epsilon_spent", **whose) == 0

    mixed = (await shown.store.account("ward 7")).recorded(spend(1, relation="replace"))
    shown.metrics.ledger(LedgerFigures.of(mixed))
    assert shown.value("hushsum_ledger_epsilon_total", **whose) == 1
    assert math.isnan(shown.value("hushsum_ledger_epsilon_left", **whose))
    assert math.isnan(shown.value("hushsum_ledger_delta_spent", **whose))
