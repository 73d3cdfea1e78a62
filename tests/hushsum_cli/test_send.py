"""`hushsum send`: what it sends, what it tells, and that it hides no client of a secure sum, whatever its records."""

import asyncio
import json
import re
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from edge_client import EdgeClient
from hushsum.families.vectors import Box
from hushsum.signed_plan import SignedPlan, signature_file
from hushsum.signing import DirectoryKey, Role, SigningKey, toml_of
from tests.edge_client.secure_plans import directory_of, keys_of
from tests.hushsum_cli.calling import Hushsum
from tests.hushsum_cli.test_service_commands import ONE_WINDOW, serving
from tests.plans import small_plan

pytestmark = pytest.mark.usefixtures("sources_on_path")
NAMED = {"names": ["a", "b"]}


def kept(spool: Path) -> tuple[dict[str, int], int]:
    """What the spool has counted, and how many deltas wait in it."""
    database = sqlite3.connect(spool)
    try:
        (waiting,) = database.execute("SELECT count(*) FROM deltas").fetchone()
        return dict(database.execute("SELECT name, count FROM tallies WHERE count > 0")), waiting
    finally:
        database.close()


WRONG = (
    ("a,b\n", "expected at least one record"),
    ("a,b,c\n1,2,3\n", "columns a, b, c, the plan has a, b (not in the plan: c)"),
    ("a,b\none,two\n", "column 'a' contains str"),
)


def test_of_a_file_that_does_not_fit_the_plan_nothing_is_sent(hushsum: Hushsum, tmp_path: Path) -> None:
    data = tmp_path / "records.csv"
    with serving(tmp_path, small_plan(record=NAMED, window=ONE_WINDOW)) as address:
        for number, (text, message) in enumerate(WRONG):
            data.write_text(text)
            spool = tmp_path / f"{number}.db"
            ended = hushsum("send", "--data", str(data), "--to", address, "--spool", str(spool), "--timeout", "60")
            assert (ended.status, ended.out, ended.err.count("\n")) == (1, "", 1)
            assert message in ended.err
            assert kept(spool) == ({}, 0)


def test_what_is_wrong_with_the_records_is_told_also_where_no_service_answers(hushsum: Hushsum, tmp_path: Path) -> None:
    data, spool = tmp_path / "records.csv", tmp_path / "spool.db"
    data.write_text("a,b\n1,2\n")
    with serving(tmp_path, small_plan(record=NAMED, window=ONE_WINDOW)) as address:
        asked = ("send", "--data", str(data), "--to", address, "--spool", str(spool), "--timeout")
        assert hushsum(*asked, "60").status == 0
    assert kept(spool) == ({"acknowledged": 1, "deltas": 1, "records": 1}, 0)
    data.write_text("a,b\n")
    ended = hushsum(*asked, "0.2")
    assert (ended.status, ended.err.count("\n")) == (1, 1)
    assert "expected at least one record" in ended.err


