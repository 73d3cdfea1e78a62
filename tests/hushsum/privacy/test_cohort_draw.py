"""How many corrupt clients a cohort may hold that is drawn from a pool: against exact fractions, and what follows."""

from dataclasses import replace
from fractions import Fraction
from math import comb
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushsum import GuaranteeError, Plan, PlanError
from hushsum.privacy.calibration import calibrate
from hushsum.privacy.claim import Claim
from hushsum.privacy.cohort import ATTEMPTS_MAX, FAILURE, POOL_MAX, Cohort
from hushsum.privacy.cohort_draw import BAD_DRAW, corrupt_drawn
from hushsum.privacy.guarantee import Guarantee
from hushsum.privacy.spending import spend_of
from hushsum.privacy.verifier import verify
from hushsum.schema import Table
from hushsum.sensitivity import Sensitivity
from tests.plans import secure_plan

KEY = "privacy.secure"
POOL = {"corrupt": ..., "corrupt_clients": 10, "pool": 1000, "cohort": 100}
BOTH = Fraction(8, 2**40) + Fraction(8, 2**43)


def read(**keys: object) -> Cohort:
    return Cohort.from_table(Table(keys, KEY))


def of_pool(privacy: dict[str, object] | None = None, **cohort: object) -> Plan:
    keys = {key: value for key, value in {**POOL, **cohort}.items() if value is not ...}
    secure = {"cohort": 100, "dropout": "0.1", **keys}
    return secure_plan(privacy={"secure": secure, **(privacy or {})})


def tail(pool: int, corrupt: int, cohort: int, more_than: int) -> Fraction:
    """P[more than so many of N − 1 are marked, of P − 1 of which min(c, P − 1) are], by its definition."""
    others, marked, drawn = pool - 1, min(corrupt, pool - 1), cohort - 1
    ways = sum(comb(marked, i) * comb(others - marked, drawn - i) for i in range(more_than + 1, min(marked, drawn) + 1))
    return Fraction(ways, comb(others, drawn))


