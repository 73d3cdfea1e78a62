"""`serve`, `send`, `admin` and `release` against each other: a collection by hand, from a shell."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

import hushsum as hs
from hushsum_proto.messages import ReleaseInfo
from hushsum_simulator.console import Console
from hushsum_simulator.testbed.process import free_port
from tests.hushsum_cli.calling import Hushsum
from tests.plans import classed_plan, set_plan, small_plan

pytestmark = pytest.mark.usefixtures("sources_on_path")
#: It does not turn while a test runs.
ONE_WINDOW = {"length": "3660d"}


@contextmanager
def serving(folder: Path, plan: hs.Plan | None = None, *more: str) -> Iterator[str]:
    """`hushsum serve` in a process, with more arguments; gives the address that it says it listens at.

    Nobody else is given its port once it has stopped.
    """
    (folder / "plan.json").write_bytes((plan or small_plan(window=ONE_WINDOW)).bundle)
    listen = ("--listen", f"127.0.0.1:{free_port()}", "--metrics-listen", "127.0.0.1:0")
    arguments = ("--plan", "plan.json", "--data", "data", *listen)
    command = [sys.executable, "-m", "hushsum_cli", "serve", *arguments, *more, "--manual", "--log-format", "json"]
    environment = {**os.environ, "HUSHSUM_KERNELS": "plain"}  # compiled loops take half a second to load
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            said = json.loads(line)
            if said["event"] == "listening":
                yield said["grpc"]
                break
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def sealed_early(hushsum: Hushsum, address: str) -> int:
    """The window that is open, once it is sealed."""
    status = json.loads(hushsum("admin", "status", "--at", address, "--json").out)
    window = min(each["window"] for each in status["windows"] if each["state"] == "open")
    asked = ("--window", str(window), "--early", "--json")
    assert json.loads(hushsum("admin", "seal", "--at", address, *asked).out) == {"windows": [window]}
    return int(window)


def test_a_collection_by_hand(hushsum: Hushsum, tmp_path: Path, rng: np.random.Generator) -> None:
    records = rng.uniform(0, 10, (2500, 2))
    records[7, 1] = np.nan
    np.save(tmp_path / "records.npy", records)
    plan = small_plan(window=ONE_WINDOW)
    with serving(tmp_path, plan) as address:
        asked = ("--data", str(tmp_path / "records.npy"), "--to", address, "--spool", str(tmp_path / "spool.db"))
        sent = json.loads(hushsum("send", *asked, "--client-id", "till-3", "--json").out)
        assert (sent["records"], sent["records_dropped"]) == (2499, 1)
        assert sent["acknowledged"] == sent["deltas"] == sent["deltas_sent"] == 3

        status = json.loads(hushsum("admin", "status", "--at", address, "--json").out)
        window = status["windows"][0]["window"]
        assert status["plan_id"] == plan.hex_id
        assert hushsum("admin", "release", "--at", address).status == 1  # not sealed yet
        too_soon = hushsum("admin", "seal", "--at", address)
        assert (too_soon.status, too_soon.out) == (1, "")
        assert f"window {window} is not over: it ends at " in too_soon.err
        assert hushsum("admin", "seal", "--at", address, "--early").status == 2
        assert hushsum("admin", "seal", "--at", address, "--window", str(window)).status == 1
        assert sealed_early(hushsum, address) == window
        late = hushsum("send", *asked)  # 3 deltas of a sealed window
        assert (late.status, late.out) == (1, "2,499 records, 1 dropped in 3 deltas: 3 late\n")
        assert "not counted: 3 deltas arrived after their window was sealed (late)" in late.err
        released = json.loads(hushsum("admin", "release", "--at", address, "--window", str(window), "--json").out)
        assert (released["epsilon_spent"], released["epsilon_left"]) == ("1", "99")
        assert f"window {window}" in hushsum("admin", "status", "--at", address).out

        (listed,) = json.loads(hushsum("release", "list", "--from", address, "--json").out)
        assert (listed["window"], listed["outcome"]) == (window, "released")
        shown = hushsum("release", "list", "--from", address).out
        assert str(window) in shown
        over = datetime.fromtimestamp((plan.window.end_ms(window + 1) + plan.window.lateness_ms) / 1000, UTC)
        assert f"next outcome: window {window + 1}, due at {over:%Y-%m-%d %H:%M:%S} (UTC)\n" in shown
        out = tmp_path / "today.hush"
        assert hushsum("release", "get", "--from", address, "-o", str(out)).status == 0
        missing = hushsum("release", "get", "--from", address, "--window", str(window + 1))
        assert missing.status == 1
        assert f"no outcome of window {window + 1}" in missing.err
    release = hs.load(out)
    assert release.window == window
    # Discrete Laplace of scale 21 on a count of scale 2: 200 is farther than one in 10^8 releases go.
    assert abs(release.count - 2499) < 200


@pytest.mark.parametrize("delta", ["0", "0.000001"])
def test_a_cumulative_collection_by_hand(
    hushsum: Hushsum, tmp_path: Path, rng: np.random.Generator, delta: str
) -> None:
    keys = {"unit": "client", "records_per_client": 2, "epsilon": 2, "delta": delta, "total_delta": delta}
    window = {**ONE_WINDOW, "release": "cumulative", "horizon": 2, "windows_per_client": 1}
    plan = small_plan(privacy=keys, window=window)
    np.save(tmp_path / "records.npy", rng.uniform(0, 10, (2, 2)))
    with serving(tmp_path, plan) as address:
        spools = [str(tmp_path / f"{number}.db") for number in range(2)]
        asked = ("--data", str(tmp_path / "records.npy"), "--to", address)
        sent = [json.loads(hushsum("send", *asked, "--spool", spool, "--json").out) for spool in spools]
        assert [(each["records"], each["acknowledged"]) for each in sent] == [(2, 1)] * 2
        first = sealed_early(hushsum, address)
        released = json.loads(hushsum("admin", "release", "--at", address, "--json").out)
        assert (released["window"], released["outcome"]) == (first, "released")
        again = hushsum("admin", "release", "--at", address, "--window", str(first), "--json")
        assert json.loads(again.out) == released
        shown = hushsum("release", "list", "--from", address).out
        assert f"next outcome: window {first + 1}, due at " in shown
        assert shown.endswith(" (UTC); 1 of 2 outcomes so far\n")
        out = tmp_path / "first.hush"
        assert hushsum("release", "get", "--from", address, "-o", str(out)).status == 0
        status = hushsum("admin", "status", "--at", address)
        assert (status.status, "spent" in status.out) == (0, True)
        ledger = json.loads(hushsum("admin", "ledger", "--at", address, "--json").out)
        (spend,) = ledger["spends"]
        assert (spend["kind"], spend.get("window"), ledger["spends_total"]) == ("cumulative", None, 1)
        assert hushsum("admin", "ledger", "--at", address).status == 0
    release = hs.load(out)
    assert (release.kind, release.step, release.first_window, release.window) == ("cumulative", 1, first, first)


def test_get_says_when_the_first_outcome_is_due(hushsum: Hushsum, tmp_path: Path) -> None:
    plan = small_plan(window={**ONE_WINDOW, "lateness": "2m"})
    with serving(tmp_path, plan) as address:
        status = json.loads(hushsum("admin", "status", "--at", address, "--json").out)
        window = min(each["window"] for each in status["windows"] if each["state"] == "open")
        ended = hushsum("release", "get", "--from", address)
        assert sealed_early(hushsum, address) == window
        sealed = hushsum("release", "get", "--from", address)
        listed = hushsum("release", "list", "--from", address)
    over = datetime.fromtimestamp(plan.window.end_ms(window) / 1000 + 120, UTC)
    due = f"next outcome: window {window}, due at {over:%Y-%m-%d %H:%M:%S} (UTC)"
    assert (ended.status, ended.out) == (1, "")
    assert f"no release is published yet; {due}; to wait for it, use --wait\n" in ended.err
    assert f"; next outcome: window {window}, sealed and not published yet; " in sealed.err
    assert listed.out.endswith(f"next outcome: window {window}, sealed and not published yet\n")


def releasing_first(outcomes: int | None = None) -> Callable[..., AsyncIterator[ReleaseInfo]]:
    """`Console.watch`, once the service has released a window; it ends after so many outcomes."""
    listen = Console.watch

    async def watch(console: Console, first_window: int | None = None) -> AsyncIterator[ReleaseInfo]:
        await console.release()
        heard = 0
        async for info in listen(console, first_window):
            yield info
            heard += 1
            if heard == outcomes:
                return

    return watch


def test_get_waits_for_an_outcome_that_is_not_published_yet(
    hushsum: Hushsum, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits, listen = list[int | None](), releasing_first()

    def watch(console: Console, first_window: int | None = None) -> AsyncIterator[ReleaseInfo]:
        waits.append(first_window)
        return listen(console, first_window)

    monkeypatch.setattr(Console, "watch", watch)
    out = tmp_path / "today.hush"
    with serving(tmp_path) as address:
        window = sealed_early(hushsum, address)
        asked = ("--from", address, "-o", str(out))
        assert hushsum("release", "get", *asked).status == 1
        assert not waits
        assert hushsum("release", "get", *asked, "--wait").status == 0
        assert hs.load(out).window == window
        assert hushsum("release", "get", *asked, "--wait", "--window", str(window)).status == 0, "it is published"
    assert waits == [None]


def test_get_waits_for_more_than_a_withheld_window_unless_it_names_it_and_ends_with_the_service(
    hushsum: Hushsum, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Console, "watch", releasing_first(1))
    with serving(tmp_path, small_plan(window={**ONE_WINDOW, "min_clients": 10**6})) as address:
        window = sealed_early(hushsum, address)
        newest = hushsum("release", "get", "--from", address, "--wait")
        named = hushsum("release", "get", "--from", address, "--wait", "--window", str(window))
    assert (newest.status, newest.out) == (named.status, named.out) == (1, "")
    assert f"{address}: the service has stopped; try again" in newest.err
    assert f"window {window} is withheld: it has too few clients" in named.err


def test_get_does_not_wait_for_an_outcome_that_never_comes(
    hushsum: Hushsum, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A window from before the first one, and one for which the horizon has no place, before and while it waits."""
    plan = small_plan(window={**ONE_WINDOW, "release": "cumulative", "horizon": 1})
    with serving(tmp_path, plan) as address:
        window = sealed_early(hushsum, address)
        earlier = ("release", "get", "--from", address, "--window", str(window - 1), "--wait")
        later = ("release", "get", "--from", address, "--window", str(window + 1), "--wait")
        ended = hushsum(*earlier)
        assert f"no outcome of window {window - 1} was published, and later ones follow; next outcome:" in ended.err
        with monkeypatch.context() as patched:
            patched.setattr(Console, "watch", releasing_first())
            waited = hushsum(*later)
        assert (waited.status, waited.out) == (1, "")
        assert f" {window + 1} was published, and none will be after that of window {window}\n" in waited.err
        for ended in (hushsum(*later), hushsum(*later[:-1]), hushsum(*earlier)):
            assert "was published, and the sequence is complete\n" in ended.err


