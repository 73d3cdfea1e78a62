"""A client's rate is its own: what others send, and how many they are, changes nothing for it."""

import hashlib
import random
from pathlib import Path

import pytest

from aggregator.rate_limits import FORGET_S, RateLimits, forget_paid
from tests.aggregator.debts import Debts
from tests.aggregator.local_clients import batch_of, report_plan
from tests.doubles import ManualRuntime
from tests.pages import QuickRuntime
from tests.services import RawClient, config_of, service_of

RATE, BURST = 100.0, 1000


def waited(limits: RateLimits, client: str, reports: int, now_s: float) -> int:
    wait_ms = limits.wait_ms(client, reports, now_s)
    assert wait_ms is not None
    return wait_ms


def test_a_burst_is_taken_at_once_and_what_comes_after_it_waits_for_the_rate() -> None:
    limits = RateLimits(RATE, BURST)
    assert [waited(limits, "alice", 500, 0.0) for _ in range(3)] == [0, 0, 0]
    wait_ms = waited(limits, "alice", 1, 0.0)
    assert wait_ms == 5001  # 500 reports beyond the burst
    assert waited(limits, "alice", 1, wait_ms / 1000 - 0.01) > 0
    assert waited(limits, "alice", 1, wait_ms / 1000) == 0


@pytest.mark.parametrize("start_s", [0.0, 3e5, 1e9])
def test_after_the_time_that_was_said_it_is_taken_whatever_the_rounding(seed: int, start_s: float) -> None:
    rng = random.Random(seed)
    for _ in range(300):
        limits = RateLimits(rng.uniform(0.001, 1e5), rng.randrange(1, 10**6))
        now_s = start_s
        for _ in range(20):
            wait_ms = waited(limits, "alice", rng.randrange(1, 10**6), now_s)
            if wait_ms:
                now_s += wait_ms / 1000
                assert waited(limits, "alice", 1, now_s) == 0


def test_a_batch_larger_than_the_burst_is_taken_whole_and_paid_off_afterwards() -> None:
    limits = RateLimits(RATE, 1)
    assert waited(limits, "alice", 65_536, 0.0) == 0
    assert waited(limits, "alice", 1, 600.0) > 0
    assert waited(limits, "alice", 1, 655.4) == 0


def test_in_any_time_no_more_than_the_burst_the_rate_and_one_batch_get_through(seed: int) -> None:
    rng = random.Random(seed)
    limits, now_s, taken = RateLimits(RATE, BURST), 0.0, 0
    for _ in range(5000):
        now_s += rng.expovariate(20)
        reports = rng.randrange(1, 200)
        if waited(limits, "alice", reports, now_s) == 0:
            taken += reports
        assert taken <= BURST + RATE * now_s + 200
    assert taken > 0.9 * RATE * now_s


def test_what_is_refused_costs_nothing() -> None:
    limits = RateLimits(RATE, BURST)
    waited(limits, "alice", 2 * BURST, 0.0)
    first = waited(limits, "alice", 10**6, 0.0)
    assert [waited(limits, "alice", 10**6, 0.0) for _ in range(100)] == [first] * 100


def test_what_is_given_back_leaves_no_trace(seed: int) -> None:
    rng = random.Random(seed)
    honest, troubled, now_s = RateLimits(RATE, BURST), RateLimits(RATE, BURST), 0.0
    for _ in range(2000):
        now_s += rng.expovariate(5)
        lost = rng.randrange(1, 2000)
        if waited(troubled, "alice", lost, now_s) == 0:
            troubled.give_back("alice", lost)
        reports = rng.randrange(1, 60)
        wait_ms = waited(honest, "alice", reports, now_s)
        assert waited(troubled, "alice", reports, now_s) == pytest.approx(wait_ms, abs=1)
        assert len(troubled) <= 1


def test_what_is_given_back_late_is_no_credit_for_time_that_went_by() -> None:
    limits = RateLimits(RATE, BURST)
    assert waited(limits, "alice", BURST, 0.0) == 0
    limits.give_back("alice", BURST)
    limits.give_back("bob", BURST)  # nobody knows him
    assert waited(limits, "alice", 2 * BURST, 100.0) == 0
    assert waited(limits, "alice", 1, 100.0) == 10_001
    assert waited(limits, "bob", 2 * BURST, 100.0) == 0
    assert waited(limits, "bob", 1, 100.0) == 10_001


