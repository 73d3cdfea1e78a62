"""`hushsum ledger show`, on the ledgers of analysts."""

import json
import sqlite3
from contextlib import closing
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import hushsum as hs
from hushsum.privacy.accountant import Limits
from hushsum_cli.ledger import ledger
from tests.hushsum.privacy.spends import claimed, gaussian, spend, with_test

LEDGER_V1 = Path(__file__).parents[1] / "hushsum/privacy/ledger_v1.sql"
LIMITS = Limits("", "record", "add/remove", Fraction(3), Fraction(1, 10**6))


def show(*arguments: str) -> Result:
    return CliRunner().invoke(ledger, ["show", *arguments])


def test_it_shows_every_spend_and_what_is_left_in_plain_words(tmp_path: Path) -> None:
    path = str(tmp_path / "ledger.db")
    with hs.Ledger(path) as opened:
        opened.charge(replace(spend(Fraction(1, 5), window=7), plan_id="ab" * 32), LIMITS)
        opened.charge(gaussian(Fraction(1, 50)), LIMITS)
        statement = opened.statement()
    said = show(path)
    assert said.exit_code == 0
    assert "abababababab" in said.output
    assert "tumbling" in said.output
    assert "in 2 spends" in said.output
    told = json.loads(show(path, "--json").output)
    assert told["statement"] == statement
    assert told["limits"] == {
        "population": "",
        "unit": "record",
        "relation": "add/remove",
        "epsilon": "3",
        "delta": "1e-6",
    }
    assert told["left"]["delta"] == "0"
    assert Fraction(told["spent"]["epsilon"]) + Fraction(told["left"]["epsilon"]) >= 3
    assert [item["kind"] for item in told["spends"]] == ["tumbling", "in-process"]


def test_each_spend_has_its_mechanisms_with_scales_and_the_delta_that_epsilon_is_counted_at(tmp_path: Path) -> None:
    path = str(tmp_path / "ledger.db")
    with hs.Ledger(path) as opened:
        opened.charge(with_test(Fraction(1, 50), Fraction(1, 20), window=498691), LIMITS)
        opened.charge(claimed(Fraction(1, 10), Fraction(0)), LIMITS)
    table = show(path).output.partition("The population")[0]
    lines = [" ".join(line.split()) for line in table.splitlines() if line.split()]
    assert lines[:3] == ["ε at the", "kind unit mechanism total δ,", "plan window relation scale 1e-6 δ"]
    assert lines[4].startswith("000000000000 tumbling record discrete-laplace 0.9")
    assert lines[4].endswith(" 1e-6")
    assert lines[5:] == [
        "498691 add/remove b = 20",
        "discrete-gaussian",
        "σ² = 400",
        "000000000000 in-process record discrete-laplace 0.1 0",
        "add/remove",
    ]
    pure = str(tmp_path / "pure.db")
    with hs.Ledger(pure) as opened:
        opened.charge(spend(), replace(LIMITS, delta=Fraction(0)))
    assert "total δ" not in show(pure).output
    assert "b = 1 " in show(pure).output


def test_a_new_ledger_says_that_nothing_was_charged(tmp_path: Path) -> None:
    path = str(tmp_path / "ledger.db")
    hs.Ledger(path).close()
    assert show(path).output.strip() == "Nothing has been charged to this ledger, and no limits are set."
    assert json.loads(show(path, "--json").output)["limits"] is None


def test_a_file_that_is_not_there_is_not_made(tmp_path: Path) -> None:
    assert show(str(tmp_path / "none.db")).exit_code == 2
    assert not list(tmp_path.iterdir())


def test_looking_changes_nothing_not_even_the_version_of_an_older_file(tmp_path: Path) -> None:
    old = tmp_path / "old.db"
    with closing(sqlite3.connect(old)) as database:
        database.executescript(LEDGER_V1.read_text("utf-8"))
    before = old.read_bytes()
    assert show(str(old)).exit_code == 0
    assert old.read_bytes() == before
    empty = tmp_path / "empty.db"
    empty.touch()
    with pytest.raises(hs.LedgerError, match="not a ledger"):
        raise show(str(empty)).exception or AssertionError("it was taken for a ledger")
    assert empty.read_bytes() == b""
