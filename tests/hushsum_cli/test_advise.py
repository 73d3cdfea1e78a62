"""`hushsum plan advise`: what it prints of the advice, and what it refuses."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from hushsum import Plan
from hushsum.advice import shown
from hushsum.advice.costs import stand_in
from hushsum_cli.advise import advise
from tests.hushsum import local_plans
from tests.hushsum_cli.calling import Hushsum
from tests.plans import client_plan, secure_plan, small_plan

SMALL = ("--memory-mib", "0.2")
EXAMPLE_PLAN = Path(__file__).resolve().parents[2] / "examples" / "plan.toml"
HERMITE: dict[str, object] = {"family": "hermite", "kernel": "gaussian", "rows": ..., "buckets": ..., "seed": ...}
PARTITION: dict[str, object] = {"family": "partition", "kernel": ..., "bandwidth": 1.25}


def words(text: str) -> str:
    return " ".join(text.split())


def file_of(plan: Plan, folder: Path) -> str:
    path = folder / "plan.json"
    path.write_bytes(plan.bundle)
    return str(path)


def test_the_table_shows_errors_costs_and_what_to_take(hushsum: Hushsum, tmp_path: Path) -> None:
    path = file_of(small_plan(privacy={"epsilon": "0.2"}), tmp_path)
    ended = hushsum("plan", "advise", path, "--records", "2e4", "--density", "0.2", *SMALL)
    assert ended.status == 0, ended.err
    for text in (
        "20,000 records",
        "about n·k̄ = 4,000",
        "best, pure",
        "best, δ=1e-6",
        "--memory-mib",
        "R*",
        "over a limit",
    ):
        assert text in ended.out
    (plan,) = (line for line in ended.out.splitlines() if line.rstrip().endswith("the plan"))
    assert plan.split()[0] == "20"


def test_unit_client_is_told_what_its_bound_costs(hushsum: Hushsum, tmp_path: Path) -> None:
    path = file_of(client_plan(7), tmp_path)
    ended = hushsum("plan", "advise", path, "--records", "2e4", "--clients", "5000", "--density", "0.2", *SMALL)
    assert ended.status == 0, ended.err
    assert "the noise is 7 times that of unit record" in " ".join(ended.out.split())
    assert "clients of 4" in ended.out


def test_both_errors_of_the_number_of_records_are_shown_with_the_windows_that_the_limits_pay_for(
    hushsum: Hushsum, tmp_path: Path
) -> None:
    client: dict[str, object] = {"unit": "client", "records_per_client": 1}
    limits: dict[str, object] = {"total_epsilon": "3.1", "total_delta": "0.000001"}
    path = file_of(small_plan(sketch={"rows": 1000}, privacy={**client, **limits}), tmp_path)
    asked = ("plan", "advise", path, "--records", "2e4", "--density", "0.2")
    told = words(hushsum(*asked).out)
    assert "n̂ ± 178 records, 375 windows within the limits (count_scale 8, scale 1008, the plan's)" in told
    assert "± 28.1 records, 114 windows within the limits (count_scale 53, scale 1053, instead of it)" in told
    counts = json.loads(hushsum(*asked, "--json").out)["counts"]
    assert [(count["count_scale"], count["windows"], count["own"]) for count in counts] == [
        (53, 114, False),
        (8, 375, True),
    ]
    cells = {**PARTITION, "rows": 1}  # 64
    path = file_of(small_plan(sketch=cells), tmp_path)
    told = words(hushsum("plan", "advise", path, "--records", "2e4", "--density", "0.2").out)
    assert "n̂ ± 10.9 records (count_scale 0, scale 1, the plan's)" in told
    assert "± 2.8 records (count_scale 1, scale 2, instead of it)" in told
    few = file_of(small_plan(privacy={**client, **limits}), tmp_path)
    assert "n̂" not in hushsum("plan", "advise", few, "--records", "2e4", "--density", "0.2").out


@pytest.mark.parametrize(
    ("sketch", "arguments", "sentence"),
    (
        ({}, SMALL, "noise does not grow with R: the largest R within --memory-mib"),
        ({}, ("--delta-kib", "0.2"), "noise does not grow with R: the largest R within --delta-kib"),
        (PARTITION, (), "no hashing error, so more rows do not help"),
    ),
)
def test_why_no_more_rows_are_advised_is_said(
    hushsum: Hushsum, tmp_path: Path, sketch: dict[str, object], arguments: tuple[str, ...], sentence: str
) -> None:
    path = file_of(small_plan(sketch=sketch), tmp_path)
    ended = hushsum("plan", "advise", path, "--records", "2000", "--density", "0.1", *arguments)
    assert ended.status == 0, ended.err
    assert f"; {sentence} " in words(ended.out) + " "


def test_bias_is_told_in_records_of_an_answer_and_as_its_share(hushsum: Hushsum, tmp_path: Path) -> None:
    plan = small_plan(sketch=HERMITE)
    ended = hushsum("plan", "advise", file_of(plan, tmp_path), "--records", "1e4", "--density", "0.1")
    each = plan.family.kernel_error
    assert f"up to {shown(1e4 * each)} records ({1000 * each:.2g} %): {each:.2g} per record" in words(ended.out)


def test_the_examples_of_the_help_can_be_asked_of_the_plan_of_the_examples(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(EXAMPLE_PLAN, tmp_path / "plan.toml")
    monkeypatch.chdir(tmp_path)
    lines = re.findall(r"^ *hushsum plan advise (.*)$", advise.epilog or "", re.MULTILINE)
    assert len(lines) == 3
    for line in lines[:2]:
        asked = advise.make_context("advise", shlex.split(line)).params
        density = float(asked["density"])
        made = stand_in(Plan.from_toml(asked["plan_file"]), density, 1000)  # raises where no records are so dense
        assert made.density == pytest.approx(density, rel=0.02)


def test_json_is_the_advice_and_nothing_else(hushsum: Hushsum, tmp_path: Path) -> None:
    plan = small_plan()
    ended = hushsum("plan", "advise", file_of(plan, tmp_path), "--records", "500", "--density", "0.2", "--json", *SMALL)
    fields = json.loads(ended.out)
    assert fields["id"] == plan.hex_id
    assert fields["guesses"]["clients"] == 500
    assert fields["allowance"]["memory_mib"] == 0.2
    assert all(size["costs"]["record_seconds"] > 0 for size in fields["sizes"])


def test_the_plot_is_written_and_named(hushsum: Hushsum, tmp_path: Path) -> None:
    picture, path = tmp_path / "advice.png", file_of(small_plan(), tmp_path)
    ended = hushsum("plan", "advise", path, "--records", "500", "--density", "0.2", "--plot", str(picture), *SMALL)
    assert ended.status == 0, ended.err
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert str(picture.name) in ended.out.replace("\n", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    (
        (("--records", "1e4", "--density", "1e-9"), "density: got 1e-09, expected from"),
        (("--records", "nan", "--density", "0.2"), "a number above 0"),
        (("--records", "1e4", "--density", "0.2", "--device-ms", "-1"), "a number above 0"),
        (("--records", "500", "--density", "0.2", "--plot", "advice.abc"), "--plot"),
        (("--records", "500", "--plot", "advice.png"), "--plot and --sketches need both --records and --density"),
    ),
)
def test_what_cannot_be_is_refused_in_a_sentence(
    hushsum: Hushsum, tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    ended = hushsum("plan", "advise", file_of(small_plan(), tmp_path), *arguments)
    assert ended.status == 2
    assert message in " ".join(ended.err.split())
    assert not ended.out


def test_secure_sums_are_advised_at_exactly_h_and_with_all_survivors(hushsum: Hushsum, tmp_path: Path) -> None:
    path = file_of(secure_plan({"cohort": 100}), tmp_path)
    asked = ("plan", "advise", path, "--records", "2e4", "--clients", "250", "--density", "0.2")
    ended = hushsum(*asked, *SMALL)
    assert ended.status == 0, ended.err
    told = words(ended.out)
    for text in (
        "cohorts of 90 to 100 clients",
        "with exactly h in 3 cohorts",
        "if all 250 clients stay",
        "KiB per client and window",
        "fewer, larger cohorts reduce it up to 1.7 times",
        "use δ > 0 noise is",
        "upload: bytes per client and window",
    ):
        assert text in told
    fields = json.loads(hushsum(*asked, *SMALL, "--json").out)
    assert fields["secure"]["honest_survivors"] == 80
    assert fields["secure"]["std_error_of_all"] > fields["std_error"]


def test_too_few_clients_for_a_cohort_are_told_so(hushsum: Hushsum, tmp_path: Path) -> None:
    path = file_of(secure_plan({"cohort": 100}, privacy={"delta": "0.000001"}), tmp_path)
    ended = hushsum("plan", "advise", path, "--records", "2e4", "--clients", "50", "--density", "0.2", *SMALL)
    assert "50 clients, but a sum needs 90" in words(ended.out)
    assert "use δ > 0" not in ended.out


def test_silos_are_told_what_many_clients_cost(hushsum: Hushsum, tmp_path: Path) -> None:
    path = file_of(local_plans.silo_plan(), tmp_path)
    asked = ("plan", "advise", path, "--records", "2e4", "--clients", "100", "--density", "0.3", *SMALL)
    ended = hushsum(*asked)
    assert ended.status == 0, ended.err
    told = words(ended.out)
    for text in (
        "each of 100 clients adds the full noise",
        "× √100 =",
        "per client and window, with or without records",
    ):
        assert text in told
    fields = json.loads(hushsum(*asked, "--json").out)
    assert fields["silo"]["submissions"] == 100
    assert fields["noise"] == pytest.approx(10 * fields["silo"]["noise_of_one"])


def test_reports_are_told_which_randomiser_and_how_many_buckets_and_rows(hushsum: Hushsum, tmp_path: Path) -> None:
    plan = local_plans.report_plan(sketch={"buckets": 512}, privacy=local_plans.SHUFFLED)
    path, drawn = file_of(plan, tmp_path), tmp_path / "advice.png"
    asked = ("plan", "advise", path, "--records", "500", "--density", "0.3")
    ended = hushsum(*asked, "--plot", str(drawn))
    assert ended.status == 0, ended.err
    told = words(ended.out)
    fields = json.loads(hushsum(*asked, "--json").out)
    best = fields["best"]["k-rr"]
    for text in (
        f"± {shown(fields['std_error'])} records",
        "3 bytes per record" if plan.report_sizes and plan.report_sizes.width == 3 else "2 bytes per record",
        f"W = {best['buckets']}: ± {shown(best['std_error'])}",
        "the plan's W = 512 has",
        "randomisation error is at most 10 % of an answer",
        "at the plan's W = 512: k-rr",
        "500 reports are fewer than shuffle_min: no batch is forwarded",
    ):
        assert text in told
    assert fields["amplified"] is not None
    assert f"of {1000:,} honest, independent reports or more" in told
    assert drawn.read_bytes().startswith(b"\x89PNG")


def test_reports_of_one_bit_and_of_clients_are_advised_on(hushsum: Hushsum, tmp_path: Path) -> None:
    privacy: dict[str, object] = {"unit": "client", "records_per_client": 2}
    path = file_of(local_plans.bit_plan(privacy=privacy, window={"min_reports": 3000}), tmp_path)
    ended = hushsum("plan", "advise", path, "--records", "2000", "--density", "0.3")
    assert ended.status == 0, ended.err
    told = words(ended.out)
    assert "a client of at most 2 reports (ε/2 each)" in told
    assert "2,000 reports are fewer than window.min_reports = 3,000" in told
    assert "randomiser" not in told.split("rows")[0]


def test_without_guesses_a_range_of_them_is_shown(hushsum: Hushsum, tmp_path: Path) -> None:
    path = file_of(small_plan(), tmp_path)
    ended = hushsum("plan", "advise", path)
    assert ended.status == 0, ended.err
    assert ["density", "1,000", "10,000", "100,000", "1,000,000"] in [line.split() for line in ended.out.splitlines()]
    assert re.search(r"^ +0\.1 +±[0-9.]+ \([0-9.]+\s%\)", ended.out, re.MULTILINE)
    ranged = json.loads(hushsum("plan", "advise", path, "--records", "5e4", "--json").out)["range"]
    assert {each["records"] for each in ranged} == {50_000}
    assert len({each["density"] for each in ranged}) > 1
    ranged = json.loads(hushsum("plan", "advise", path, "--density", "0.2", "--json").out)["range"]
    assert {each["density"] for each in ranged} == {0.2}


def test_clients_and_a_plot_need_both_guesses(hushsum: Hushsum, tmp_path: Path) -> None:
    ended = hushsum("plan", "advise", file_of(small_plan(), tmp_path), "--records", "5e4", "--clients", "7")
    assert ended.status == 2
    assert "--clients, --plot and --sketches need both --records and --density" in ended.err


def test_sketches_of_a_kernel_are_compared(hushsum: Hushsum, tmp_path: Path) -> None:
    path = file_of(small_plan(sketch={"kernel": "laplacian"}), tmp_path)
    asked = ("plan", "advise", path, "--records", "2e4", "--density", "0.2", "--memory-mib", "0.05", "--sketches")
    ended = hushsum(*asked)
    assert ended.status == 0, ended.err
    words = [line.split() for line in ended.out.splitlines()]
    families = [line[0] for line in words if line and line[0] in {"hashed", "fourier"}]
    assert set(families) == {"hashed", "fourier"}
    found = json.loads(hushsum(*asked, "--json").out)["sketches"]
    assert [choice["sketch"]["family"] for choice in found] == families
    assert found[0]["std_error"] == min(choice["std_error"] for choice in found)


def test_sketches_need_guesses_and_sketch_deltas(hushsum: Hushsum, tmp_path: Path) -> None:
    ended = hushsum("plan", "advise", file_of(small_plan(), tmp_path), "--sketches")
    assert ended.status == 2
    assert "need both --records and --density" in ended.err


@pytest.mark.parametrize("known", [(), ("--records", "2e4", "--density", "0.2", *SMALL)])
def test_advice_of_a_cumulative_plan_is_for_the_records_so_far(
    hushsum: Hushsum, tmp_path: Path, known: tuple[str, ...]
) -> None:
    path = file_of(small_plan(window={"release": "cumulative", "horizon": 48}), tmp_path)
    out = words(hushsum("plan", "advise", path, *known).out)
    assert "at the release with the most noise" in out
    assert "records so far" in out
    assert "at the release with the most noise" not in hushsum("plan", "advise", file_of(small_plan(), tmp_path)).out