def test_a_debt_that_is_given_back_makes_room_when_it_would_have_been_paid_at_the_latest() -> None:
    limits = RateLimits(RATE, BURST, clients_max=1)
    for now_s in (0.0, 0.001):
        assert waited(limits, "alice", BURST, now_s) == 0
    limits.give_back("alice", 2 * BURST)
    assert waited(limits, "bob", 1, 2 * BURST / RATE) == 0


def test_nobody_is_answered_differently_for_what_others_send(seed: int) -> None:
    rng = random.Random(seed)
    alone, crowded, now_s = RateLimits(RATE, BURST), RateLimits(RATE, BURST), 0.0
    for _ in range(2000):
        now_s += rng.expovariate(50)
        if rng.random() < 0.7:
            waited(crowded, f"other-{rng.randrange(300)}", rng.randrange(1, 3000), now_s)
        else:
            reports = rng.randrange(1, 60)
            assert waited(crowded, "alice", reports, now_s) == waited(alone, "alice", reports, now_s)


def test_debts_are_never_flushed_out_and_those_that_are_paid_make_room() -> None:
    limits = RateLimits(RATE, 1, clients_max=100)
    assert waited(limits, "liar", 100_000, 0.0) == 0
    for n in range(10_000):
        limits.wait_ms(f"helper-{n}", 100, n / 1000)
        assert len(limits) <= 100
    assert waited(limits, "liar", 1, 10.0) > 0, "its debt was forgotten"
    assert limits.wait_ms("newcomer", 1, 10.0) in {0, None}
    assert waited(limits, "newcomer", 1, 20.0) == 0, "all debts but one are paid by now"


def test_a_full_table_refuses_those_that_come_new_and_none_that_it_knows() -> None:
    limits = RateLimits(RATE, BURST, clients_max=3)
    for client in "abc":
        assert waited(limits, client, 10, 0.0) == 0
    assert limits.wait_ms("d", 1, 0.0) is None
    assert waited(limits, "a", 10, 0.0) == 0
    assert waited(limits, "d", 1, 1.0) == 0, "two have paid by then"


async def test_nothing_of_a_client_that_owes_nothing_is_kept_beyond_some_seconds() -> None:
    runtime = ManualRuntime()
    first, second = RateLimits(RATE, BURST), RateLimits(RATE, BURST)
    task = runtime.spawn(forget_paid((first, second), runtime), "debts")
    for n in range(100):
        for limits in (first, second):
            waited(limits, f"client-{n}", 100, runtime.monotonic())  # paid in a second
    waited(first, "liar", 10 * int(RATE), runtime.monotonic())
    assert len(first) == 101
    await runtime.advance(FORGET_S)
    assert (len(first), len(second)) == (1, 0), "a debt is kept as long as it is owed, and no longer"
    assert first.wait_ms("liar", BURST, runtime.monotonic()) == 0
    assert waited(first, "liar", 1, runtime.monotonic()) > 0
    await runtime.advance(FORGET_S)
    await runtime.advance(FORGET_S)
    await runtime.advance(FORGET_S)
    assert len(first) == 0
    task.cancel()


def test_what_was_given_back_is_forgotten_with_the_next_look_and_not_when_it_would_have_been_paid() -> None:
    limits = RateLimits(RATE, BURST)
    assert waited(limits, "alice", 1000 * BURST, 0.0) == 0
    limits.forget_paid(1.0)
    limits.give_back("alice", 1000 * BURST)
    limits.forget_paid(2.0)
    assert len(limits) == 0


def test_names_are_kept_as_hashes_that_nobody_else_can_guess() -> None:
    """A hash without a key, or with one that is the same elsewhere, tells who is in a dump to whoever has a list."""
    kept = []
    for key in (None, None, bytes(32), bytes(32), b"another key of 32 bytes or less"):
        limits = RateLimits(RATE, BURST, key=key)
        assert waited(limits, "alice", 1, 0.0) == 0
        kept.append(next(iter(limits._free_s)))
    assert len(set(kept)) == 4
    assert kept[2] == kept[3], "a key that is given decides alone"
    assert hashlib.blake2b(b"alice", digest_size=16).digest() not in kept


async def test_a_service_forgets_who_owes_it_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    debts, plan = Debts(monkeypatch), report_plan()
    async with service_of(config_of(tmp_path, plan), QuickRuntime()) as service, RawClient(service.grpc) as client:
        await client.hello(plan.id)
        await client.submit_one(plan.id, batch_of(plan, 1, 5))
        await debts.forgotten()
