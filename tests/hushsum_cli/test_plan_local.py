"""`hushsum plan show` of local plans: what a device does, in words, and no more than holds."""

import json
from fractions import Fraction
from pathlib import Path

import pytest

from hushsum import Plan
from hushsum.privacy.shuffle_amplification import amplified
from tests.hushsum_cli.calling import Hushsum
from tests.plans import small_plan

DELTA: dict[str, object] = {"delta": "0.000001"}


def local_plan(local: dict[str, object] | None = None, **changes: dict[str, object]) -> Plan:
    privacy = {"mode": "local", "local": local or {}, **changes.pop("privacy", {})}
    return small_plan(privacy=privacy, **changes)


def shown(hushsum: Hushsum, folder: Path, plan: Plan) -> str:
    """What `plan show` prints, without where its lines end."""
    file = folder / "plan.json"
    file.write_bytes(plan.bundle)
    ended = hushsum("plan", "show", str(file))
    assert ended.status == 0, ended.err
    return " ".join(ended.out.split())


def told(hushsum: Hushsum, folder: Path, plan: Plan) -> dict[str, object]:
    file = folder / "plan.json"
    file.write_bytes(plan.bundle)
    found: dict[str, object] = json.loads(hushsum("plan", "show", str(file), "--json").out)
    return found


def test_reports_are_explained_with_their_chances_and_their_bytes(hushsum: Hushsum, tmp_path: Path) -> None:
    """ε = 1 and 64 buckets: e/(e + 63) and 1/(e + 63)."""
    text = shown(hushsum, tmp_path, local_plan())
    assert "guarantee ε = 1 per record and window, replace" in text
    assert "report 2 bytes: one of 20 rows, chosen at random, and one of 64 randomised values" in text
    assert "k-rr, of 64 buckets: the true one with probability 4.14 %, each other with 1.52 %" in text
    assert "likelihood ratio of any report for two records: at most 2.71828" in text
    assert "the exact number of reports per window" in text
    assert "no delta" not in text
    assert " delta at most" not in text
    assert "shuffle" not in text


def test_a_projective_response_and_one_of_classes_are_told_by_what_they_support(
    hushsum: Hushsum, tmp_path: Path
) -> None:
    plan = local_plan({"randomiser": "projective"})
    assert "outputs, each for a set of values" in shown(hushsum, tmp_path, plan)
    classed = local_plan(record={"classes": ["a", "b"]})
    assert "k-rr, of 128 pairs of a class and a bucket" in shown(hushsum, tmp_path, classed)


def test_one_bit_is_told_by_what_decides_it(hushsum: Hushsum, tmp_path: Path) -> None:
    """At ±1 a bit is kept with e/(e + 1)."""
    plan = local_plan(sketch={"family": "fourier", "kernel": "gaussian", "buckets": ...})
    text = shown(hushsum, tmp_path, plan)
    assert "one-bit: a cosine or sine as one bit, 1 with probability 26.9 % for −1 to 73.1 % for 1" in text
    assert "1 byte: one of 20 pairs" in text


def test_a_silo_is_explained_by_who_adds_the_noise(hushsum: Hushsum, tmp_path: Path) -> None:
    plan = local_plan({"form": "silo"}, window={"min_clients": 10})
    text = shown(hushsum, tmp_path, plan)
    assert "guarantee ε = 1 per record and window, zero-out" in text
    assert "each device adds the full noise to its counters before sending" in text
    assert "per client and window, with or without records: 1,280 noised counters of" in text
    assert "windows with fewer than 10 clients (exact number)" in text
    assert "× √devices records per answer" in text
    assert told(hushsum, tmp_path, plan)["submission_bytes"] == plan.upload_bytes_max


def test_the_devices_own_account_is_told(hushsum: Hushsum, tmp_path: Path) -> None:
    one = shown(hushsum, tmp_path, local_plan())
    assert "keeps its own ledger, which is charged before a window is sent" in one
    assert "and stops at a total of ε = 100" in one
    assert "windows do not compose" in one
    client = local_plan(privacy={"unit": "client", "records_per_client": 3})
    text = shown(hushsum, tmp_path, client)
    assert "windows compose" in text
    assert "the reports of a client's 3 records share ε" in text


def test_what_a_shuffler_adds_is_told_with_its_conditions_and_beside_the_promise(
    hushsum: Hushsum, tmp_path: Path
) -> None:
    plan = local_plan({"shuffle_min": 10**5}, privacy=DELTA)
    epsilon = amplified(Fraction("2.71828"), 10**5, Fraction(1, 10**6))
    text = shown(hushsum, tmp_path, plan)
    assert epsilon is not None
    assert f"shuffled ε = {float(epsilon)}, δ = 1e-6 per window against observers after the shuffler" in text
    assert "batches of at least 100,000 honest, independent reports" in text
    assert "Windows compose." in text
    assert "guarantee ε = 1 per record and window, replace" in text  # the local one stays what is promised
    assert told(hushsum, tmp_path, plan)["amplified"] == {"epsilon": str(float(epsilon)), "delta": "0.000001"}


def test_what_a_shuffler_adds_is_told_of_all_reports_of_a_client(hushsum: Hushsum, tmp_path: Path) -> None:
    plan = local_plan({"shuffle_min": 10**5}, privacy={**DELTA, "unit": "client", "records_per_client": 3})
    epsilon = amplified(plan.privacy.mechanism.scale, 10**5, Fraction(1, 10**6), 3)
    assert epsilon is not None
    assert told(hushsum, tmp_path, plan)["amplified"] == {"epsilon": str(float(epsilon)), "delta": "0.000001"}


def test_too_few_shuffled_reports_promise_nothing(hushsum: Hushsum, tmp_path: Path) -> None:
    plan = local_plan({"shuffle_min": 1}, privacy=DELTA)
    assert "too few for an ε below the guarantee above at δ = 1e-6" in shown(hushsum, tmp_path, plan)
    assert told(hushsum, tmp_path, plan)["amplified"] is None
    enough = local_plan({"shuffle_min": 100}, privacy=DELTA)
    assert told(hushsum, tmp_path, enough)["amplified"] is not None


def test_memoised_reports_are_told_with_what_they_show(hushsum: Hushsum, tmp_path: Path) -> None:
    text = shown(hushsum, tmp_path, local_plan({"memoise": True}))
    assert "sends the same report whenever a record recurs" in text
    assert "shuffling does not amplify" in text
    assert "replacing a record in all of them by one that its device has nowhere else" in " ".join(text.split())


def test_json_has_no_sizes_of_deltas_where_reports_are_sent(hushsum: Hushsum, tmp_path: Path) -> None:
    fields = told(hushsum, tmp_path, local_plan(window={"min_reports": 1000}))
    assert fields["report_bytes"] == 2
    assert fields["noise_std_error"] is None
    assert "amplified" not in fields
    assert not [key for key in fields if key.startswith("delta_bytes")]
    assert "fewer than 1,000 reports (exact number)" in shown(
        hushsum, tmp_path, local_plan(window={"min_reports": 1000})
    )


@pytest.mark.parametrize("key", ["local", "report_bytes", "submission_bytes"])
def test_other_modes_are_told_as_before(hushsum: Hushsum, tmp_path: Path, key: str) -> None:
    assert key not in told(hushsum, tmp_path, small_plan())