def test_a_withheld_window_says_so_to_operators_and_analysts(hushsum: Hushsum, tmp_path: Path) -> None:
    with serving(tmp_path, small_plan(window={**ONE_WINDOW, "min_clients": 10**6})) as address:
        status = json.loads(hushsum("admin", "status", "--at", address, "--json").out)
        window = status["windows"][0]["window"]
        sealed_early(hushsum, address)
        ended = hushsum("admin", "release", "--at", address)
        assert f"window {window} is withheld (too few clients): ε = 0.05 spent" in ended.out
        told = json.loads(hushsum("admin", "release", "--at", address, "--window", str(window), "--json").out)
        assert (told["outcome"], told["epsilon_spent"], told["bytes"]) == ("withheld", "0.05", 0)
        (listed,) = json.loads(hushsum("release", "list", "--from", address, "--json").out)
        assert (listed["window"], listed["outcome"], listed["bytes"], listed["sha256"]) == (
            window,
            "withheld",
            None,
            None,
        )
        assert "withheld" in hushsum("release", "list", "--from", address).out
        named = hushsum("release", "get", "--from", address, "--window", str(window))
        assert (named.status, named.err.count("\n")) == (1, 1)
        assert f"window {window} is withheld: it has too few clients" in named.err
        newest = hushsum("release", "get", "--from", address)
        assert newest.status == 1
        assert "no release is published yet" in newest.err


