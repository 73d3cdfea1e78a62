"""`hushsum release make`: from a file to a release, without a server."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest

import hushsum as hs
from hushsum.privacy.ledger import Ledger
from tests.hushsum_cli.calling import Hushsum
from tests.plans import classed_plan, client_plan, secure_plan, small_plan

NAMES: dict[str, object] = {"names": ["x", "y"]}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def files(plan: hs.Plan, rows: list[str], header: str = "y,x") -> tuple[str, ...]:
    Path("plan.json").write_bytes(plan.bundle)
    Path("data.csv").write_text("\n".join([header, *rows]) + "\n")
    return "release", "make", "data.csv", "--plan", "plan.json", "--ledger", "ledger.db", "-o", "today.hush"


def spent() -> float:
    with Ledger("ledger.db", read_only=True) as ledger:
        return float(ledger.spent.epsilon)


def test_a_file_becomes_a_release_and_the_ledger_is_charged(hushsum: Hushsum) -> None:
    make = files(small_plan(record=NAMES), ["7,3"] * 500)
    ended = hushsum(*make)
    assert ended.status == 0, ended.err
    release = hs.load("today.hush")
    assert release.accounted
    answer = release.kernel_sum([[3.0, 7.0]])
    assert answer.value[0] == pytest.approx(500, abs=6 * answer.std_error[0])
    assert spent() == 1
    out = " ".join(ended.out.split())
    assert f"{release.count:,.0f} ±" in out
    for part in ("spent epsilon 1", "left epsilon 99", "hushsum query today.hush --at 5,5"):
        assert part in out


def test_a_ledger_that_was_not_there_is_said_to_be_new(hushsum: Hushsum) -> None:
    make = files(small_plan(record=NAMES), ["7,3"])
    new = "NEW: ledger.db was created by this run: it counts no earlier release"
    assert new in " ".join(hushsum(*make).out.split())
    assert "NEW" not in hushsum(*make[:-1], "second.hush").out
    make = (*make[:6], "unspent.db", "-o")
    Ledger("unspent.db").close()
    assert "NEW: unspent.db had no spend before this run:" in " ".join(hushsum(*make, "third.hush").out.split())
    assert json.loads(hushsum(*make, "fourth.hush", "--json").out)["ledger_new"] is False


def test_columns_are_found_by_name_and_may_be_mapped(hushsum: Hushsum) -> None:
    make = files(small_plan(record=NAMES), ["7,1,3"] * 500, header="b,c,a")
    assert hushsum(*make).status == 1
    assert not Path("ledger.db").exists()
    assert hushsum(*make, "--columns", "x=a,y=b").status == 0
    assert hs.load("today.hush").kernel_sum([[3.0, 7.0]]).value[0] > 400


def test_an_existing_file_is_not_replaced_and_nothing_is_charged(hushsum: Hushsum) -> None:
    make = files(small_plan(record=NAMES), ["7,3"])
    Path("today.hush").write_text("precious")
    ended = hushsum(*make)
    assert (ended.status, Path("today.hush").read_text()) == (1, "precious")
    assert "today.hush already exists" in ended.err
    assert not Path("ledger.db").exists()


def test_a_spent_budget_is_one_error_and_nothing_is_written(hushsum: Hushsum) -> None:
    make = files(small_plan(record=NAMES, privacy={"total_epsilon": 1}), ["7,3"] * 5)
    assert hushsum(*make).status == 0
    Path("today.hush").unlink()
    before = sorted(Path.cwd().iterdir())
    ended = hushsum(*make)
    assert (ended.status, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert "earlier releases have spent the rest" in ended.err
    assert sorted(Path.cwd().iterdir()) == before
    assert spent() == 1


def test_records_that_are_left_out_or_clipped_are_warned_of_once(hushsum: Hushsum) -> None:
    make = files(small_plan(record=NAMES), ["7,3"] * 7 + ["7", ",3", "70,3"])
    ended = hushsum(*make)
    assert ended.status == 0
    assert ended.err.count("2 of 10 records were left out") == 1
    assert "line 9 of data.csv: 1 cell, expected 2" in ended.err
    assert ended.err.count("were clipped to them: y 1") == 1


@pytest.mark.parametrize(("rows", "warning"), [([",3", "1,"], "2 of 2 records were left out"), ([], "")])
def test_a_single_record_does_not_decide_whether_there_is_a_release(
    hushsum: Hushsum, rows: list[str], warning: str
) -> None:
    make = files(small_plan(record=NAMES), rows)
    ended = hushsum(*make)
    assert (ended.status, spent()) == (0, 1), ended.err
    assert warning in ended.err
    release = hs.load("today.hush")
    assert abs(release.count) < 100
    assert release.counters.any()  # the noise of a release, as of any other


def test_labels_and_clients_are_columns(hushsum: Hushsum) -> None:
    rows = ["7,3,a", "7,3,b", "7,3,a", "7,3,", "7,3,a"]
    make = files(classed_plan("a", "b", record=NAMES), rows, header="y,x,kind")
    ended = hushsum(*make)
    assert (ended.status, "--label-column is missing" in ended.err) == (2, True)
    ended = hushsum(*make, "--label-column", "kind", "--json")
    assert ended.status == 0, ended.err
    assert json.loads(ended.out)["left"] == {"epsilon": "99", "delta": "0"}
    make = files(client_plan(2), rows, header="y,x,kind")
    Path("today.hush").unlink()
    ended = hushsum(*make, "--by-position", "--client-column", "kind")
    assert (ended.status, spent()) == (1, 1)
    assert "would have 3 records" in ended.err
    assert "does not use it" in hushsum(*make, "--client-column", "kind", "--label-column", "kind").err


def test_a_plan_whose_clients_draw_the_noise_is_refused(hushsum: Hushsum) -> None:
    ended = hushsum(*files(secure_plan(record=NAMES), ["7,3"]))
    assert ended.status == 1
    assert "secure" in ended.err
    assert not Path("ledger.db").exists()


def test_a_folder_that_cannot_be_written_is_found_before_the_charge(hushsum: Hushsum) -> None:
    make = files(small_plan(record=NAMES), ["7,3"])
    ended = hushsum(*make[:-1], "nowhere/today.hush")
    assert ended.status == 1
    assert "no such directory" in ended.err
    assert not Path("ledger.db").exists()


def in_a_process(make: tuple[str, ...], first: str) -> list[str]:
    """The command line of `hushsum` in a process that runs other lines first."""
    lines = (
        "import os, signal, sys, time\n"
        "from pathlib import Path\n"
        "from hushsum.privacy.ledger import Ledger\n"
        "from hushsum.releases import Release\n"
        "kill = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"{first}\n"
        f"sys.argv = ['hushsum', *{list(make)!r}]\n"
        "from hushsum_cli.main import main\n"
        "main()\n"
    )
    return [sys.executable, "-c", lines]


@pytest.mark.parametrize(
    "killed",
    [
        pytest.param("Release.to_bytes = kill", id="before the file"),
        pytest.param("os.fsync = kill", id="while it is written"),
        pytest.param("os.link = kill", id="before it has its name"),
    ],
)
def test_a_kill_between_the_charge_and_the_file_costs_the_release_and_leaves_no_part_of_it(
    hushsum: Hushsum, sources_on_path: None, killed: str
) -> None:
    make = files(small_plan(record=NAMES), ["7,3"] * 5)
    ended = subprocess.run(in_a_process(make, killed), check=False, capture_output=True)
    assert ended.returncode == -signal.SIGKILL
    assert not Path("today.hush").exists()
    assert spent() == 1
    assert hushsum(*make).status == 0  # what is left pays for another one
    assert spent() == 2
    hs.load("today.hush")


def test_a_kill_after_the_file_has_its_name_leaves_the_whole_release(hushsum: Hushsum, sources_on_path: None) -> None:
    make = files(small_plan(record=NAMES), ["7,3"] * 5)
    ended = subprocess.run(in_a_process(make, "Path.unlink = kill"), check=False, capture_output=True)
    assert ended.returncode == -signal.SIGKILL
    hs.load("today.hush")
    assert (hushsum(*make).status, spent()) == (1, 1)


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_is_made_after_the_charge_is_not_replaced_and_the_release_gets_another_name(
    hushsum: Hushsum, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    make = files(small_plan(record=NAMES), ["7,3"])
    Path("today-2.hush").symlink_to("nothing")
    to_bytes = hs.Release.to_bytes

    def with_another(release: hs.Release) -> bytes:
        Path("today.hush").write_text("precious")
        return to_bytes(release)

    def without_links(*_: object) -> None:
        raise OSError(errno.EPERM, "no hard links here")

    monkeypatch.setattr(hs.Release, "to_bytes", with_another)
    if not links:
        monkeypatch.setattr(os, "link", without_links)
    ended = hushsum(*make)
    assert (ended.status, Path("today.hush").read_text(), spent()) == (1, "precious", 1)
    assert "this release is in today-3.hush" in " ".join(ended.err.split())
    assert not Path("nothing").exists()
    assert hs.load("today-3.hush").accounted
    assert not list(Path.cwd().glob(".today*"))


def test_two_runs_at_once_lose_no_release_that_was_charged(sources_on_path: None) -> None:
    make = files(small_plan(record=NAMES), ["7,3"])
    both = (
        "charge = Ledger.charge\n"
        "def charge_and_wait(ledger, *given):\n"
        "    charge(ledger, *given)\n"
        "    while len(ledger.events()) < 2: time.sleep(0.01)\n"
        "Ledger.charge = charge_and_wait"
    )
    runs = [subprocess.Popen(in_a_process(make, both), stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [run.communicate(timeout=300)[1] for run in runs]
    assert sorted(run.returncode for run in runs) == [0, 1], said
    assert "today-2.hush" in "".join(said)
    assert not np.array_equal(hs.load("today.hush").counters, hs.load("today-2.hush").counters)
    assert spent() == 2


@pytest.mark.parametrize("name", ["ledger.db", "ledger.db-wal", "ledger.db-shm", "ledger.db-journal"])
@pytest.mark.parametrize("ledger", ["ledger.db", "link.db"])
def test_an_output_that_is_a_file_of_the_ledger_is_refused(hushsum: Hushsum, name: str, ledger: str) -> None:
    make = files(small_plan(record=NAMES), ["7,3"])
    Path("link.db").symlink_to("ledger.db")
    ended = hushsum(*make[:6], ledger, "-o", name)
    assert (ended.status, "is the ledger or one of its SQLite files" in ended.err) == (2, True)
    assert not Path("ledger.db").exists()


def test_an_output_that_is_a_link_to_nothing_is_not_replaced(hushsum: Hushsum) -> None:
    make = files(small_plan(record=NAMES), ["7,3"])
    Path("today.hush").symlink_to("elsewhere.hush")
    assert "today.hush already exists" in hushsum(*make).err
    assert Path("today.hush").is_symlink()
    assert not Path("ledger.db").exists()


def interrupt(*_: object, **__: object) -> NoReturn:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("hushsum.releases.draw", "the ledger is charged, and this release is lost: nothing of it was shown"),
        ("os.fsync", "the ledger is charged, and this release is lost: nothing of it was shown"),
        ("hushsum.fsync.sync_folder", "the ledger is charged, and the release is in today.hush"),
        ("hushsum.privacy.ledger.Ledger.charge", ""),
    ],
)
def test_an_interrupted_run_says_whether_the_ledger_is_charged_and_where_the_release_is(
    hushsum: Hushsum, monkeypatch: pytest.MonkeyPatch, where: str, said: str
) -> None:
    make = files(small_plan(record=NAMES), ["7,3"])
    monkeypatch.setattr(where, interrupt)
    ended = hushsum(*make)
    assert ended.status == 130
    assert said in ended.err
    assert ("charged" in ended.err) == bool(spent()) == bool(said)
    assert Path("today.hush").exists() == ("is in" in said)


def test_a_full_disk_after_the_charge_is_one_error_that_says_so(
    hushsum: Hushsum, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = files(small_plan(record=NAMES), ["7,3"])

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    ended = hushsum(*make)
    assert (ended.status, spent()) == (1, 1)
    assert "today.hush: No space left on device; the ledger is charged, and this release is lost" in ended.err
    assert not list(Path.cwd().glob("*.hush*"))


def test_what_follows_a_model_is_its_fit(hushsum: Hushsum) -> None:
    bounds = ("--bounds", "x=-1:1", "--bounds", "y=-1:1")
    assert hushsum("plan", "init", *bounds, "--total-epsilon", "1", "--question", "regression").status == 0
    x = np.random.default_rng(0).uniform(-0.5, 0.5, 5000)
    Path("data.csv").write_text("\n".join(["x,y", *(f"{each},{each / 2}" for each in x)]))
    ended = hushsum("release", "make", "data.csv", "--plan", "plan.toml", "--ledger", "l.db", "-o", "m.hush")
    assert ended.status == 0, ended.err
    assert re.search(r"LinearRegressor.from_release\(hushsum.load\('m.hush'\)\)", "".join(ended.out.split()))


def test_a_cumulative_plan_is_refused_before_there_is_a_ledger(hushsum: Hushsum) -> None:
    make = files(small_plan(record=NAMES, window={"release": "cumulative", "horizon": 8}), ["7,3"])
    ended = hushsum(*make)
    assert (ended.status, ended.out) == (1, "")
    assert "`hushsum release make` makes no cumulative releases: use `hushsum serve`, or window.release =" in ended.err
    assert {path.name for path in Path().iterdir()} == {"plan.json", "data.csv"}