@pytest.mark.parametrize(
    ("pool", "cohort", "shares", "corrupt"),
    [
        (1_000, 100, (1, 5, 10), [10, 24, 35]),
        (10_000, 1_000, (1, 5, 10), [37, 103, 171]),
        (1_000_000, 1_000, (1, 5, 10), [40, 108, 176]),
    ],
)
def test_a_share_of_the_pool_allows_far_more_of_a_cohort(
    pool: int, cohort: int, shares: tuple[int, ...], corrupt: list[int]
) -> None:
    assert [corrupt_drawn(pool, pool * share // 100, cohort) for share in shares] == corrupt


def test_a_tenth_of_a_hundred_covers_about_a_third_of_a_percent_of_a_large_pool() -> None:
    assert corrupt_drawn(100_000, 361, 100) == 10
    assert corrupt_drawn(100_000, 362, 100) == 11
    assert corrupt_drawn(1_000, 10, 100) == 10  # of a small one all ten that there are


@given(st.data())
def test_the_number_is_the_least_by_exact_fractions(data: st.DataObject) -> None:
    pool = data.draw(st.integers(2, 400))
    cohort, corrupt = data.draw(st.integers(1, pool - 1)), data.draw(st.integers(0, pool + 2))
    most = corrupt_drawn(pool, corrupt, cohort)
    assert tail(pool, corrupt, cohort, most) <= BAD_DRAW
    assert most == 0 or tail(pool, corrupt, cohort, most - 1) > BAD_DRAW


@pytest.mark.parametrize("pool", range(2, 16))
def test_every_small_pool_has_the_least_number(pool: int) -> None:
    for cohort in range(1, pool):
        for corrupt in range(pool + 2):
            least = next(k for k in range(cohort) if tail(pool, corrupt, cohort, k) <= BAD_DRAW)
            assert corrupt_drawn(pool, corrupt, cohort) == least


@given(st.integers(2, 3000), st.integers(0, 3000), st.data())
def test_a_larger_pool_or_fewer_corrupt_allow_no_more(pool: int, corrupt: int, data: st.DataObject) -> None:
    cohort = data.draw(st.integers(1, pool - 1))
    most = corrupt_drawn(pool, corrupt, cohort)
    assert corrupt_drawn(pool + 1, corrupt, cohort) <= most <= corrupt_drawn(pool, corrupt + 1, cohort)


def test_the_largest_pool_and_cohort_take_few_steps() -> None:
    """Exact sums of its 10,000 terms would be integers of 80,000 bits."""
    assert [corrupt_drawn(POOL_MAX, c, 10_000) for c in (1_000, 10_000, 100_000)] == [40, 181, 1225]


@pytest.mark.parametrize("numbers", [(10, 0, 10), (10, -1, 5), (10, 0, 0)])
def test_numbers_that_are_no_draw_are_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match="expected 1 <= N < P, c >= 0"):
        corrupt_drawn(*numbers)


@pytest.mark.parametrize(("corrupt", "most"), [(0, 0), (10, 10), (50, 24), (100, 35)])
def test_a_plan_computes_its_corrupt_share_from_the_pool(corrupt: int, most: int) -> None:
    cohort = read(corrupt_clients=corrupt, pool=1000)
    assert cohort.corrupt == Fraction(most, 100)
    assert (cohort.corrupt_clients, cohort.honest_survivors) == (most, 90 - most)


@given(st.integers(4, 60), st.integers(0, 20), st.integers(1, 300))
def test_a_computed_share_is_read_back_as_the_same_number(size: int, corrupt: int, more: int) -> None:
    try:
        cohort = read(cohort=size, corrupt_clients=corrupt, pool=size + more)
    except PlanError:
        return
    assert cohort.corrupt_clients == cohort.corrupt_needed == corrupt_drawn(size + more, corrupt, size)
    assert Cohort.from_table(Table(cohort.to_fields(), KEY)) == cohort


def test_a_written_share_may_be_more_than_the_pool_needs_and_not_less() -> None:
    assert read(corrupt="0.3", corrupt_clients=50, pool=1000).corrupt_clients == 30
    assert read(corrupt="0.231", corrupt_clients=50, pool=1000).corrupt_clients == 24  # rounded up
    with pytest.raises(PlanError, match=r"secure\.corrupt: got '0.23', expected at least 0.24: 50 corrupt .* pool of"):
        read(corrupt="0.23", corrupt_clients=50, pool=1000)


def test_a_device_refuses_a_plan_of_one_corrupt_client_less_than_its_pool_needs() -> None:
    made = of_pool(corrupt_clients=50)
    assert Plan.from_bytes(made.bundle) == made
    fields: Any = made.to_fields()
    del fields["format"], fields["privacy"]["mechanism"]
    fields["privacy"]["secure"]["corrupt"] = "0.23"
    with pytest.raises(PlanError, match="allow 24 corrupt in a cohort of 100, this is 23"):
        Plan.from_fields(fields)
    planted = made.bundle.replace(b'"corrupt_clients":50', b'"corrupt_clients":51')
    with pytest.raises(PlanError, match="51 corrupt clients"):
        Plan.from_bytes(planted)


def test_a_plan_without_a_pool_has_none_of_its_keys() -> None:
    text = secure_plan().to_bytes()
    assert b"pool" not in text
    assert b"corrupt_clients" not in text
    assert b'"corrupt_clients":10,' in of_pool().to_bytes()
    assert b'"pool":1000,' in of_pool().to_bytes()


@pytest.mark.parametrize(
    ("keys", "key", "told"),
    [
        ({"pool": 1000}, "corrupt_clients", "required with pool"),
        ({"corrupt_clients": 10}, "pool", "the number of clients that must wait"),
        ({"corrupt_clients": 10, "pool": 100}, "pool", r"above cohort \(100\), to 1000000"),
        ({"corrupt_clients": 10, "pool": POOL_MAX + 1}, "pool", "to 1000000"),
        ({"corrupt_clients": 10, "pool": 3}, "pool", "an integer from 4"),
        ({"corrupt_clients": -1, "pool": 1000}, "corrupt_clients", "an integer from 0"),
        ({"corrupt_clients": "1", "pool": 1000}, "corrupt_clients", "an integer from 0"),
        ({"corrupt_clients": 400, "pool": 1000}, "corrupt_clients", "allow 74 corrupt in a cohort of 100"),
        ({"corrupt_clients": 10**15, "pool": 1000}, "corrupt_clients", "fewer than half of it"),
        ({"corrupt_clients": 150, "pool": 1000, "dropout": "0.4"}, "corrupt_clients", "or a larger pool or cohort"),
        ({"corrupt_clients": 2000, "pool": 10_000, "cohort": 1000, "dropout": "0.3"}, "corrupt_clients", "safe graph"),
    ],
)
def test_an_impossible_pool_is_told_in_its_own_words(keys: dict[str, object], key: str, told: str) -> None:
    with pytest.raises(PlanError, match=told) as caught:
        read(**keys)
    assert caught.value.key == f"{KEY}.{key}"


def test_a_share_above_what_the_pool_needs_is_blamed_itself() -> None:
    with pytest.raises(PlanError) as caught:
        read(corrupt="0.45", dropout="0.4", corrupt_clients=10, pool=1000)
    assert caught.value.key == f"{KEY}.dropout"


@pytest.mark.parametrize("delta", ["0", "0.000001"])
def test_bad_draws_are_charged_beside_failures_of_the_protocol(delta: str) -> None:
    without, drawn = secure_plan(privacy={"delta": delta}), of_pool({"delta": delta})
    assert without.privacy.claim.failure == FAILURE == Fraction(1, 2**37)
    assert drawn.privacy.claim.failure == BOTH == Fraction(1, 2**37) + Fraction(1, 2**40)
    assert FAILURE + ATTEMPTS_MAX * BAD_DRAW == BOTH
    assert drawn.guarantee.delta == max(Fraction(delta), BOTH)
    assert spend_of(drawn, kind="tumbling", window=0).loss.failure == BOTH
    assert Guarantee.from_fields(drawn.guarantee.to_fields()) == drawn.guarantee


@pytest.mark.parametrize(("delta", "total"), [("0", FAILURE), ("0.00000000002", 8 * FAILURE)])
def test_a_limit_that_pays_for_the_protocol_alone_is_enough_without_a_pool_only(delta: str, total: Fraction) -> None:
    limits: dict[str, object] = {"delta": delta, "total_delta": total}
    secure_plan(privacy=limits)
    with pytest.raises(PlanError, match=r"privacy\.total_delta.*at least 9 x 2\^-\d\d .* of up to 8.18546e-12"):
        of_pool(limits)


def test_a_delta_of_the_failures_alone_leaves_no_noise_anything() -> None:
    with pytest.raises(PlanError, match=r"privacy\.delta.*or above 0\.0000000000081854523"):
        of_pool({"delta": BOTH})
    with pytest.raises(PlanError, match=r"guarantee\.delta"):
        replace(of_pool().guarantee, delta=FAILURE)


def test_noise_that_uses_the_draws_part_of_delta_is_refused() -> None:
    rows = Sensitivity(l0=20, l1=20, l2_squared=20, linf=1)
    claim = Claim(Fraction(1), 2 * BOTH, "record", honest_survivors=80, counters=1281, drawn=True)
    verify(calibrate(rows, claim, noise="gaussian"), rows, claim)
    with pytest.raises(GuaranteeError, match="less the part for failures of the protocol"):
        verify(calibrate(rows, replace(claim, drawn=False), noise="gaussian"), rows, claim)


def test_draws_without_a_cohort_are_refused() -> None:
    with pytest.raises(PlanError, match="at least 1 honest survivor"):
        Claim(Fraction(1), Fraction(0), "record", drawn=True)