def test_the_last_line_is_of_this_run_and_all_shows_the_spools_life(
    hushsum: Hushsum, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, spool = tmp_path / "records.csv", tmp_path / "spool.db"
    data.write_text("a,b\n1,2\n3,4\n")
    plan = small_plan(record=NAMED, window=ONE_WINDOW)
    with serving(tmp_path, plan) as address:
        asked = ("send", "--data", str(data), "--spool", str(spool), "--to")
        assert hushsum(*asked, address).out == "2 records: 2 acknowledged\n"
    with monkeypatch.context() as patch:
        patch.setattr("hushsum_cli.send._TIMEOUT_S", 0.2)
        unanswered = hushsum(*asked, address)  # waits for no longer than that
    assert (unanswered.status, unanswered.out) == (1, "")
    assert "1 deltas have no answer after 0.2 s" in unanswered.err
    assert kept(spool)[1] == 1  # it waits for the next run
    data.write_text("a,b\n5,6\n7,8\n9,9\n")
    with serving(tmp_path, plan) as address:
        ended = hushsum(*asked, address)
        assert (ended.status, ended.err) == (0, "")
        assert ended.out == "deltas of earlier runs: 1 acknowledged\n3 records: 3 acknowledged\n"
        of_run = json.loads(hushsum(*asked, address, "--json").out)
        whole = json.loads(hushsum(*asked, address, "--all", "--json").out)
        shown = hushsum(*asked, address, "--all").out
    assert (of_run["records"], of_run["deltas"], of_run["acknowledged"]) == (3, 1, 1)
    assert (whole["records"], whole["deltas"], whole["acknowledged"]) == (13, 5, 5)
    assert shown.splitlines()[0].split() == ["records", "16"]


def test_records_are_read_once_and_warned_of_once(
    hushsum: Hushsum, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, read, original = tmp_path / "records.csv", [], Box.read

    def counting(box: Box, records: Any) -> Any:
        read.append(len(records))
        return original(box, records)

    monkeypatch.setattr(Box, "read", counting)
    data.write_text("a,b\n" + "1,2\n" * 1500 + "1,\n99,2\n1,2,3\n" + "1,2\n" * 997)
    with serving(tmp_path, small_plan(record=NAMED, window=ONE_WINDOW)) as address:
        ended = hushsum("send", "--data", str(data), "--to", address, "--spool", str(tmp_path / "spool.db"))
    assert ended.out == "2,498 records, 2 dropped: 2,498 acknowledged\n"
    dropped, clipped = ended.err.splitlines()
    assert "2 of 2500 records were left out: 2 cannot be read" in dropped
    assert "such as line 1504 of records.csv: 3 cells, expected 2" in dropped
    assert "1 (0.04 %) of 2500 records lay outside the plan's bounds and were clipped to them: a 1 (0.04 %)" in clipped
    assert sum(read) == 2500


def test_a_file_without_a_usable_record_is_an_error(hushsum: Hushsum, tmp_path: Path) -> None:
    data = tmp_path / "records.csv"
    data.write_text("a,b\n1\n2\n")
    with serving(tmp_path, small_plan(record=NAMED, window=ONE_WINDOW)) as address:
        ended = hushsum("send", "--data", str(data), "--to", address, "--spool", str(tmp_path / "spool.db"))
    assert (ended.status, ended.out) == (1, "")
    assert "none of 2 records can be used" in ended.err


def test_a_file_beyond_a_clients_bound_sends_its_first_records_and_tells_of_the_rest(
    hushsum: Hushsum, tmp_path: Path
) -> None:
    data, rows = tmp_path / "records.csv", ["a,b", *["1,2"] * 1500]
    plan = small_plan(record=NAMED, privacy={"unit": "client", "records_per_client": 10}, window=ONE_WINDOW)
    with serving(tmp_path, plan) as address:
        for number, length in enumerate((12, 1500)):  # more than are added at once
            data.write_text("\n".join(rows[: length + 1]))
            spool = tmp_path / f"{number}.db"
            ended = hushsum("send", "--data", str(data), "--to", address, "--spool", str(spool), "--timeout", "60")
            refused = {"records": 10, "records_refused": min(length, 1000) - 10}
            assert kept(spool) == ({"acknowledged": 1, "deltas": 1, **refused}, 0)
            assert ended.status == (length > 1000)
            said = "expected at most 0" if length > 1000 else "beyond this client's bound refused"
            assert said in ended.err + ended.out


def test_a_file_that_cannot_be_sent_hides_no_client_of_a_secure_sum(hushsum: Hushsum, tmp_path: Path) -> None:
    keys = keys_of(["till-1", "till-2", "till-3"])
    text, directory = directory_of(keys)
    plan = small_plan(
        record=NAMED,
        sketch={"rows": 4, "buckets": 16},
        privacy={
            "mode": "secure",
            "total_delta": "0.000001",
            "secure": {"cohort": 3, "cohort_wait": "5m", "directory": directory.digest().hex()},
        },
        window=ONE_WINDOW,
    )
    (tmp_path / "clients.toml").write_text(text)
    data, spool, key = (tmp_path / name for name in ("records.csv", "spool.db", "till-1.pem"))
    data.write_text(WRONG[0][0])
    keys["till-1"].save(key)

    async def companion(address: str, name: str) -> None:
        spool = tmp_path / f"{name}.db"
        async with EdgeClient(address, spool=spool, client_id=name, key=keys[name]) as client:
            await client.flush(60)

    async def companions(address: str) -> None:
        await asyncio.gather(companion(address, "till-2"), companion(address, "till-3"))

    with (
        serving(tmp_path, plan, "--client-directory", str(tmp_path / "clients.toml")) as address,
        ThreadPoolExecutor(1) as others,
    ):
        sent = ("send", "--data", str(data), "--to", address, "--spool", str(spool), "--timeout", "60")
        without = hushsum(*sent, "--client-id", "till-1")
        assert "key: got None, expected this client's Ed25519 key" in without.err
        done = others.submit(asyncio.run, companions(address))
        ended = hushsum(*sent, "--client-id", "till-1", "--key", str(key))
        done.result()
    assert (ended.status, ended.out) == (1, "")
    assert WRONG[0][1] in ended.err
    assert kept(spool) == ({"submissions_counted": 1, "submissions_spent": 1}, 0)


def test_the_options_are_the_devices_policy_and_a_refusal_names_the_rule(hushsum: Hushsum, tmp_path: Path) -> None:
    data, keys = tmp_path / "records.csv", tmp_path / "planners.toml"
    data.write_text("a,b\n1,2\n")
    keys.write_text(toml_of(DirectoryKey("planner", Role.PLANNER, SigningKey(bytes(32)).verify_key)))
    refusing = (
        ("max_epsilon", "0.5"),
        ("max_total_epsilon", "50"),
        ("max_total_delta", "0"),
        ("mode", "local"),
        ("signed_by", str(keys)),
    )
    plan = small_plan(record=NAMED, privacy={"total_delta": "0.001"}, window=ONE_WINDOW)
    with serving(tmp_path, plan) as address:
        for rule, value in refusing:
            option = "--" + rule.replace("_", "-")
            spool = tmp_path / f"{rule}.db"
            ended = hushsum("send", "--data", str(data), "--to", address, "--spool", str(spool), option, value)
            assert (ended.status, ended.out, ended.err.count("\n")) == (1, "", 1)
            assert rule in ended.err
            assert kept(spool) == ({}, 0)


@pytest.mark.long
def test_a_run_changes_to_the_services_new_plan_if_it_may(hushsum: Hushsum, tmp_path: Path) -> None:
    data, keys, spool = tmp_path / "records.csv", tmp_path / "planners.toml", tmp_path / "spool.db"
    data.write_text("a,b\n1,2\n")
    planner, stranger = SigningKey(bytes(32)), SigningKey(b"stranger".ljust(32, b"."))
    keys.write_text(toml_of(DirectoryKey("planner", Role.PLANNER, planner.verify_key)))
    ended = []
    for rows, runs, by in ((20, 1, planner), (10, 2, planner), (12, 2, stranger)):
        plan = small_plan(record=NAMED, sketch={"rows": rows}, window=ONE_WINDOW)
        folder = tmp_path / str(rows)
        folder.mkdir()
        signature_file(folder / "plan.json").write_bytes(SignedPlan.sign(plan.bundle, by, "planner").to_bytes())
        sent = ("send", "--data", str(data), "--spool", str(spool), "--signed-by", str(keys), "--to")
        with serving(folder, plan) as address:
            ended += [hushsum(*sent, address, "--new-plan-after-s", "0") for _ in range(runs)]
        if rows == 20:
            assert hushsum(*sent, address, "--timeout", "0.1").status == 1  # its record waits
    assert [each.status for each in ended] == [0, 1, 0, 1, 1]
    assert "start again to begin the new plan" in ended[1].err
    # The record of the run that was stopped waits, too, if it was stored before the run heard of the new plan.
    assert re.fullmatch("held under earlier plans: [12]\n1 record: 1 acknowledged\n", ended[2].out)
    assert "the service's new plan is not taken up" not in ended[3].err
    assert "warning: the service's new plan is not taken up: policy rule signed_by allows" in ended[4].err
