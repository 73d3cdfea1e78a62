"""The analysts' ledger: durable, exact over restarts, and one limit for all processes."""

import gc
import sqlite3
import subprocess
import sys
import warnings
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from hushsum.errors import BudgetError, LedgerError
from hushsum.privacy.accountant import Account, Limits
from hushsum.privacy.events import ClaimedEvent, Spend
from hushsum.privacy.ledger import FORMAT_VERSION, Ledger
from hushsum.privacy.relations import FREE, Cost
from hushsum.privacy.zcdp import epsilon_of
from tests.hushsum.privacy.spends import gaussian, spend

LIMITS = Limits(
    population="patients", unit="record", relation="add/remove", epsilon=Fraction(3), delta=Fraction(1, 1000)
)
SPEND = replace(spend(Fraction(1, 3)), population="patients", plan_id="ab" * 32)
OLD = replace(SPEND, events=(ClaimedEvent("discrete-laplace", Fraction(1, 3), Fraction(0)),))


def costing(epsilon: Fraction) -> Spend:
    return replace(SPEND, events=spend(epsilon).events)


def windowed(window: int) -> Spend:
    return replace(SPEND, kind="tumbling", window=window)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def test_a_new_ledger_has_spent_nothing_and_has_no_limits(path: Path) -> None:
    with Ledger(path) as ledger:
        assert ledger.spent == FREE
        assert ledger.left is None
        assert ledger.limits is None
        assert ledger.events() == ()
        assert "Nothing has been charged" in ledger.statement()


def test_what_was_charged_is_there_after_a_restart_exactly(path: Path) -> None:
    with Ledger(path) as ledger:
        for _ in range(3):
            ledger.charge(SPEND, LIMITS)
    with Ledger(str(path)) as ledger:
        assert ledger.spent == Cost(Fraction(1), Fraction(0))
        assert ledger.left == Cost(Fraction(2), Fraction(1, 1000))
        assert ledger.limits == LIMITS
        assert ledger.events() == (SPEND,) * 3
        assert ledger.total("record", "replace") == Cost(Fraction(2), Fraction(0))
        assert ledger.total("client", "add/remove") is None


def test_a_refused_charge_writes_nothing_not_even_limits(path: Path) -> None:
    with Ledger(path) as ledger:
        with pytest.raises(BudgetError):
            ledger.charge(costing(Fraction(4)), LIMITS)
        assert ledger.left is None
        ledger.charge(SPEND, LIMITS)
        with pytest.raises(BudgetError):
            ledger.charge(SPEND, replace(LIMITS, epsilon=Fraction(1, 2)))
        assert ledger.limits == LIMITS
    with Ledger(path) as ledger:
        assert ledger.events() == (SPEND,)
        assert ledger.limits == LIMITS


def test_a_ledger_may_be_charged_up_to_its_limit_and_not_beyond(path: Path) -> None:
    with Ledger(path) as ledger:
        for _ in range(9):
            ledger.charge(SPEND, LIMITS)
        assert ledger.left == Cost(Fraction(0), Fraction(1, 1000))
        with pytest.raises(BudgetError, match="0 of 3 is left"):
            ledger.charge(costing(Fraction(1, 10**12)), LIMITS)


def test_no_window_is_charged_twice_not_even_after_a_restart(path: Path) -> None:
    with Ledger(path) as ledger:
        ledger.charge(windowed(3), LIMITS)
        ledger.charge(windowed(1), LIMITS)
        assert ledger.spent.epsilon == Fraction(1, 3)
    with Ledger(path) as ledger, pytest.raises(BudgetError, match="already charged"):
        ledger.charge(windowed(3), LIMITS)


def test_the_file_itself_refuses_a_window_that_was_charged(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Account, "_holds_window", lambda self, spend: False)
    with Ledger(path) as ledger:
        ledger.charge(windowed(3), LIMITS)
        with pytest.raises(LedgerError, match="UNIQUE constraint"):
            ledger.charge(windowed(3), LIMITS)
        ledger.charge(windowed(4), LIMITS)
        assert [spend.window for spend in ledger.events()] == [3, 4]


