"""Rows and bandwidths are chosen only through the ledger, and no record decides what another one adds."""

import enum
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from scipy.stats import chi2

import hushsum as hs
from hushsum import kernels
from hushsum.choosing import choose_bandwidth, choose_rows, utilities
from hushsum.choosing.selection import Question, bandwidth_question, draw, rows_question
from hushsum.choosing.utilities import UNIT, contribution_sum, usable_records
from hushsum.entropy import OsEntropy, ReplayableEntropy
from hushsum.error_bounds import optimal_rows
from hushsum.privacy.events import Event
from hushsum.privacy.noisy_max import report_noisy_max, scale_for, win_probabilities
from tests.plans import classed_plan, client_plan, model_plan, secure_plan, set_plan, small_plan, tables

QUERIES = np.array([[5.0, 5.0], [1.0, 9.0], [3.0, 2.0]])
SETS = [np.array(ids) for ids in ([1, 2, 3], [2, 3, 50], [7], [1, 2, 3, 4, 99])]


@pytest.fixture
def ledger(tmp_path: Path) -> hs.Ledger:
    return hs.Ledger(tmp_path / "ledger.db")


@pytest.fixture
def records(rng: np.random.Generator) -> npt.NDArray[np.float64]:
    return rng.uniform(0, 10, (400, 2))


class Unread:
    """Entropy that nobody may read."""

    def read(self, size: int) -> bytes:
        raise AssertionError("something was drawn")


def wide_plan(dim: int, **sketch: object) -> hs.Plan:
    record: dict[str, object] = {"dim": dim, "lower": [0] * dim, "upper": [10] * dim}
    return small_plan(record=record, sketch={"bandwidth": 20, **sketch})


def other_plans() -> dict[str, hs.Plan]:
    fourier = {"buckets": ..., "family": "fourier", "kernel": "gaussian", "rows": 30, "fraction_bits": 10}
    return {
        "euclidean": wide_plan(20),
        "angular": wide_plan(20, kernel="angular", bandwidth=...),
        "laplacian": wide_plan(12, kernel="laplacian"),
        "manhattan": wide_plan(3, kernel="manhattan", power=2),
        "fourier": wide_plan(20, **fourier),
    }


# -------------------------------------------------------------------------------------------------------- sensitivity


