"""The cohort of a secure sum: its keys one by one, and the numbers that follow from them."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushsum import PlanError
from hushsum.privacy.cohort import ATTEMPTS_MAX, FAILURE, Cohort
from hushsum.privacy.graph_degree import degrees
from hushsum.schema import Table

TENTH = Fraction(1, 10)


def read(**keys: object) -> Cohort:
    return Cohort.from_table(Table(keys, "privacy.secure"))


def test_the_defaults_are_those_of_the_reference_plan() -> None:
    cohort = read()
    assert cohort == Cohort(1, 100, TENTH, TENTH, "malicious", "", 30_000)
    assert cohort.to_fields() == {
        "suite": 1,
        "cohort": 100,
        "corrupt": "0.1",
        "dropout": "0.1",
        "adversary": "malicious",
        "directory": "",
        "cohort_wait": "30s",
    }


def test_eighty_of_a_hundred_are_sure_to_be_honest_and_to_stay() -> None:
    cohort = Cohort()
    assert (cohort.corrupt_clients, cohort.survivors_min, cohort.honest_survivors) == (10, 90, 80)
    assert (cohort.quorum(100), cohort.quorum(90)) == (56, 51)


def test_the_corrupt_are_rounded_up_and_those_that_vanish_down() -> None:
    cohort = Cohort(size=99, corrupt=Fraction(1, 9 * 11 * 2), dropout=Fraction(1, 10))
    assert cohort.corrupt_clients == 1  # half a client is one
    assert cohort.survivors_min == 99 - 9  # 9.9 are nine


@given(size=st.integers(3, 200), corrupt=st.integers(0, 30), dropout=st.integers(0, 30))
def test_two_quorums_share_an_honest_client(size: int, corrupt: int, dropout: int) -> None:
    try:
        cohort = Cohort(size=size, corrupt=Fraction(corrupt, 100), dropout=Fraction(dropout, 100))
    except PlanError:
        return
    for members in range(cohort.survivors_min, size + 1):
        assert 2 * cohort.quorum(members) - members > cohort.corrupt_clients
    assert cohort.quorum(size) <= cohort.survivors_min
    assert 1 <= cohort.honest_survivors <= cohort.survivors_min - cohort.corrupt_clients
    assert cohort.threshold <= min(cohort.degree, cohort.survivors_min - 1)


def test_the_graph_is_that_of_the_adversary_that_the_plan_names() -> None:
    malicious, curious = Cohort(), Cohort(adversary="honest-but-curious")
    assert (curious.degree, curious.threshold, curious.window_survivors) == (22, 11, 0)
    known = degrees(100, 90, 10, malicious=True)
    assert (malicious.degree, malicious.threshold) == (known.degree, known.threshold)
    assert malicious.degree >= 32
    assert malicious.window_survivors == known.window_survivors > 0


def test_the_failure_of_all_attempts_is_two_to_the_minus_37() -> None:
    assert FAILURE == ATTEMPTS_MAX * Fraction(1, 2**40) == Fraction(1, 2**37)


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("suite", 2, "an integer from 1 to 1"), ("suite", "1", "an integer"), ("cohort", 2, "from 3 to 10000"),
        ("cohort", 10_001, "from 3 to 10000"), ("cohort", 99.5, "an integer"), ("corrupt", "0.5", "below 0.5"),
        ("corrupt", "-0.1", "from 0"), ("corrupt", "many", "not a decimal number"), ("dropout", "0.5", "below 0.5"),
        ("dropout", -1, "from 0"), ("adversary", "lazy", "one of 'malicious', 'honest-but-curious'"),
        ("directory", "ab", "64 lower-case"), ("directory", "AB" * 32, "64 lower-case"), ("directory", 7, "a string"),
        ("directory", "xy" * 32, "64 lower-case"), ("cohort_wait", "0s", "a duration"), ("cohort_wait", 30, "a string"),
        ("cohorts", 5, "did you mean 'cohort'?"),
    ],
)  # fmt: skip
def test_a_wrong_key_is_refused_by_its_name(key: str, value: object, expected: str) -> None:
    with pytest.raises(PlanError) as caught:
        read(**{key: value})
    assert caught.value.key == f"privacy.secure.{key}"
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("keys", "key", "change"),
    [
        ({"cohort": 9, "corrupt": "0.49", "dropout": "0.49"}, "corrupt", "less, or less dropout"),
        ({"cohort": 100, "corrupt": "0.4", "dropout": "0.4"}, "dropout", "less, or less corrupt"),
        ({"cohort": 1000, "corrupt": "0.3", "dropout": "0.3"}, "cohort", "a safe graph"),
    ],
    ids=["nobody-honest-stays", "no-quorum", "no-graph"],
)
def test_an_impossible_combination_says_what_to_change(keys: dict[str, object], key: str, change: str) -> None:
    with pytest.raises(PlanError) as caught:
        read(**keys)
    assert caught.value.key == f"privacy.secure.{key}"
    assert change in str(caught.value)


def test_what_is_written_is_read_back() -> None:
    cohort = read(cohort=30, corrupt="1/7", dropout="0.2", adversary="honest-but-curious", directory="0f" * 32)
    assert Cohort.from_table(Table(cohort.to_fields(), "privacy.secure")) == cohort