def test_a_registration_lowers_the_limits_and_never_raises_them(path: Path) -> None:
    lower = replace(LIMITS, epsilon=Fraction(2))
    with Ledger(path) as ledger, Ledger(path) as other:
        ledger.register(LIMITS)
        assert other.limits == LIMITS
        other.register(lower)
        assert ledger.limits == lower
        with pytest.raises(BudgetError, match="cannot be raised"):
            ledger.register(LIMITS)
        with pytest.raises(BudgetError, match="cannot be raised"):
            ledger.charge(SPEND, LIMITS)


def test_a_ledger_belongs_to_one_population(path: Path) -> None:
    with Ledger(path) as ledger:
        ledger.register(LIMITS)
        with pytest.raises(BudgetError, match="the plan names population 'staff'"):
            ledger.charge(replace(SPEND, population="staff"), replace(LIMITS, population="staff"))


def test_two_connections_see_each_others_charges(path: Path) -> None:
    with Ledger(path) as one, Ledger(path) as two:
        for _ in range(4):
            one.charge(SPEND, LIMITS)
            two.charge(SPEND, LIMITS)
        assert one.spent == two.spent == Cost(Fraction(8, 3), Fraction(0))
        one.charge(SPEND, LIMITS)
        with pytest.raises(BudgetError):
            two.charge(SPEND, LIMITS)


RACE = """
import sys
import warnings
from dataclasses import replace
from fractions import Fraction
from hushsum.errors import BudgetError
from hushsum.privacy.ledger import Ledger
from tests.hushsum.privacy.test_ledger import LIMITS, SPEND
print("ready", flush=True)
sys.stdin.readline()  # until all are
passed = 0
for _ in range(20):
    with Ledger(sys.argv[1]) as ledger:
        try:
            ledger.charge(SPEND, LIMITS)
            passed += 1
        except BudgetError:
            pass
print(passed)
"""


def test_processes_that_race_on_a_new_file_never_pass_the_limit_together(path: Path) -> None:
    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", RACE, str(path)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    racers = [start() for _ in range(3)]
    for racer in racers:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write("go\n")
        racer.stdin.flush()
    passed = [int(racer.communicate(timeout=300)[0]) for racer in racers]
    assert [racer.returncode for racer in racers] == [0, 0, 0]
    assert sum(passed) == 9, passed
    with Ledger(path) as ledger:
        assert ledger.spent == Cost(Fraction(3), Fraction(0))


def test_every_connection_is_wal_and_syncs_in_full(path: Path) -> None:
    with Ledger(path) as ledger:
        assert ledger._pragma("journal_mode") == "wal"
        assert ledger._pragma("synchronous") == 2