def test_records_that_do_not_fit_the_plan_are_not_sent(hushsum: Hushsum, tmp_path: Path) -> None:
    (tmp_path / "records.csv").write_text("a,b,c\n1,2,3\n")
    with serving(tmp_path) as address:
        asked = ("--data", str(tmp_path / "records.csv"), "--to", address, "--spool", str(tmp_path / "spool.db"))
        ended = hushsum("send", *asked)
        assert ended.status == 1
        assert "the plan has no names for its 2 columns" in ended.err
        labelled = hushsum("send", *asked, "--label-column", "c")
        assert labelled.status == 1
        assert "the plan has no classes" in labelled.err
        refused = hushsum("send", *asked, "--columns", "a,b", "--max-epsilon", "0.5")
        assert refused.status == 1
        assert "max_epsilon" in refused.err
        assert hushsum("send", *asked, "--columns", "a,b", "--max-epsilon", "1").status == 0


def test_a_table_is_not_sent_to_a_plan_of_sets(hushsum: Hushsum, tmp_path: Path) -> None:
    (tmp_path / "records.csv").write_text("a,b\n1,2\n")
    with serving(tmp_path, set_plan()) as address:
        asked = ("--data", str(tmp_path / "records.csv"), "--to", address, "--spool", str(tmp_path / "spool.db"))
        ended = hushsum("send", *asked)
    assert (ended.status, ended.out, ended.err.count("\n")) == (1, "", 1)
    assert "tables cannot hold sets, which the plan collects" in ended.err


