"""A spool that changes its plan loses nothing, forgets no spend, and has one plan or the other whenever it stops."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge_client import AccountError, PolicyError
from edge_client.encoding import ReportEncoder, split
from edge_client.errors import NoPartError, SpoolError, SpoolFullError
from edge_client.participation.silo import prepared
from edge_client.spool.changes import Remove, StoredDelta
from edge_client.spool.plan_history import PLANS_MAX, PlanHistory
from edge_client.spool.spool import Spool
from edge_client.spool.transaction import ReportTransaction
from edge_client.spool.window_submissions import SecureSubmissions, SiloSubmissions
from edge_client.status import Counts, SendStats
from hushsum import Plan
from hushsum.entropy import OsEntropy
from hushsum.errors import ContributionError
from hushsum.local.report_batch import unpack
from hushsum.privacy.accountant import Account
from tests.aggregator.deltas import windowed_plan
from tests.edge_client.clocks import HOUR, MINUTE
from tests.edge_client.local_plans import CLIENT_REPORTS, NEW_REPORTS, report_plan, silo_plan
from tests.edge_client.spools import opened
from tests.plans import client_plan, secure_plan, small_plan

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'proto'}"}
W = 7
NOW = CLIENT_REPORTS.window.start_ms(W)
WINDOW = {"length": "1h", "lateness": "20m"}
CENTRAL = small_plan(window=WINDOW)
SILO = silo_plan(unit="client", records_per_client=2, epsilon=1, total_epsilon=3)
NEW_SILO = silo_plan(unit="client", records_per_client=2, epsilon=1, total_epsilon=2, population="another")
#: Which tables have rows of a plan, under whatever name.
OF_PLANS = ("deltas", "contributions", "pending", "rounds", "attempts", "memo", "memo_windows", "memo_kept")


def begun(path: Path, plan: Plan) -> Spool:
    spool = opened(path)
    spool.keep_plan(plan.bundle, b"signature")
    return spool


def changed(spool: Spool, plan: Plan, *, now_ms: int = NOW) -> PlanHistory:
    history = PlanHistory(spool)
    history.take_up(plan, None, now_ms)
    history.confirm(now_ms)
    return history


def report(spool: Spool, plan: Plan, records: object, window: int = W) -> tuple[StoredDelta, ...]:
    """Adds records as a client that starts."""
    spool.keep_budget(plan, ReportTransaction)
    local = plan.privacy.local
    assert local is not None
    secret = spool.keep_memo(OsEntropy()) if local.memoise else None
    (result,) = spool.commit([ReportEncoder(plan, secret).encode(records, window)])
    if not isinstance(result, tuple):
        raise result
    return result


def account_of(spool: Spool, plan: Plan) -> Account:
    return spool.keep_budget(plan, ReportTransaction).account


def silo(spool: Spool, plan: Plan, windows: range = range(W, W + 2)) -> SiloSubmissions:
    submissions = SiloSubmissions(spool, plan)
    submissions.update(windows)
    return submissions


def submit(spool: Spool, submissions: SiloSubmissions, plan: Plan, window: int = W) -> None:
    (result,) = spool.commit([prepared(plan, window, submissions.begin(window), OsEntropy())])
    submissions.end(window)
    if not isinstance(result, tuple):
        raise result
    submissions.submitted(window)


def counts(spool: Spool) -> Counts:
    return Counts.of(spool.tallies, SendStats())


def contents(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """All rows of all tables, as a reader sees them."""
    with closing(sqlite3.connect(path)) as database:
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {table: sorted(database.execute(f"SELECT * FROM {table}").fetchall(), key=repr) for table in tables}


def current(path: Path) -> dict[str, list[tuple[object, ...]]]:
    """The same of the current plan alone."""
    found = contents(path)
    return {table: found.get(table, []) for table in (*OF_PLANS, "plan", "plan_signature")}


def full(path: Path) -> None:
    """A spool of reports with something in every table of a plan that reports fill."""
    spool = begun(path, CLIENT_REPORTS)
    report(spool, CLIENT_REPORTS, [[1.0, 2.0], [3.0, 4.0]])
    report(spool, CLIENT_REPORTS, [[1.0, 2.0]], W + 1)
    spool.close()


# ------------------------------------------------------------------------------------------------------- what is kept


def test_a_change_and_the_change_back_restore_every_row(path: Path) -> None:
    full(path)
    before = current(path)
    assert all(before[table] for table in OF_PLANS if table not in ("pending", "attempts"))
    spool = opened(path)
    changed(spool, NEW_REPORTS)
    assert spool.plan == NEW_REPORTS.bundle
    assert spool.unanswered() == ()
    spool.close()
    assert not any(current(path)[table] for table in OF_PLANS)
    spool = opened(path)
    changed(spool, CLIENT_REPORTS)
    spool.close()
    after = current(path)
    assert after.pop("plan_signature") == []  # it had another one, which came with the plan this time
    assert {table: before[table] for table in after} == after


def test_what_waits_of_a_silo_is_kept_too_and_submitted_after_the_change_back(path: Path) -> None:
    spool = begun(path, SILO)
    silo(spool, SILO)
    spool.commit([split(SILO, [[1.0, 2.0]], W)])
    before = spool.rows("SELECT * FROM pending")
    changed(spool, NEW_SILO)
    assert silo(spool, NEW_SILO).pending(W).deltas == ()
    changed(spool, SILO)
    assert spool.rows("SELECT * FROM pending") == before
    submissions = silo(spool, SILO)
    submit(spool, submissions, SILO)
    assert len(spool.unanswered()) == 1


def test_ids_go_on_and_none_is_given_twice(path: Path) -> None:
    spool = begun(path, CENTRAL)
    (first,) = spool.commit([split(CENTRAL, [[1.0, 2.0]], W)])
    changed(spool, NEW_REPORTS)
    (second,) = report(spool, NEW_REPORTS, [[1.0, 2.0]])
    changed(spool, CENTRAL)
    (third,) = spool.commit([split(CENTRAL, [[1.0, 2.0]], W)])
    assert isinstance(first, tuple)
    assert isinstance(third, tuple)
    assert (first[0].sequence, second.sequence, third[0].sequence) == (0, 1, 2)
    assert spool.unanswered() == (0, 2)
    assert spool.load(0, 10, 2**20)[0].data == first[0].data


def test_bounds_and_memoised_reports_are_remembered_after_the_change_back(path: Path) -> None:
    spool = begun(path, CLIENT_REPORTS)
    (sent,) = report(spool, CLIENT_REPORTS, [[1.0, 2.0], [3.0, 4.0]])
    changed(spool, NEW_REPORTS)
    changed(spool, CLIENT_REPORTS)
    (last,) = report(spool, CLIENT_REPORTS, [[5.0, 6.0]] * 3)
    assert last.records == 1  # of three in the window, two were added before
    with pytest.raises(ContributionError, match="expected at most 0"):
        report(spool, CLIENT_REPORTS, [[5.0, 6.0]])
    (again,) = report(spool, CLIENT_REPORTS, [[1.0, 2.0], [3.0, 4.0]], W + 1)
    assert sorted(unpack(again.data, CLIENT_REPORTS).reports) == sorted(unpack(sent.data, CLIENT_REPORTS).reports)


def test_a_spool_that_changed_its_plan_is_refused_by_software_that_would_forget_its_spends(path: Path) -> None:
    full(path)
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (3,)
    spool = opened(path)
    changed(spool, NEW_REPORTS)
    spool.close()
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA user_version").fetchone() == (4,)


def test_what_is_held_counts_for_the_limit_on_bytes(path: Path) -> None:
    spool = begun(path, CENTRAL)
    spool.commit([split(CENTRAL, np.full((50, 2), 3.0), W)])
    spool.close()
    room = CENTRAL.delta_sizes.batch_bytes_max(50)
    spool = opened(path, bytes_max=room + room // 2)
    history = changed(spool, small_plan(sketch={"rows": 10}))
    assert history.held == 1
    (refused,) = spool.commit([split(CENTRAL, np.full((50, 2), 3.0), W)])
    assert isinstance(refused, SpoolFullError)
    assert "by deltas and memoised reports of earlier plans" in str(refused)


def test_memoised_reports_are_reserved_for_where_the_plan_memoises_and_by_plan(path: Path) -> None:
    limits: dict[str, Any] = {"unit": "client", "records_per_client": 3000, "epsilon": 1, "total_epsilon": 5}
    fresh, memo = report_plan(**limits), report_plan(memoise=True, **limits)
    spool = begun(path, fresh)
    (sent,) = report(spool, fresh, np.full((2000, 2), 0.5))
    spool.commit([Remove(sent.sequence, "acknowledged")])
    changed(spool, memo)
    (sent,) = report(spool, memo, [[1.0, 2.0]] * 3, W + 1)
    spool.commit([Remove(sent.sequence, "acknowledged")])
    assert spool._state.memo == 3 * 128
    changed(spool, fresh)
    assert (spool._state.memo, spool._state.held) == (0, 3 * 128)
    report(spool, fresh, [[1.0, 2.0]] * 5, W + 2)
    changed(spool, memo)
    report(spool, memo, [[1.0, 2.0]], W + 1)
    assert spool._state.memo == 4 * 128


def test_a_plan_under_which_nothing_was_kept_is_forgotten_and_the_number_of_others_is_bounded(path: Path) -> None:
    spool = begun(path, CENTRAL)
    history = PlanHistory(spool)
    for seed in range(3):
        plan = small_plan(sketch={"seed": seed + 1})
        changed(spool, plan)
        assert history._earlier_plans() == []
        spool.commit([split(plan, [[1.0, 2.0]], W)])
        changed(spool, CENTRAL)
        spool.change(lambda database, _: database.execute("DELETE FROM former_deltas"))
    for seed in range(PLANS_MAX):
        spool.commit([split(Plan.from_bytes(spool.plan or b""), [[1.0, 2.0]], W)])
        changed(spool, small_plan(sketch={"seed": seed + 1}))
    spool.commit([split(Plan.from_bytes(spool.plan or b""), [[1.0, 2.0]], W)])
    now = spool.plan
    with pytest.raises(PolicyError, match=f"{PLANS_MAX} earlier plans"):
        history.take_up(small_plan(sketch={"seed": 1000}), None, NOW)
    assert spool.plan == now
    changed(spool, CENTRAL)  # a plan that it has


# --------------------------------------------------------------------------------------------------------- the account


def test_all_plans_share_one_account_whatever_population_they_name(path: Path) -> None:
    spool = begun(path, CLIENT_REPORTS)
    for window in (W, W + 1):
        report(spool, CLIENT_REPORTS, [[1.0, 2.0]], window)
    assert account_of(spool, CLIENT_REPORTS).left.epsilon == 1
    changed(spool, NEW_REPORTS)
    assert account_of(spool, NEW_REPORTS).left.epsilon == 1
    report(spool, NEW_REPORTS, [[1.0, 2.0]])
    with pytest.raises(AccountError, match="Budget exceeded"):
        report(spool, NEW_REPORTS, [[1.0, 2.0]], W + 1)
    changed(spool, CLIENT_REPORTS)  # it had that plan
    report(spool, CLIENT_REPORTS, [[1.0, 2.0]])  # the window is paid for
    with pytest.raises(AccountError, match="Budget exceeded"):
        report(spool, CLIENT_REPORTS, [[1.0, 2.0]], W + 2)
    assert len(account_of(spool, CLIENT_REPORTS).spends) == 3


def test_ever_new_populations_never_give_a_fresh_account(path: Path) -> None:
    spool = begun(path, CLIENT_REPORTS)
    report(spool, CLIENT_REPORTS, [[1.0, 2.0]])
    limits: dict[str, Any] = {"unit": "client", "records_per_client": 2, "epsilon": 1, "total_epsilon": 3}
    plans = [report_plan(**limits, population=f"population-{number}") for number in range(2)]
    for plan in plans:
        changed(spool, plan)
        report(spool, plan, [[1.0, 2.0]])
    with pytest.raises(PolicyError, match=r"can pay for, but the plan has a cost that it cannot \(Budget exceeded"):
        PlanHistory(spool).take_up(NEW_REPORTS, None, NOW)
    assert spool.plan == plans[1].bundle
    assert len(account_of(spool, plans[1]).spends) == 3


def test_a_later_plan_lowers_the_total_and_none_raises_it(path: Path) -> None:
    spool = begun(path, CLIENT_REPORTS)
    report(spool, CLIENT_REPORTS, [[1.0, 2.0]])
    higher = report_plan(unit="client", records_per_client=2, epsilon=1, total_epsilon=30, population="higher")
    changed(spool, higher)
    assert account_of(spool, higher).left.epsilon == 2
    lower = report_plan(unit="client", records_per_client=2, epsilon=1, total_epsilon=2, population="lower")
    changed(spool, lower)
    assert account_of(spool, lower).left.epsilon == 1
    report(spool, lower, [[1.0, 2.0]])
    changed(spool, CLIENT_REPORTS)
    assert account_of(spool, CLIENT_REPORTS).left.epsilon == 0


@pytest.mark.parametrize(
    "plan", [SILO, report_plan(epsilon=1, total_epsilon=100)], ids=["another relation", "another unit"]
)
def test_a_plan_of_another_unit_or_relation_than_was_spent_in_is_refused(path: Path, plan: Plan) -> None:
    full(path)
    before = contents(path)
    spool = opened(path)
    with pytest.raises(PolicyError, match="in which this device has spent"):
        PlanHistory(spool).take_up(plan, None, NOW)
    spool.close()
    assert contents(path) == before


def test_a_silo_that_submitted_is_not_asked_for_the_window_again_after_the_change_back(path: Path) -> None:
    spool = begun(path, SILO)
    submit(spool, silo(spool, SILO), SILO)
    changed(spool, NEW_SILO)
    submit(spool, silo(spool, NEW_SILO), NEW_SILO)
    changed(spool, SILO)
    submissions = silo(spool, SILO)
    assert submissions.is_spent(W)
    assert W not in submissions.update(range(W, W + 2)).open
    assert len(submissions.account.spends) == 2
    assert submissions.account.left.epsilon == 0  # of 2, the lower total


def test_a_window_that_an_account_without_a_total_cannot_pay_for_is_refused_as_others_are(path: Path) -> None:
    pure = silo_plan(unit="client", records_per_client=2, epsilon=1, total_epsilon=30)
    gaussian = silo_plan(
        unit="client", records_per_client=2, epsilon=1, delta="0.000001", total_epsilon=30, total_delta="0.00001"
    )
    spool = begun(path, pure)
    silo(spool, pure)
    spool.commit([split(pure, [[1.0, 2.0]], W)])
    changed(spool, gaussian)
    submit(spool, silo(spool, gaussian), gaussian)
    changed(spool, pure)
    submissions = silo(spool, pure)
    (refused,) = spool.commit([prepared(pure, W, submissions.pending(W), OsEntropy())])
    assert isinstance(refused, NoPartError)


# ------------------------------------------------------------------------------------------------------ what is erased


def test_what_waits_is_erased_once_its_windows_are_over_and_counted(path: Path) -> None:
    spool = begun(path, CENTRAL)
    for window in (W, W + 1):
        spool.commit([split(CENTRAL, [[1.0, 2.0]], window)])
    kept = spool.load(0, 10, 2**20)
    history = changed(spool, small_plan(sketch={"rows": 10}))
    end = CENTRAL.window.end_ms(W) + 20 * MINUTE
    early = history.erase(end - 1)
    assert (early.erased, early.due_ms) == ((), end)
    erasure = history.erase(end)
    (erased,) = erasure.erased
    assert (erased.plan_id, erased.deltas, erasure.due_ms) == (CENTRAL.id, 1, end + HOUR)
    history.note_reported()
    assert (history.held, counts(spool).unknown) == (1, 1)
    everything = path.read_bytes() + Path(f"{path}-wal").read_bytes()
    assert kept[0].data not in everything
    assert kept[1].data in everything
    changed(spool, CENTRAL)
    assert spool.unanswered() == (1,)
    nothing = history.erase(end + 10 * HOUR)
    assert (nothing.erased, nothing.due_ms) == ((), None)


def test_what_waits_of_a_silo_is_erased_and_its_spends_stay(path: Path) -> None:
    spool = begun(path, SILO)
    submissions = silo(spool, SILO)
    for window in (W, W, W + 1):
        spool.commit([split(SILO, [[1.0, 2.0]], window)])
    submit(spool, submissions, SILO)  # of two records
    history = changed(spool, NEW_SILO)
    erasure = history.erase(NOW + 100 * HOUR)
    (erased,) = erasure.erased
    assert erasure.due_ms is None
    assert (erased.deltas, erased.records, erased.windows, erased.unreported) == (1, 1, 1, 1)
    assert str(erased).endswith(
        "(deltas without an answer: 1, records that were not submitted: 1, windows without a submission: 1, "
        "submissions without a result: 1)"
    )
    after = counts(spool)
    assert (after.unknown, after.records_unspent, after.windows_unspent, after.submissions_lost) == (1, 1, 1, 1)
    assert history.held == 0
    changed(spool, SILO)
    submissions = silo(spool, SILO)
    assert submissions.is_spent(W)
    assert submissions.update(range(W, W + 2)).open == ()
    assert len(submissions.account.spends) == 1


def test_earlier_plans_of_which_all_is_erased_do_not_count_for_their_number(path: Path) -> None:
    spool = begun(path, CENTRAL)
    history = PlanHistory(spool)
    for seed in range(PLANS_MAX):
        spool.commit([split(Plan.from_bytes(spool.plan or b""), [[1.0, 2.0]], W)])
        changed(spool, small_plan(sketch={"seed": seed + 100}, window=WINDOW))
    spool.commit([split(Plan.from_bytes(spool.plan or b""), [[1.0, 2.0]], W)])
    with pytest.raises(PolicyError, match=f"{PLANS_MAX} earlier plans"):
        history.take_up(small_plan(sketch={"seed": 1000}), None, NOW)
    assert len(history.erase(NOW + 100 * HOUR).erased) == PLANS_MAX
    changed(spool, small_plan(sketch={"seed": 1000}, window=WINDOW), now_ms=NOW + 100 * HOUR)
    assert len(history._earlier_plans()) == 1


def test_bounds_of_an_earlier_plan_are_erased_with_its_windows_but_never_those_that_are_paid_for(path: Path) -> None:
    counted = client_plan()
    spool = begun(path, counted)
    (sent,) = spool.commit([split(counted, [[1.0, 2.0]], W)])
    assert isinstance(sent, tuple)
    spool.commit([Remove(sent[0].sequence, "acknowledged")])
    history = changed(spool, CENTRAL)
    end = counted.window.end_ms(W) + counted.window.lateness_ms
    assert history.erase(end - 1).due_ms == end
    assert (history.erase(end).erased, history._earlier_plans()) == ((), [])
    spool.close()
    path.unlink()
    full(path)
    spool = opened(path)
    history = changed(spool, NEW_REPORTS)
    bounds = spool.rows("SELECT * FROM former_contributions")
    history.erase(NOW + 100 * HOUR)
    assert spool.rows("SELECT * FROM former_contributions") == bounds != []


def test_the_windows_of_a_plan_that_bounds_their_number_count_for_its_whole_life(path: Path) -> None:
    counted = windowed_plan(2)
    spool = begun(path, counted)
    later = NOW + 100 * HOUR
    for window in (W, W + 1):
        (sent,) = spool.commit([split(counted, [[1.0, 2.0]], window)])
        assert isinstance(sent, tuple)
        spool.commit([Remove(sent[0].sequence, "acknowledged")])
    for _ in range(2):
        history = changed(spool, CENTRAL, now_ms=later)
        assert spool.windows == 0
        history.erase(later)
        assert (history.erase(later).due_ms, history._earlier_plans()) == (None, [])
        spool.close()
        spool = opened(path)
        history = PlanHistory(spool)
        history.take_up(counted, None, later)
        history.undo()
        history.erase(later)
        changed(spool, counted, now_ms=later)
        assert spool.windows == 2
        (refused,) = spool.commit([split(counted, [[1.0, 2.0]], W + 200)])
        assert isinstance(refused, ContributionError)
        assert spool.rows("SELECT * FROM contributions") == [(W, 1), (W + 1, 1)]
    spool.close()


def test_a_plan_of_which_spends_alone_are_left_is_its_id_and_its_totals(path: Path) -> None:
    spool = begun(path, NEW_REPORTS)
    report(spool, NEW_REPORTS, [[1.0, 2.0]])
    history = changed(spool, CLIENT_REPORTS)
    (totals,) = spool.rows("SELECT id, epsilon, delta FROM former_plans")
    history.erase(NOW + 100 * HOUR)
    assert spool.rows("SELECT id, epsilon, delta, bytes, signature FROM former_plans") == [(*totals, b"", None)]
    assert len(account_of(spool, CLIENT_REPORTS).spends) == 1
    changed(spool, NEW_REPORTS)
    assert account_of(spool, NEW_REPORTS).left.epsilon == 2
    (last,) = report(spool, NEW_REPORTS, [[1.0, 2.0]] * 2)
    assert last.records == 1  # of two in the window, one was added before


def test_what_was_erased_is_reported_until_that_is_noted_and_a_plan_that_fails_keeps_no_other(path: Path) -> None:
    spool = begun(path, CENTRAL)
    spool.commit([split(CENTRAL, [[1.0, 2.0]], W)])
    other = small_plan(sketch={"rows": 12}, window=WINDOW)
    changed(spool, other)
    spool.commit([split(other, [[1.0, 2.0]], W)])
    damaged = "UPDATE former_deltas SET bytes = x'00' WHERE plan = ?"
    history = changed(spool, small_plan(sketch={"rows": 10}))
    spool.change(lambda database, _: database.execute(damaged, (CENTRAL.id,)))
    for counted in (1, 0):
        erasure = history.erase(NOW + 100 * HOUR)
        assert [erased.plan_id for erased in erasure.erased] == [other.id]
        assert erasure.counts["unknown"] == counted
        (why,) = erasure.unreadable
        assert why.startswith(f"earlier plan {CENTRAL.hex_id[:12]} in the spool cannot be read")
        assert erasure.due_ms is None
    spool.close()
    history = PlanHistory(opened(path))
    assert len(history.erase(NOW).erased) == 1
    history.note_reported()
    assert history.erase(NOW).erased == ()


def test_a_plan_that_was_not_confirmed_leaves_nothing(path: Path) -> None:
    spool = begun(path, CENTRAL)
    history = PlanHistory(spool)
    history.take_up(secure_plan(), None, NOW)
    SecureSubmissions(spool, secure_plan()).keep_directory(b"the key registry of its clients")
    assert history.undo()
    assert history._earlier_plans() == []
    assert spool.rows("SELECT * FROM former_directory") == []


# --------------------------------------------------------------------------------------------------- whenever it stops


def killed_everywhere(step: str, path: Path, now_ms: int = NOW) -> list[Path]:
    """Copies of a spool on which a step was killed before each of its statements; the last one is whole."""
    command = [sys.executable, "-m", "tests.edge_client.spool.plan_change_victim", step, path, now_ms]
    ended = subprocess.run([*map(str, command)], env=ENVIRONMENT, cwd=ROOT, check=True, stdout=subprocess.PIPE)
    copies = [Path(f"{path}.{statement}") for statement in range(int(ended.stdout))]
    assert len(copies) > 5, "a step has more statements than that"
    return copies


def assert_usable(path: Path, plan: Plan) -> None:
    """The spool is whole under this plan: each spend of both plans counts, and the plan's windows are as they were."""
    spool = opened(path)
    PlanHistory(spool).undo()
    assert spool.plan == plan.bundle
    account = account_of(spool, plan)
    assert len(account.spends) == 2
    assert account.left.epsilon == 1
    spool.close()


