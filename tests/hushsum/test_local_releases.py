"""Releases and outcomes of plans of mode local: what devices noised is shown as it is, and nothing is drawn here."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hushsum as hs
from hushsum import query
from hushsum.delta import Delta, DeltaId, encode, encode_all, unpack_at_home
from hushsum.delta_decoder import reader_of
from hushsum.entropy import ReplayableEntropy
from hushsum.errors import DeltaError, GuaranteeError, MergeError, PlanError, Reason, ReleaseError
from hushsum.outcomes import Withheld, decide, decide_local
from hushsum.privacy.shuffle_amplification import amplified
from hushsum.release_format import Header
from hushsum.release_format import encode as encode_file
from hushsum.releases import draw, of_reports, of_silos, of_sums
from tests.hushsum.local_plans import SHUFFLED, bit_plan, report_plan, silo_plan
from tests.plans import secure_plan, small_plan

REPORTS = report_plan()
SILO = silo_plan()
CLIENT = {"unit": "client", "records_per_client": 3}
MANY: dict[str, Any] = {**SHUFFLED, "local": {"shuffle_min": 1_000_000}}
RECORDS = np.array([[5.0, 5.0], [1.0, 9.0]])
ID = DeltaId(7, 0)


def reports(plan: hs.Plan = REPORTS, n: int = 2_000, *, shuffled: bool = False) -> hs.Release:
    counters, counts = counted(plan, n)
    return of_reports(plan, counters, counts, window=4, shuffled=shuffled)


def counted(plan: hs.Plan, n: int) -> tuple[Any, Any]:
    _, rows, outputs = plan.counters_shape
    counters = np.full(rows * outputs, n // (rows * outputs), np.int64)
    counters[: n % (rows * outputs)] += 1
    return counters.reshape(1, rows, outputs), np.array([n])


def silos(plan: hs.Plan = SILO, submissions: int = 19) -> hs.Release:
    drawn = np.random.default_rng(1)
    size = 50 if submissions else 0
    counters = drawn.integers(-size, size + 1, plan.counters_shape)
    counts = drawn.integers(-size, size + 1, plan.count_counters)
    return of_silos(plan, counters, counts, window=4, submissions=submissions)


@pytest.mark.parametrize(
    "release",
    [silos(), silos(submissions=0), reports(), reports(n=0), reports(bit_plan()),
     reports(report_plan(privacy=SHUFFLED), shuffled=True)],
    ids=["silo", "nobody", "reports", "none", "bits", "shuffled"],
)  # fmt: skip
def test_a_release_holds_what_came_as_it_is(release: hs.Release, tmp_path: Path) -> None:
    release.save(tmp_path / "a.hush")
    loaded = hs.load(tmp_path / "a.hush")
    assert np.array_equal(loaded.counters, release.counters)
    assert np.array_equal(loaded.counts, release.counts)
    assert (loaded.kind, loaded.window, loaded.accounted) == ("tumbling", 4, True)
    assert (loaded.submissions, loaded.cohorts) == (release.submissions, None)
    assert loaded.shuffled is release.shuffled
    assert loaded.to_bytes() == release.to_bytes()
    assert loaded.statement() == release.statement()


def test_the_header_names_a_shuffler_only_where_there_was_one() -> None:
    plan = report_plan(privacy=SHUFFLED)
    assert b'"shuffled":1' in reports(plan, shuffled=True).to_bytes()
    for release in (reports(plan), reports(), silos()):
        assert b"shuffled" not in release.to_bytes().replace(b'"shuffle_min"', b"")


def test_the_number_of_reports_is_exact() -> None:
    release = reports(n=1_234)
    assert release.count == 1_234
    assert "_prepared" not in vars(release)  # the tally of all counters, which answers alone need
    assert query.count_std_error(REPORTS) == 0


def test_noise_of_silos_grows_with_their_number() -> None:
    noise = SILO.privacy.mechanism.noise()
    assert query.noise_variance(SILO, draws=query.draws_of(SILO, 19)) == 19 * noise.variance
    assert query.noise_variance(SILO, draws=0) == 0
    assert query.noise_variance(SILO) == noise.variance
    assert query.count_std_error(SILO, draws=16) == pytest.approx(4 * query.count_std_error(SILO, draws=1))
    release = silos(submissions=16)
    by_hand = query.kernel_sum(SILO, release.counters, RECORDS, draws=16)
    assert np.array_equal(release.kernel_sum(RECORDS).std_error, by_hand.std_error)
    with pytest.raises(GuaranteeError, match="no noise to add"):
        query.noise_variance(REPORTS)


def test_a_release_without_a_window_is_unaccounted() -> None:
    counters, counts = counted(REPORTS, 10)
    release = of_reports(REPORTS, counters, counts, window=None, shuffled=False, kind="in-process")
    assert not release.accounted
    assert "It is unaccounted" in release.statement()
    assert hs.Release.from_bytes(release.to_bytes()).window is None
    for window, kind in ((None, "tumbling"), (4, "in-process")):
        with pytest.raises(ReleaseError, match="a window belongs to kind 'tumbling'"):
            of_reports(REPORTS, counters, counts, window=window, shuffled=False, kind=kind)


@pytest.mark.parametrize("plan", [small_plan(), secure_plan(), SILO], ids=["central", "secure", "silo"])
def test_only_a_plan_of_reports_has_releases_of_reports(plan: hs.Plan) -> None:
    with pytest.raises(GuaranteeError, match="send no reports"):
        of_reports(plan, *counted(REPORTS, 10), window=4, shuffled=False)


@pytest.mark.parametrize("plan", [small_plan(), secure_plan(), REPORTS], ids=["central", "secure", "reports"])
def test_only_a_plan_of_silos_has_releases_of_silos(plan: hs.Plan) -> None:
    counters, counts = np.zeros(plan.counters_shape, np.int64), np.zeros(plan.count_counters, np.int64)
    with pytest.raises(GuaranteeError, match="its clients do not add noise themselves"):
        of_silos(plan, counters, counts, window=4, submissions=1)


@pytest.mark.parametrize("plan", [SILO, REPORTS], ids=["silo", "reports"])
def test_nobody_has_exact_counters_of_a_local_plan(plan: hs.Plan) -> None:
    sketch = hs.Sketch(plan)
    entropy = ReplayableEntropy(b"")
    with pytest.raises(GuaranteeError, match="mode 'local': each"):
        hs.release(sketch)
    with pytest.raises(GuaranteeError, match=r"hushsum\.releases\.of_"):
        draw(sketch, kind="tumbling", window=4, entropy=entropy, accounted=True)
    with pytest.raises(GuaranteeError, match="mode 'central'"):
        decide(sketch, kind="tumbling", window=4, clients=100, entropy=entropy)
    with pytest.raises(GuaranteeError, match="no noise from clients"):
        of_sums(plan, sketch.counters, sketch.counts, window=4, cohorts=1, submissions=9)


def test_shapes_and_types_of_others_are_refused() -> None:
    counters, counts = counted(REPORTS, 10)
    for wrong in ((counters[:, 1:], counts), (counters, counts[:0]), (counters.astype(np.int32), counts)):
        with pytest.raises(MergeError):
            of_reports(REPORTS, *wrong, window=4, shuffled=False)
    release = silos()
    with pytest.raises(MergeError):
        of_silos(SILO, release.counters[:, 1:], release.counts, window=4, submissions=19)


def test_counts_that_no_reports_give_are_refused() -> None:
    counters, counts = counted(REPORTS, 10)
    negative = counters.copy()
    negative[0, 0, 0], negative[0, 0, 1] = -1, 3
    wrapped = counters.copy()
    wrapped[0, :4, 0] = 2**62  # whose sum modulo 2^64 is that of the others
    for wrong, number, expected in (
        (negative, counts, "count -1"),
        (counters, counts + 1, "counters of 10 reports, expected 11"),
        (wrapped, wrapped.sum(axis=(1, 2)), f"counters of {2**64 + 9}"),
    ):
        with pytest.raises(ReleaseError, match=expected):
            of_reports(REPORTS, wrong, number, window=4, shuffled=False)
        values = np.concatenate([wrong.reshape(-1), number])
        with pytest.raises(ReleaseError, match=expected):
            hs.Release.from_bytes(encode_file(REPORTS, Header("tumbling", 4, counters.shape, accounted=True), values))


def test_numbers_that_no_silos_give_are_refused() -> None:
    release = silos()
    for submissions, expected in ((0, "not all zero"), (-1, "expected a window with the number")):
        with pytest.raises(ReleaseError, match=expected):
            of_silos(SILO, release.counters, release.counts, window=4, submissions=submissions)


@pytest.mark.parametrize(
    ("release", "changes"),
    [
        (silos(), {"submissions": None}),
        (silos(), {"submissions": 9, "cohorts": 1}),
        (silos(), {"kind": "in-process", "window": None}),
        (silos(), {"shuffled": True}),
        (reports(), {"submissions": 9}),
        (reports(), {"cohorts": 1}),
        (reports(), {"shuffled": True}),
    ],
)  # fmt: skip
def test_a_file_with_a_header_of_another_mode_is_refused(release: hs.Release, changes: dict[str, Any]) -> None:
    header = Header("tumbling", 4, release.counters.shape, accounted=True, submissions=release.submissions)
    values = np.concatenate([release.counters.reshape(-1), release.counts])
    assert hs.Release.from_bytes(encode_file(release.plan, header, values)).to_bytes() == release.to_bytes()
    with pytest.raises(ReleaseError):
        hs.Release.from_bytes(encode_file(release.plan, replace(header, **changes), values))


def test_a_file_with_another_guarantee_is_refused() -> None:
    release = reports(report_plan(privacy={"local": {"memoise": True}}))
    other = json.dumps(REPORTS.guarantee.to_fields(), sort_keys=True, separators=(",", ":")).encode()
    assert other in reports().to_bytes()
    assert other not in release.to_bytes()


# Shufflers


def test_what_is_amplified_is_told_only_of_reports_that_came_through_the_shuffler() -> None:
    plan = report_plan(privacy=MANY)
    through, past = reports(plan, 1_000_000, shuffled=True), reports(plan, 1_000_000)
    epsilon = amplified(plan.privacy.mechanism.scale, 1_000_000, plan.privacy.delta)
    assert epsilon is not None
    assert epsilon < 1
    assert through.amplified == (epsilon, plan.privacy.delta)
    assert past.amplified is None
    assert "shuffler" not in past.statement()
    words = through.statement()
    for said in ("batches of at least 1,000,000", "observers after the shuffler", f"ε = {float(epsilon):g}, δ =",
                 "honest and independent", "several windows compose", "including the shuffler's operator"):  # fmt: skip
        assert said in words
    assert through.guarantee.delta == 0
    assert "That is ε = 1, δ = 0." in words  # what is charged


def test_more_reports_than_the_plan_demands_are_not_counted_on() -> None:
    plan = report_plan(privacy=MANY)
    assert reports(plan, 3_000_000, shuffled=True).amplified == reports(plan, 1_000_000, shuffled=True).amplified


def test_m_reports_of_a_client_compose() -> None:
    plan = report_plan(privacy={**MANY, **CLIENT})
    release = reports(plan, 1_000_000, shuffled=True)
    epsilon = amplified(plan.privacy.mechanism.scale, 1_000_000, plan.privacy.delta, 3)
    assert epsilon is not None
    assert release.amplified == (epsilon, plan.privacy.delta)
    assert "all 3 reports of one client, which compose" in release.statement()


def test_too_few_reports_are_not_amplified_and_the_statement_says_so() -> None:
    plan = report_plan(privacy={"delta": "0.000001", "local": {"shuffle_min": 1}})
    release = reports(plan, 100, shuffled=True)
    assert release.amplified is None
    assert "too few to prove a smaller ε" in release.statement()
    assert reports(report_plan(privacy=MANY), 0, shuffled=True).amplified is None


def test_a_shuffler_forwards_no_fewer_than_it_says() -> None:
    plan = report_plan(privacy=SHUFFLED)
    with pytest.raises(ReleaseError, match="at least shuffle_min = 1000"):
        reports(plan, 999, shuffled=True)
    with pytest.raises(GuaranteeError, match="has no shuffler"):
        reports(shuffled=True)


# Statements


def test_a_silo_statement_says_who_is_trusted_and_what_the_noise_is() -> None:
    words = silos(submissions=16).statement()
    noise = SILO.privacy.mechanism.noise()
    for said in (
        "unit record, zero-out", "anything that leaves its device", "No other party is trusted, the service",
        "Participation is not hidden", "published with the release, and may decide",
        "It is the sum of 16 clients", f"noise of variance {noise.variance:.6g} on every counter",
        f"a standard deviation of {4 * noise.variance ** 0.5:.4g} = {noise.variance ** 0.5:.4g} x sqrt(16)",
        "It was charged to the ledger",
    ):  # fmt: skip
        assert said in words, said
    assert "aggregator is trusted" not in words
    assert "It is the sum of 1 client, " in silos(submissions=1).statement()


def test_a_statement_of_reports_says_what_is_promised_and_what_is_seen() -> None:
    words = reports().statement()
    for said in (
        "unit record, replace: replacing one record by another", "leaves its device, and of anything derived from it",
        "No other party is trusted, the service", "k-rr, with a likelihood ratio of at most 54.5981",
        "The existence and number of reports are not hidden", "It has 2,000 reports (exact).",
        "one record has this value rather than a given other",
    ):  # fmt: skip
        assert said in words, said
    assert "same report again" not in words
    assert "shuffler" not in words
    assert "It has 1 report (exact)." in reports(n=1).statement()


def test_a_statement_about_clients_says_who_bounds_them() -> None:
    words = reports(report_plan(privacy=CLIENT)).statement()
    assert "replacing all records of one client (at most 3 in a window) by others" in words
    assert "3 per client and window is enforced by the device only; together they use the whole ε" in words


def test_a_statement_of_memoised_reports_says_what_that_does_not_hide() -> None:
    memoised = {"local": {"memoise": True}}
    words = reports(report_plan(privacy=memoised)).statement()
    for said in (
        "replacing one record by another that its device has nowhere else, at every occurrence, changes",
        "sends the same report again",
        "Equality of records across windows is not hidden",
        "window is charged in full",
    ):  # fmt: skip
        assert said in words
    of_clients = reports(report_plan(privacy={**memoised, **CLIENT})).statement()
    assert "in a window) by others that are equal to each other where the originals are changes" in of_clients


# Outcomes


def test_a_window_of_silos_is_decided_by_their_exact_number() -> None:
    plan = silo_plan(window={"min_clients": 19})
    release = silos(plan)
    arrays = (release.counters, release.counts)
    assert isinstance(decide_local(plan, *arrays, window=4, submissions=19), hs.Release)
    assert decide_local(plan, *arrays, window=4, submissions=18) == Withheld(plan.id, "tumbling", 4)
    decided = decide_local(SILO, *arrays, window=4, submissions=1)
    assert isinstance(decided, hs.Release)
    assert decided.submissions == 1
    with pytest.raises(GuaranteeError, match="the number of clients is required"):
        decide_local(plan, *arrays, window=4, submissions=None)


def test_a_window_of_reports_is_decided_by_their_exact_number() -> None:
    plan = report_plan(window={"min_reports": 10})
    assert isinstance(decide_local(plan, *counted(plan, 10), window=4, submissions=None), hs.Release)
    assert decide_local(plan, *counted(plan, 9), window=4, submissions=None) == Withheld(plan.id, "tumbling", 4)
    assert isinstance(decide_local(REPORTS, *counted(REPORTS, 0), window=4, submissions=None), hs.Release)


def test_an_outcome_is_of_shuffled_reports_where_the_plan_has_a_shuffler() -> None:
    plan = report_plan(privacy=SHUFFLED)
    decided = decide_local(plan, *counted(plan, 1000), window=4, submissions=None)
    assert isinstance(decided, hs.Release)
    assert decided.shuffled


@pytest.mark.parametrize("plan", [small_plan(), secure_plan()], ids=["central", "secure"])
def test_windows_of_other_modes_are_not_decided_so(plan: hs.Plan) -> None:
    with pytest.raises(GuaranteeError, match="its clients do not add noise"):
        decide_local(plan, *counted(REPORTS, 9), window=4, submissions=3)


# Deltas


@pytest.mark.parametrize("plan", [SILO, REPORTS], ids=["silo", "reports"])
def test_no_service_reads_an_exact_delta_of_a_local_plan(plan: hs.Plan) -> None:
    with pytest.raises(DeltaError) as refusal:
        Delta.unpack(b"", plan)
    assert refusal.value.reason is Reason.WRONG_MODE
    assert reader_of(plan) is None


def test_a_silo_keeps_exact_deltas_at_home() -> None:
    delta, _ = encode(SILO, RECORDS, window=4, id=ID)
    assert delta is not None
    assert unpack_at_home(delta.pack(SILO), SILO).pack(SILO) == delta.pack(SILO)


def test_no_exact_delta_is_made_of_what_becomes_reports() -> None:
    for call in (
        lambda: encode(REPORTS, RECORDS, window=4, id=ID),
        lambda: encode_all(REPORTS, RECORDS, window=4, id=ID),
        lambda: unpack_at_home(b"", REPORTS),
    ):
        with pytest.raises(DeltaError, match="randomised by itself") as refusal:
            call()
        assert refusal.value.reason is Reason.WRONG_MODE


def test_another_epsilon_of_a_local_plan_is_another_plan() -> None:
    with pytest.raises(PlanError, match=r"privacy\.delta"):
        REPORTS.replace_privacy(delta="0.1")
    assert REPORTS.replace_privacy(epsilon=2).id != REPORTS.id
