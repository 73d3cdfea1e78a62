"""`hushsum admin`: plans, windows, the ledger and the status of a running service, as an operator reads them."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import hushsum as hs
from aggregator.windows import WindowState
from hushsum.privacy.events import Spend
from hushsum_cli.admin_lists import STATES
from hushsum_cli.output import utc_text
from tests.hushsum_cli.calling import Hushsum
from tests.hushsum_cli.test_service_commands import ONE_WINDOW, sealed_early, serving
from tests.plans import small_plan

pytestmark = pytest.mark.usefixtures("sources_on_path")
NAMES = ("plans", "windows", "ledger", "status", "seal", "release")
PLAN = small_plan(window=ONE_WINDOW)


def test_the_states_are_those_of_the_service() -> None:
    assert (*WindowState,) == STATES


def secured(hushsum: Hushsum, folder: Path) -> tuple[Path, tuple[str, ...]]:
    """The folder of certificates, and what a service is told that asks for TLS and tokens; two tokens lie beside it."""
    tls, hashes = folder / "tls", str(folder / "tokens.jsonl")
    assert hushsum("keys", "certificates", "--out", str(tls), "--host", "127.0.0.1").status == 0
    for scope in ("admin", "read"):
        made = ("--file", hashes, "--name", f"a-{scope}", "--scope", scope, "--out", str(folder / f"{scope}.token"))
        assert hushsum("admin", "tokens", "add", *made).status == 0
    files = ("--tls-cert", str(tls / "server.pem"), "--tls-key", str(tls / "server.key"), "--tokens", hashes)
    return tls, (*files, "--authentication", "token")


def test_an_operator_elsewhere_sees_plans_windows_and_ledger_with_a_token_of_scope_admin(
    hushsum: Hushsum, tmp_path: Path
) -> None:
    tls, arguments = secured(hushsum, tmp_path)
    with serving(tmp_path, PLAN, *arguments) as address:
        way = ("--at", address, "--ca", str(tls / "ca.pem"))
        asked = (*way, "--token-file", str(tmp_path / "admin.token"))
        (plan,) = json.loads(hushsum("admin", "plans", *asked, "--json").out)
        window = plan["first_window"]
        assert plan == {
            "plan_id": PLAN.hex_id,
            "name": "test",
            "mode": "central",
            "population": "",
            "partitions": plan["partitions"],
            "first_window": window,
            "signed_by": None,
            "collected_here": True,
        }
        table = " ".join(hushsum("admin", "plans", *asked).out.split())
        assert f"test {PLAN.hex_id[:12]} central the only one {plan['partitions']} {window} nobody yes" in table

        assert "nothing spent yet" in hushsum("admin", "ledger", *asked).out
        assert hushsum("admin", "seal", *asked, "--window", str(window), "--early").status == 0
        assert hushsum("admin", "release", *asked).status == 0

        start, end = PLAN.window.start_ms(window), PLAN.window.end_ms(window)
        shown = json.loads(hushsum("admin", "windows", *asked, "--json").out)
        assert shown["more"] is False
        assert {"window": window, "start_ms": start, "end_ms": end, "state": "released"} in shown["windows"]
        rows = hushsum("admin", "windows", *asked, "--state", "released", "--state", "withheld").out
        assert re.search(rf"{window} +{utc_text(start)} +{utc_text(end)} +released", rows)
        assert "no matching window" in hushsum("admin", "windows", *asked, "--state", "skipped").out
        assert "no matching window" in hushsum("admin", "windows", *asked, "--before", str(window)).out

        for name, *shown, told in (
            ("seal", *asked, "--window", "7", "window 7 cannot be sealed: it was never opened by a gateway"),
            *((name, *way, "--token-file", str(tmp_path / "read.token"), "admin") for name in NAMES),
            *((name, *way, "token") for name in NAMES),
        ):
            ended = hushsum("admin", name, *shown)
            assert (ended.status, ended.err.count("\n"), ended.out) == (1, 1, "")
            assert told in ended.err

        services = hushsum("admin", "ledger", *asked).out
        told = json.loads(hushsum("admin", "ledger", *asked, "--json").out)
        assert told["limits"] == {
            "population": "",
            "unit": "record",
            "relation": "add/remove",
            "epsilon": "100",
            "delta": "0",
        }
        assert (told["spent"], told["left"]) == ({"epsilon": "1", "delta": "0"}, {"epsilon": "99", "delta": "0"})
        assert [(spend["window"], spend["plan_id"]) for spend in told["spends"]] == [(window, PLAN.hex_id)]
        assert told["spends_total"] == 1
        assert told["statement"] in services.splitlines()
    spend = Spend.from_fields(told["spends"][0])
    with hs.Ledger(tmp_path / "ledger.db") as opened:
        opened.charge(spend, PLAN.limits)
    analysts = hushsum("ledger", "show", str(tmp_path / "ledger.db")).out
    assert table_of(services) == table_of(analysts), "one table for both"
    assert len(table_of(services)) > 4


def table_of(text: str) -> list[str]:
    """The lines of the table of spends."""
    lines = text.splitlines()
    begins = next(index for index, line in enumerate(lines) if "mechanism" in line)
    return lines[begins : lines.index("", begins)] if "" in lines[begins:] else lines[begins:-1]


def test_what_is_wrong_is_one_line(hushsum: Hushsum) -> None:
    assert hushsum("admin", "windows", "--limit", "0").status == 2
    assert hushsum("admin", "windows", "--state", "lost").status == 2
    assert hushsum("admin", "status", "--watch", "--json").status == 2
    for name in NAMES:
        ended = hushsum("admin", name, "--at", "127.0.0.1:1")
        assert (ended.status, ended.err.count("\n")) == (1, 1)
        assert "no service answers here" in ended.err


def watch(folder: Path, *arguments: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "hushsum_cli", *arguments]
    with (folder / "watched").open("wb") as out, (folder / "errors").open("wb") as errors:
        return subprocess.Popen(command, cwd=folder, stdout=out, stderr=errors)


def said(folder: Path, text: str, times: int = 1) -> None:
    """Returns once the watch has said something so often."""
    until = time.monotonic() + 120
    while (folder / "watched").read_text("utf-8").count(text) < times:
        assert time.monotonic() < until, (folder / "watched").read_text("utf-8")
        time.sleep(0.05)


def test_a_watch_shows_it_again_outlives_the_service_and_ends_cleanly(tmp_path: Path) -> None:
    with serving(tmp_path, PLAN) as address:
        process = watch(tmp_path, "admin", "status", "--at", address, "--watch")
        said(tmp_path, f"test ({PLAN.hex_id[:12]})", times=2)
    try:
        said(tmp_path, "no service answers here")
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait()
    assert (tmp_path / "errors").read_bytes() == b""


def test_outcomes_are_watched_and_saved_as_they_are_published_over_a_restart_of_the_service(
    hushsum: Hushsum, tmp_path: Path
) -> None:
    plan = small_plan(window={"length": "6h"})
    (tmp_path / "more.toml").write_text("skew_s = 86400")  # so that five windows are open
    more = ("--config", "more.toml")
    with serving(tmp_path, plan, *more) as address:
        first = released(hushsum, address)
        process = watch(tmp_path, "release", "watch", "--from", address, "--save", "saved")
        said(tmp_path, f"window {first}, from ")
        second = released(hushsum, address)
        said(tmp_path, f"saved/test-{second}.hush")
    try:
        assert [hs.load(file).window for file in sorted((tmp_path / "saved").iterdir())] == [first, second]
        with serving(tmp_path, plan, *more, "--listen", address):
            third = released(hushsum, address)
            said(tmp_path, f"window {third}, from ")
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.wait()
    told = (tmp_path / "watched").read_text("utf-8")
    assert [told.count(f"window {window}, from ") for window in (first, second, third)] == [1, 1, 1]
    assert "retrying" in (tmp_path / "errors").read_text("utf-8")


def released(hushsum: Hushsum, address: str) -> int:
    window = sealed_early(hushsum, address)
    assert hushsum("admin", "release", "--at", address, "--window", str(window)).status == 0
    return window


def test_a_watch_of_no_service_ends_with_one_line(hushsum: Hushsum) -> None:
    ended = hushsum("release", "watch", "--from", "127.0.0.1:1")
    assert (ended.status, ended.err.count("\n")) == (1, 1)
    assert "no service answers here" in ended.err