def test_a_change_that_is_killed_anywhere_leaves_one_plan_whole_and_forgets_no_spend(path: Path) -> None:
    full(path)
    old = contents(path)
    *copies, whole = killed_everywhere("take up", path)
    new = contents(whole)
    assert new["plan"] != old["plan"]
    seen = [contents(copy) for copy in copies]
    assert all(found in (old, new) for found in seen)
    assert old in seen
    for copy in (*copies, whole):
        assert_usable(copy, CLIENT_REPORTS)  # a change that was not confirmed is undone


@pytest.mark.parametrize("step", ["confirm", "undo"])
def test_the_end_of_a_change_that_is_killed_anywhere_forgets_no_spend(path: Path, step: str) -> None:
    full(path)
    spool = opened(path)
    PlanHistory(spool).take_up(NEW_REPORTS, None, NOW)
    spool.close()
    old = contents(path)
    *copies, whole = killed_everywhere(step, path)
    new = contents(whole)
    assert new != old
    assert all(contents(copy) in (old, new) for copy in copies)
    assert_usable(whole, NEW_REPORTS if step == "confirm" else CLIENT_REPORTS)
    for copy in copies:
        after = contents(copy) == new and step == "confirm"
        assert_usable(copy, NEW_REPORTS if after else CLIENT_REPORTS)


def test_an_erasure_that_is_killed_anywhere_counts_what_it_erased_once(path: Path) -> None:
    full(path)
    spool = opened(path)
    changed(spool, NEW_REPORTS)
    spool.close()
    later = NOW + 100 * HOUR
    for copy in killed_everywhere("erase", path, later):
        spool = opened(copy)
        history = PlanHistory(spool)
        history.erase(later)
        assert (counts(spool).unknown, history.held) == (2, 0)
        spool.close()
        assert_usable(copy, NEW_REPORTS)


def test_a_change_on_a_full_disk_changes_nothing(path: Path) -> None:
    full(path)
    before = contents(path)
    spool = opened(path)
    (pages,) = spool.rows("PRAGMA page_count")[0]
    spool.rows(f"PRAGMA max_page_count = {pages + 1}")
    with pytest.raises(SpoolError, match="full"):
        PlanHistory(spool).take_up(NEW_REPORTS, None, NOW)
    spool.close()
    assert contents(path) == before