@pytest.mark.parametrize("name", other_plans())
def test_what_a_record_adds_is_the_same_in_any_company(
    name: str, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every record's edge of rounding is put exactly where it alone is evaluated: the last bit then decides."""
    family, dim = other_plans()[name].family, other_plans()[name].vectors.dim
    points, queries = rng.uniform(0, 10, (120, dim)), rng.uniform(0, 10, (5, dim))
    alone = [float(utilities._means(family, points[i : i + 1], queries, root=True)[0]) for i in range(120)]
    edges = {point.tobytes(): 0.5 - mean * UNIT % 1 for point, mean in zip(points, alone, strict=True)}
    monkeypatch.setattr(utilities, "_dither", lambda record: edges[record.tobytes()])
    lone = [int(utilities.contributions(family, points[i : i + 1], queries, root=True)[0]) for i in range(120)]
    for company in (np.arange(120), np.arange(119, -1, -1), np.arange(7, 100)):
        added = utilities.contributions(family, points[company], queries, root=True)
        assert added.tolist() == [lone[i] for i in company]
    if name == "euclidean":  # the planted mistake: to take what the block says
        monkeypatch.setattr(utilities, "ERROR", -1.0)
        assert utilities.contributions(family, points, queries, root=True).tolist() != lone


@pytest.mark.parametrize("name", other_plans())
def test_blocks_err_far_less_than_the_margin(name: str, rng: np.random.Generator) -> None:
    family, dim = other_plans()[name].family, other_plans()[name].vectors.dim
    queries = rng.uniform(0, 10, (5, dim))
    near, mirrored = queries + 1e-9 * rng.normal(size=(5, dim)), np.clip(-queries, 0, 10)
    points = np.concatenate([rng.uniform(0, 10, (120, dim)), queries, near, mirrored])
    block = utilities._means(family, points, queries, root=True)
    lone = [utilities._means(family, points[i : i + 1], queries, root=True)[0] for i in range(len(points))]
    assert np.abs(block - lone).max() <= utilities.ERROR / 8


def moved(one: Question, other: Question) -> int:
    return max(abs(a - b) for a, b in zip(one.utilities, other.utilities, strict=True))


def test_no_record_moves_a_utility_by_more_than_the_sensitivity(records: npt.NDArray[np.float64]) -> None:
    records = np.concatenate([records[:25], QUERIES[:1]])
    asked: list[tuple[Callable[..., Question], list[object]]] = [
        (rows_question, [1, 5, 20]),
        (bandwidth_question, ["0.5", "2", "8"]),
    ]
    for ask, candidates in asked:
        whole = ask(records, QUERIES[:1], candidates, small_plan(), share="0.1")
        moves = [
            moved(whole, ask(np.delete(records, i, axis=0), QUERIES[:1], candidates, small_plan(), share="0.1"))
            for i in range(len(records))
        ]
        assert max(moves) == whole.sensitivity == UNIT  # the last record lies at the query
        assert min(moves) < UNIT


def test_no_client_moves_a_utility_by_more_than_its_bound(rng: np.random.Generator) -> None:
    plan, records = client_plan(records_per_client=3), rng.uniform(0, 10, (40, 2))
    records[::4] = QUERIES[0]
    clients = [f"c{i % 4}" for i in range(40)]  # ten records each; all of c0's lie at the query
    whole = rows_question(records, QUERIES[:1], [1, 20], plan, share="0.1", clients=clients)
    moves = []
    for client in set(clients):
        rest = [i for i in range(40) if clients[i] != client]
        some = [clients[i] for i in rest]
        moves.append(moved(whole, rows_question(records[rest], QUERIES[:1], [1, 20], plan, share="0.1", clients=some)))
    assert max(moves) == whole.sensitivity == 3 * UNIT


def test_a_client_above_the_bound_loses_its_own_excess_alone(rng: np.random.Generator) -> None:
    plan, records = client_plan(records_per_client=2), rng.uniform(0, 10, (6, 2))
    kept = usable_records(plan, records, ["a", "b", "a", "a", "b", "c"])
    assert np.array_equal(kept, records[[0, 1, 2, 4, 5]])
    ids: list[Any] = [7, 9, np.int64(7), np.int32(7), 8, 7]
    assert np.array_equal(usable_records(plan, records, ids), records[[0, 1, 2, 4]])


class Named(str, enum.Enum):  # noqa: UP042  str() of a StrEnum is its value
    """Ids whose str() is another text than the one that they are equal to."""

    SEVEN = "7"
    EIGHT = "8"


#: What a program may take for one client's id, by the client.
SPELLINGS: dict[str, list[Any]] = {
    text: [text, text.encode(), int(text), np.str_(text), np.bytes_(text), np.int64(text), np.uint8(text), Named(text)]
    for text in ("7", "8")
}


@given(st.lists(st.sampled_from([(text, id) for text, ids in SPELLINGS.items() for id in ids]), max_size=12))
def test_no_client_counts_more_than_its_bound_however_its_id_is_spelt(spelt: list[tuple[str, Any]]) -> None:
    plan, owners, ids = client_plan(records_per_client=2), [text for text, _ in spelt], [id for _, id in spelt]
    records = np.array([[float(number), float(text)] for number, text in enumerate(owners)]).reshape(-1, 2)
    with suppress(hs.RecordError):
        kept = usable_records(plan, records, ids)
        assert [row[1] for row in kept].count(7) == min(2, owners.count("7"))
        assert [row[1] for row in kept].count(8) == min(2, owners.count("8"))
    with suppress(hs.RecordError, hs.ContributionError):
        hs.Sketch(plan).add(records, clients=ids)
        assert max(Counter(owners).values(), default=0) <= 2


@pytest.mark.parametrize("odd", ["7", b"7", None, float("nan"), 7.0, True, ("a",)])
def test_ids_of_two_types_or_none_refuse_a_choice_as_they_refuse_an_addition(odd: object) -> None:
    """Also where the odd id's record is unusable: what a record holds decides about no other."""
    for last in ([3.0, 3.0], [np.nan, 3.0]):
        records, clients = [[1.0, 1.0], [2.0, 2.0], last], [7, 7, odd]
        with pytest.raises(hs.RecordError, match="clients"):
            hs.Sketch(client_plan()).add(records, clients=clients)  # type: ignore[arg-type]  # wrong on purpose
        with pytest.raises(hs.RecordError, match="clients"):
            usable_records(client_plan(), records, clients)


@pytest.mark.parametrize("odd", [None, [None, 2.0], ["x", "y"], [1j, 2], [], [10**400, 1], 3.0, [1.0, 2.0, 3.0]])
def test_an_odd_record_in_a_list_counts_for_nothing_with_or_without_others(odd: object) -> None:
    plan = small_plan()
    for good in ([], [[1.0, 2.0]], [[2**60 + 1, 3], [4, 5]]):
        for records in ([*good, odd], [odd, *good]):
            assert np.array_equal(usable_records(plan, records, None), np.array(good, np.float64).reshape(-1, 2))
        found = [rows_question(each, QUERIES, [1, 20], plan, share="0.1") for each in ([*good, odd], good)]
        assert found[0].utilities == found[1].utilities


def test_no_records_are_chosen_for_however_they_come() -> None:
    for empty in ([], (), np.empty((0, 2)), [[np.nan, 1.0]]):
        assert rows_question(empty, QUERIES, [1, 20], small_plan(), share="0.1").utilities
    for wrong in (np.empty((0, 3)), np.ones((2, 2), complex), "ab", None):
        with pytest.raises(hs.RecordError):
            rows_question(wrong, QUERIES, [1, 20], small_plan(), share="0.1")


def test_one_bad_record_changes_nothing_for_others(records: npt.NDArray[np.float64]) -> None:
    plan = small_plan()
    clean = rows_question(records, QUERIES, [1, 20], plan, share="0.1").utilities
    for bad in ([np.nan, 1.0], [np.inf, -np.inf]):
        spoilt = np.insert(records, 50, bad, axis=0)
        assert rows_question(spoilt, QUERIES, [1, 20], plan, share="0.1").utilities == clean
    ragged: list[Any] = records.tolist()
    ragged[50:50] = [[1.0], "no record", None]
    assert rows_question(ragged, QUERIES, [1, 20], plan, share="0.1").utilities == clean
    far = np.insert(records, 50, [1e300, -1e300], axis=0)  # clipped to the bounds
    near = np.insert(records, 50, [10.0, 0.0], axis=0)
    sums = [contribution_sum(plan.family, usable_records(plan, each, None), QUERIES, root=True) for each in (far, near)]
    assert abs(sums[0] - sums[1]) <= 1


def test_records_far_from_every_query_are_not_rounded_away(rng: np.random.Generator) -> None:
    plan = small_plan(sketch={"kernel": "laplacian", "bandwidth": "0.7"})
    records, query = rng.uniform(7, 10, (20_000, 2)), np.array([[0.0, 0.0]])
    exact = float(plan.family.kernel(records, query).sum())
    assert exact / len(records) < 1e-4  # less than a quarter of the least step
    found = contribution_sum(plan.family, usable_records(plan, records, None), query, root=False) / UNIT
    assert found == pytest.approx(exact, abs=6 * np.sqrt(exact / UNIT))


# ------------------------------------------------------------------------------------------------- what is looked for


def test_the_best_number_of_rows_has_the_greatest_utility(records: npt.NDArray[np.float64]) -> None:
    plan, candidates = small_plan(privacy={"epsilon": "0.2"}), [1, 3, 10, 14, 30, 100, 1000]
    question = rows_question(records, QUERIES, candidates, plan, share="0.1")
    assert [each.family.shape[0] for each in question.plans] == candidates
    roots = float(np.sqrt(plan.family.kernel(records, QUERIES)).sum(axis=0).mean())
    scales = [float(each.privacy.mechanism.scale) for each in question.plans]
    for utility, scale in zip(question.utilities, scales, strict=True):
        assert utility / UNIT == pytest.approx(-abs(roots - np.sqrt(2) * scale), abs=len(records) / UNIT)
    best = optimal_rows(roots, candidates[-1] / scales[-1])  # the ε of the rows: the count counter has the rest
    nearest = min(range(7), key=lambda i: abs(candidates[i] - best))
    assert max(range(7), key=question.utilities.__getitem__) == nearest


def test_the_sum_is_that_of_the_kernels_in_closed_form(records: npt.NDArray[np.float64]) -> None:
    for name, dim in (("euclidean", 20), ("fourier", 20), ("angular", 20)):
        plan = other_plans()[name]
        points = np.tile(records, (1, dim // 2))
        queries = np.tile(QUERIES, (1, dim // 2))
        for root in (False, True):
            kernel = plan.family.kernel(points, queries)
            exact = float((np.sqrt(kernel) if root else kernel).sum(axis=0).mean())
            found = contribution_sum(plan.family, usable_records(plan, points, None), queries, root=root) / UNIT
            assert found == pytest.approx(exact, abs=len(points) / UNIT)


def test_the_bandwidth_aims_at_ten_standard_errors_of_the_noise(records: npt.NDArray[np.float64]) -> None:
    plan = small_plan(sketch={"kernel": "laplacian"})
    candidates = ["0.1", "0.5", "1", "2", "5", "20"]
    question = bandwidth_question(records, QUERIES, candidates, plan, share="0.1")
    for width, each, utility in zip(candidates, question.plans, question.utilities, strict=True):
        noise = np.sqrt(each.family.answer_variance(plan.privacy.mechanism.noise().variance))
        distances = kernels.manhattan_distances(records, QUERIES)
        exact = float(kernels.laplacian(distances, float(width)).sum(axis=0).mean())
        assert utility / UNIT == pytest.approx(-abs(exact - 10 * noise), abs=0.2)


def test_a_mass_of_ones_own_is_the_target(records: npt.NDArray[np.float64]) -> None:
    question = bandwidth_question(records, QUERIES, [1, 1000], small_plan(), share="0.1", mass=400)
    assert question.utilities[1] == pytest.approx(0, abs=4 * UNIT)  # a wide kernel holds all 400 records
    assert question.utilities[0] < -300 * UNIT


def test_every_family_with_a_bandwidth_can_ask() -> None:
    records, queries = np.random.default_rng(0).uniform(0, 10, (50, 2)), QUERIES
    fourier = {"family": "fourier", "kernel": "gaussian", "buckets": ..., "fraction_bits": 10}
    hermite = {"family": "hermite", "kernel": "gaussian", "buckets": ..., "rows": ..., "seed": ..., "order": 4}
    for sketch in (fourier, hermite):
        plan = small_plan(sketch=sketch)
        question = bandwidth_question(records, queries, [2, 4], plan, share="0.1")
        assert [float(each.family.bandwidth) for each in question.plans] == [2.0, 4.0]  # type: ignore[attr-defined]  # both have one
        assert all(each.privacy.mechanism == plan.privacy.mechanism for each in question.plans)


def test_sets_are_read_as_lists_and_as_rows_of_a_matrix() -> None:
    indptr = np.cumsum([0, *map(len, SETS)])
    matrix = csr_matrix((np.ones(indptr[-1]), np.concatenate(SETS), indptr), shape=(4, 100))
    listed = rows_question([*SETS, np.array([5, 5])], SETS[:2], [1, 20], set_plan(), share="0.1")
    assert rows_question(matrix, SETS[:2], [1, 20], set_plan(), share="0.1").utilities == listed.utilities
    similar = kernels.jaccard((indptr, np.concatenate(SETS)), (indptr[:3], np.concatenate(SETS[:2])))
    found = contribution_sum(set_plan().family, usable_records(set_plan(), SETS, None), SETS[:2], root=True)
    assert found / UNIT == pytest.approx(float(np.sqrt(similar).mean(axis=1).sum()), abs=4 / UNIT)


def test_classes_are_taken_together(records: npt.NDArray[np.float64]) -> None:
    together = rows_question(records, QUERIES, [1, 20], small_plan(), share="0.1").utilities
    assert rows_question(records, QUERIES, [1, 20], classed_plan(), share="0.1").utilities == together


# --------------------------------------------------------------------------------------------- the ledger and the draw


def test_the_ledger_is_charged_once_and_before_anything_is_drawn(
    records: npt.NDArray[np.float64], ledger: hs.Ledger
) -> None:
    charged: list[int] = []

    class Watching:
        def read(self, size: int) -> bytes:
            charged.append(len(ledger.events()))
            return OsEntropy().read(size)

    question = rows_question(records, QUERIES, [1, 20], small_plan(), share="0.05")
    choice = draw(question, ledger, Watching())
    assert charged
    assert set(charged) == {1}
    assert ledger.events() == (choice.spend,)
    assert ledger.spent.epsilon == choice.epsilon == 5  # 0.05 of the plan's 100
    assert choice.spend.kind == "choice"
    assert choice.spend.plan_id == small_plan().hex_id


def test_what_is_drawn_is_what_is_charged(records: npt.NDArray[np.float64], ledger: hs.Ledger, seed: int) -> None:
    question = rows_question(records, QUERIES, [1, 50, 100, 150, 200, 250], small_plan(), share="0.0002")
    for number in range(40):
        key = (seed + number).to_bytes(9, "big")
        choice = draw(question, ledger, ReplayableEntropy(key))
        (event,) = choice.spend.events
        assert isinstance(event, Event)
        winner = report_noisy_max(
            question.utilities,
            sensitivity=event.sensitivity.linf,
            epsilon=event.epsilon,
            entropy=ReplayableEntropy(key),
        )
        assert choice.plan == question.plans[winner]


def test_a_choice_that_the_ledger_cannot_pay_draws_nothing(records: npt.NDArray[np.float64], ledger: hs.Ledger) -> None:
    plan = small_plan(privacy={"epsilon": 1, "total_epsilon": 2})
    question = rows_question(records, QUERIES, [1, 20], plan, share="0.4")
    for _ in range(2):
        draw(question, ledger, OsEntropy())
    with pytest.raises(hs.BudgetError, match="Budget exceeded"):
        draw(question, ledger, Unread())
    assert len(ledger.events()) == 2
    assert ledger.spent.epsilon == Fraction(8, 5)


def test_without_a_ledger_nothing_is_chosen(records: npt.NDArray[np.float64]) -> None:
    for choose in (choose_rows, choose_bandwidth):
        with pytest.raises(hs.BudgetError, match="ledger"):
            choose(records, QUERIES, [1, 20], small_plan(), share="0.1", ledger=None)  # type: ignore[arg-type]  # of the wrong type on purpose


def test_a_release_after_the_choice_is_charged_to_the_same_ledger(
    records: npt.NDArray[np.float64], ledger: hs.Ledger
) -> None:
    plan = small_plan(privacy={"epsilon": 2, "total_epsilon": 5})
    choice = choose_rows(records, QUERIES, [3, 30], plan, share="0.2", ledger=ledger)
    sketch = hs.Sketch(choice.plan)
    sketch.add(records)
    hs.release(sketch, ledger=ledger)
    assert ledger.spent.epsilon == 3
    assert ledger.left is not None
    assert ledger.left.epsilon == 2
    assert choice.plan.privacy.total_epsilon == 5
    assert choice.plan.privacy.epsilon == 2
    assert choice.value in {3, 30}
    assert choice.plan == small_plan(privacy={"epsilon": 2, "total_epsilon": 5}, sketch={"rows": int(choice.value)})


def test_the_bandwidth_that_is_chosen_stands_in_the_plan(records: npt.NDArray[np.float64], ledger: hs.Ledger) -> None:
    choice = choose_bandwidth(records, QUERIES, ["0.25", 4], small_plan(), share="0.9", ledger=ledger, mass=200)
    assert choice.plan == small_plan(sketch={"bandwidth": str(choice.value if choice.value == 4 else 0.25)})


def test_a_large_epsilon_chooses_the_best_for_certain(records: npt.NDArray[np.float64]) -> None:
    question = rows_question(records, QUERIES, [1, 20, 400], small_plan(), share="0.9")
    chances = win_probabilities(question.utilities, scale_for(question.sensitivity, question.epsilon))
    assert chances.max() > 1 - 1e-9
    assert int(chances.argmax()) == max(range(3), key=question.utilities.__getitem__)


@pytest.mark.statistical
def test_a_tiny_epsilon_chooses_almost_blindly(records: npt.NDArray[np.float64], ledger: hs.Ledger, seed: int) -> None:
    """χ² of 150 choices against the exact probabilities, false alarm 1e-6; these are within 1 % of one third."""
    question = rows_question(records, QUERIES, [1, 20, 40], small_plan(), share="0.000001")
    chances = win_probabilities(question.utilities, scale_for(question.sensitivity, question.epsilon))
    assert np.abs(chances - 1 / 3).max() < 0.01
    entropy = ReplayableEntropy(seed.to_bytes(8, "big"))
    counts = Counter(int(draw(question, ledger, entropy).value) for _ in range(150))
    statistic = sum((counts[r] - 150 * p) ** 2 / (150 * p) for r, p in zip((1, 20, 40), chances, strict=True))
    assert chi2.sf(statistic, 2) > 1e-6


def test_the_statement_says_what_the_choice_costs(rng: np.random.Generator, ledger: hs.Ledger) -> None:
    ids = [f"c{i}" for i in range(10)]
    choice = choose_rows(
        rng.uniform(0, 10, (10, 2)), QUERIES, [3, 30], client_plan(), share="0.01", ledger=ledger, clients=ids
    )
    statement = choice.statement()
    for part in (
        f"rows = {choice.value}",
        "2 public candidates",
        "ε = 1, δ = 0, unit client, add/remove: one client (only its first 3 records",
        "by a factor of at most e^1 = 2.72. An observer who believes with 50 % that one client's records are included",
        "can afterwards believe it with at most 73.2 %.",
    ):
        assert part in statement


def test_a_question_shows_nothing_of_the_data(records: npt.NDArray[np.float64]) -> None:
    question = rows_question(records, QUERIES, [1, 20], small_plan(), share="0.1")
    assert not any(str(abs(utility)) in repr(question) for utility in question.utilities)


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("candidates", "share", "key"),
    [
        ([5], "0.1", "candidates"),
        ([5, 5], "0.1", "candidates"),
        (list(range(1, 66)), "0.1", "candidates"),
        ([5, "many"], "0.1", "candidates"),
        ([5, "5.5"], "0.1", "sketch.rows"),
        ([5, 10], "0", "share"),
        ([5, 10], "1", "share"),
        ([5, 10], "0.995", "share"),  # 0.5 of 100 is left, and a release takes 1
        ([5, 10], float("nan"), "share"),
        ([5, 10], Fraction(1, 10**63 + 7) * Fraction(1, 3), "share"),
    ],
)
def test_a_choice_that_makes_no_sense_is_refused_before_the_data(
    candidates: list[Any], share: object, key: str
) -> None:
    with pytest.raises(hs.PlanError) as error:
        rows_question(None, None, candidates, small_plan(), share=share)
    assert error.value.key == key


def test_plans_without_such_a_choice_are_refused() -> None:
    for plan, ask in (
        (model_plan(), rows_question),
        (model_plan(), bandwidth_question),
        (set_plan(), bandwidth_question),
        (small_plan(sketch={"kernel": "angular", "bandwidth": ...}), bandwidth_question),
    ):
        with pytest.raises(hs.PlanError, match=r"sketch\.family"):
            ask(None, None, [5, 10], plan, share="0.1")


def test_queries_and_clients_that_cannot_be_used_are_refused_whatever_the_records_are() -> None:
    for records in (np.empty((0, 2)), np.ones((3, 2))):
        for queries in (np.empty((0, 2)), np.full((1, 3), 1.0)):
            with pytest.raises(hs.RecordError):
                rows_question(records, queries, [5, 10], small_plan(), share="0.1")
    for clients in (None, "abc", ["a"]):
        with pytest.raises(hs.RecordError, match="clients"):
            rows_question(np.ones((3, 2)), QUERIES, [5, 10], client_plan(), share="0.01", clients=clients)


def test_no_records_make_a_choice_like_any_others(ledger: hs.Ledger) -> None:
    choice = choose_rows(np.empty((0, 2)), QUERIES, [5, 10], small_plan(), share="0.1", ledger=ledger)
    assert choice.value in {5, 10}
    assert tables()["name"] == choice.plan.name


def test_a_plan_whose_records_nobody_sees_together_chooses_nothing_from_them(ledger: hs.Ledger) -> None:
    with pytest.raises(hs.PlanError, match=r"privacy\.mode: got 'secure', expected 'central'"):
        choose_bandwidth(Unread(), QUERIES, [1, 2], secure_plan(), share="0.1", ledger=ledger)
