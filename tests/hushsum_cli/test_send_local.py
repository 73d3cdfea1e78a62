"""`hushsum send` in local mode: a silo's noised sum, or one report a record, and how it says what it has sent."""

import json
from pathlib import Path

import pytest

from hushsum import Plan
from tests.hushsum_cli.calling import Hushsum
from tests.hushsum_cli.test_send import kept
from tests.hushsum_cli.test_service_commands import ONE_WINDOW, sealed_early, serving
from tests.plans import small_plan

pytestmark = pytest.mark.usefixtures("sources_on_path")


def plan_of(form: str) -> Plan:
    return small_plan(
        record={"names": ["a", "b"]},
        privacy={"mode": "local", "local": {"form": form}},
        sketch={"rows": 16, "buckets": 16},
        window={**ONE_WINDOW, "lateness": "1h"},
    )


@pytest.mark.parametrize("form", ["silo", "report"])
def test_a_files_records_are_sent_in_the_plans_form_and_counted(hushsum: Hushsum, tmp_path: Path, form: str) -> None:
    data, spool = tmp_path / "records.csv", tmp_path / "spool.db"
    data.write_text("a,b\n1,2\n3,4\n,6\n5,6\n")
    silo = form == "silo"
    with serving(tmp_path, plan_of(form)) as address:
        asked = ("--data", str(data), "--to", address, "--spool", str(spool), "--timeout", "60")
        ended = hushsum("send", *asked, "--json")
        assert (ended.status, ended.err.count("\n")) == (0, 1)
        assert "1 of 4 records were left out" in ended.err
        sent = json.loads(ended.out)
        assert (sent["records"], sent["records_dropped"], sent["acknowledged"]) == (3, 1, 1)
        assert (sent["reports"], sent["submissions_spent"]) == ((0, 1) if silo else (4, 0))
        again = hushsum("send", *asked)  # of a window in which a silo has submitted already, nothing more is sent
        assert ("does not participate" in again.err) == ("does not participate" in again.out) == silo
        assert again.status == silo
        counted, waiting = kept(spool)
        assert (counted.get("acknowledged"), waiting) == (1 if silo else 2, 0)
        window = sealed_early(hushsum, address)
        out = tmp_path / "window.hush"
        for command in (
            ("admin", "release", "--at", address, "--window", str(window)),
            ("release", "get", "--from", address, "--window", str(window), "--out", str(out)),
        ):
            assert hushsum(*command).status == 0
        shown = hushsum("release", "show", str(out)).out
    assert ("1 client, each with its own noise" if silo else "8, one per record (exact)") in shown


@pytest.mark.long
def test_a_file_that_cannot_be_sent_hides_no_silo(hushsum: Hushsum, tmp_path: Path) -> None:
    data, spool = tmp_path / "records.csv", tmp_path / "spool.db"
    data.write_text("a,b\n")
    with serving(tmp_path, plan_of("silo")) as address:
        asked = ("--data", str(data), "--to", address, "--spool", str(spool), "--timeout", "60")
        ended = hushsum("send", *asked)
    assert ended.status == 1
    assert "expected at least one record" in ended.err
    assert kept(spool) == ({"acknowledged": 1, "deltas": 1, "submissions_counted": 1, "submissions_spent": 1}, 0)