@pytest.mark.parametrize("name", ("synchronous", "journal_mode"))
def test_a_connection_that_would_not_survive_power_loss_is_refused(
    path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = Ledger._pragma
    planted = {"synchronous": 1, "journal_mode": "delete"}
    monkeypatch.setattr(Ledger, "_pragma", lambda self, asked: planted[asked] if asked == name else true(self, asked))
    with pytest.raises(LedgerError, match=name):
        Ledger(path)


def test_a_ledger_in_memory_is_refused() -> None:
    with pytest.raises(LedgerError, match="journal_mode is 'memory'"):
        Ledger(":memory:")


def test_a_newer_version_is_refused(path: Path) -> None:
    Ledger(path).close()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("PRAGMA user_version = 3")
    db.close()
    with pytest.raises(LedgerError, match="ledger format 3; this version of Hushsum supports 2"):
        Ledger(path)


def test_another_sqlite_file_is_refused_and_left_alone(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE mine (x)")
    db.close()
    with pytest.raises(LedgerError, match="not a ledger"):
        Ledger(path)
    with closing(sqlite3.connect(path)) as db, db:
        assert db.execute("SELECT name FROM sqlite_schema").fetchall() == [("mine",)]
    db.close()


def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.write_text("not a database, and long enough not to look like an empty one" * 20)
    with pytest.raises(LedgerError, match="cannot be opened as a ledger"):
        Ledger(path)


@pytest.fixture
def first_version(path: Path) -> Path:
    with closing(sqlite3.connect(path)) as db, db:
        db.executescript((Path(__file__).parent / "ledger_v1.sql").read_text())
    db.close()
    return path


def test_a_ledger_written_by_the_first_version_is_read(first_version: Path) -> None:
    with Ledger(first_version) as ledger:
        assert ledger.limits == LIMITS
        assert ledger.events() == (OLD, replace(OLD, kind="tumbling", window=7))
        assert ledger.spent == Cost(Fraction(2, 3), Fraction(0))


def test_a_ledger_of_the_first_version_goes_on_as_one_of_this(first_version: Path) -> None:
    with Ledger(first_version) as ledger:
        with pytest.raises(BudgetError, match="already charged"):
            ledger.charge(windowed(7), LIMITS)
        ledger.charge(SPEND, LIMITS)
        assert ledger._pragma("user_version") == FORMAT_VERSION
    with Ledger(first_version) as ledger:
        assert ledger.spent == Cost(Fraction(1), Fraction(0))
        assert ledger.events()[-1] == SPEND


def test_zcdp_spends_are_there_after_a_restart_exactly(path: Path) -> None:
    with Ledger(path) as ledger:
        for window in range(3):
            ledger.charge(replace(windowed(window), events=gaussian(Fraction(1, 7)).events), LIMITS)
        ledger.charge(replace(SPEND, events=gaussian(Fraction(1, 9)).events), LIMITS)
        spent = ledger.spent
    assert spent == Cost(epsilon_of(Fraction(1, 7) + Fraction(1, 9), LIMITS.delta), LIMITS.delta)
    with Ledger(path) as ledger:
        assert ledger.spent == spent


def test_the_statement_tells_what_is_spent_and_left_in_plain_words(path: Path) -> None:
    with Ledger(path) as ledger:
        ledger.charge(costing(Fraction(1, 2)), LIMITS)
        assert ledger.statement() == (
            "Population 'patients': spent ε = 0.5, δ = 0 in 1 spend, for unit record under add/remove. An observer who "
            "believes with 50 % that one record is included can afterwards believe it with at most 62.3 %. Left: ε = "
            "2.5 of 3, δ = 0.001 of 0.001. This suffices for 5 more such releases. Releases that were not charged here "
            "are not included."
        )


def test_a_ledger_of_records_that_client_spends_passed_under_an_earlier_rule_opens_and_pays_for_nothing(
    path: Path,
) -> None:
    of_clients = replace(costing(Fraction(1)), unit="client")
    with Ledger(path) as ledger:
        ledger.register(LIMITS)
    with closing(sqlite3.connect(path)) as db, db:  # an earlier version counted each for 1, and 3 is the limit
        db.executemany(
            "INSERT INTO spend (plan_id, kind, fields) VALUES (?, ?, ?)",
            [(of_clients.plan_id, of_clients.kind, of_clients.to_bytes())] * 2,
        )
    db.close()
    with Ledger(path) as ledger:
        assert ledger.spent.epsilon == 4
        assert ledger.left == Cost(Fraction(0), Fraction(1, 1000))
        assert ledger.events() == (of_clients,) * 2
        assert "exceeds the limits" in ledger.statement()
        assert "Left: ε = 0 of 3" in ledger.statement()
        ledger.register(LIMITS)
        with pytest.raises(BudgetError, match=r"0 of 3 is left"):
            ledger.charge(SPEND, LIMITS)


def test_a_ledger_that_nobody_holds_any_more_is_closed(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Ledger(path).charge(SPEND, LIMITS)
        gc.collect()
    with Ledger(path) as ledger:
        assert ledger.events() == (SPEND,)


def test_a_ledger_that_cannot_be_written_or_read_is_an_error_of_one_line(path: Path) -> None:
    with Ledger(path) as ledger:
        ledger.charge(SPEND, LIMITS)
    with Ledger(path, read_only=True) as ledger:
        with pytest.raises(LedgerError, match=r"ledger\.db: the ledger cannot be written: .*readonly"):
            ledger.charge(SPEND, LIMITS)
        with pytest.raises(LedgerError, match=r"ledger\.db: the ledger cannot be written: .*readonly"):
            ledger.register(LIMITS)
        assert ledger.events() == (SPEND,)
    with Ledger(path) as ledger:
        with closing(sqlite3.connect(path)) as other:
            other.execute("DROP TABLE spend")
        with pytest.raises(LedgerError, match=r"ledger\.db: the ledger cannot be read: no such table: spend"):
            _ = ledger.spent