def test_a_labelled_file_is_collected_class_by_class(
    hushsum: Hushsum, tmp_path: Path, rng: np.random.Generator
) -> None:
    # Labels are integers in the file; 9 is no class of the plan, and one label is missing.
    labels = np.array(["1", "2", "9", ""])[rng.choice(4, 1500, p=[0.6, 0.3, 0.05, 0.05])]
    lines = [f"{x},{label},{y}" for (x, y), label in zip(rng.uniform(0, 10, (1500, 2)), labels, strict=True)]
    (tmp_path / "records.csv").write_text("\n".join(["x,kind,y", *lines]) + "\n")
    with serving(tmp_path, classed_plan("1", "2", "3", record={"names": ["x", "y"]}, window=ONE_WINDOW)) as address:
        asked = ("--data", str(tmp_path / "records.csv"), "--to", address, "--spool", str(tmp_path / "spool.db"))
        unlabelled = hushsum("send", *asked, "--columns", "x,y")
        assert (unlabelled.status, unlabelled.err.count("\n")) == (1, 1)
        assert "the plan has classes ('1', '2', '3'): --label-column is required" in unlabelled.err
        missing = hushsum("send", *asked, "--label-column", "colour")
        assert "no column 'colour'; it has x, kind, y" in missing.err
        sent = json.loads(hushsum("send", *asked, "--label-column", "kind", "--json").out)
        usable = int(np.isin(labels, ["1", "2"]).sum())
        assert (sent["records"], sent["records_dropped"]) == (usable, 1500 - usable)
        sealed_early(hushsum, address)
        assert hushsum("admin", "release", "--at", address).status == 0
        assert hushsum("release", "get", "--from", address, "-o", str(tmp_path / "today.hush")).status == 0
    release = hs.load(tmp_path / "today.hush")
    for label in ("1", "2", "3"):  # discrete Laplace of scale 21 on counts of scale 2: farther is rarer than 10^-8
        assert abs(release.count_of(label) - np.count_nonzero(labels == label)) < 200


def test_a_complete_sequence_has_no_next_outcome(hushsum: Hushsum, tmp_path: Path) -> None:
    plan = small_plan(window={**ONE_WINDOW, "release": "cumulative", "horizon": 1})
    with serving(tmp_path, plan) as address:
        sealed_early(hushsum, address)
        assert hushsum("admin", "release", "--at", address).status == 0
        shown = hushsum("release", "list", "--from", address).out
    assert shown.endswith("sequence complete: 1 of 1 outcomes\n")
    assert "next outcome" not in shown
