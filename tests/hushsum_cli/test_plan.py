"""`hushsum plan`."""

import json
from pathlib import Path

import numpy as np
import pytest

import hushsum as hs
from hushsum.delta import DeltaId, encode
from hushsum.parameters import digest
from tests.hushsum_cli.calling import Hushsum

TOML = """name = "colours"
[record]
kind = "vector"
dim = 3
lower = [0, 0, 0]
upper = [255, 255, 255]
[sketch]
family = "hashed"
kernel = "euclidean"
bandwidth = 5.0
rows = 50
buckets = 256
[privacy]
epsilon = 1.0
total_epsilon = 30.0
"""


@pytest.fixture
def plan_toml(tmp_path: Path) -> Path:
    path = tmp_path / "plan.toml"
    path.write_text(TOML)
    return path


def test_make_writes_the_canonical_bytes_beside_the_plan_file(hushsum: Hushsum, plan_toml: Path) -> None:
    ended = hushsum("plan", "make", str(plan_toml))
    plan = hs.Plan.from_toml(plan_toml)
    assert ended.status == 0
    assert plan_toml.with_suffix(".json").read_bytes() == plan.to_bytes()
    assert plan.hex_id in ended.out
    assert "ε = 1 per record and window" in ended.out


def test_make_does_not_replace_another_plan_unasked(hushsum: Hushsum, plan_toml: Path, tmp_path: Path) -> None:
    out = tmp_path / "made.json"
    out.write_text("precious")
    ended = hushsum("plan", "make", str(plan_toml), "-o", str(out))
    assert ended.status == 1
    assert out.read_text() == "precious"
    assert hushsum("plan", "make", str(plan_toml), "-o", str(out), "--force").status == 0
    assert hushsum("plan", "make", str(plan_toml), "-o", str(out)).status == 0  # the same again is no harm


def test_show_reads_made_and_declared_plans_alike(hushsum: Hushsum, plan_toml: Path) -> None:
    hushsum("plan", "make", str(plan_toml))
    declared = json.loads(hushsum("plan", "show", str(plan_toml), "--json").out)
    made = json.loads(hushsum("plan", "show", str(plan_toml.with_suffix(".json")), "--json").out)
    assert declared == made
    assert made["plan"]["sketch"]["rows"] == 50
    assert made["noise_std_error"] == pytest.approx(10.5, rel=0.02)  # √(2·50), and a twentieth for the count


@pytest.mark.parametrize(
    ("mode", "told"),
    (("", "± 10.86"), ('mode = "local"\nlocal = { form = "silo" }\n[window]\nlateness = "1m"', "± 10.86 per client")),
)
def test_show_tells_how_well_a_histogram_knows_its_number_of_records(
    hushsum: Hushsum, plan_toml: Path, mode: str, told: str
) -> None:
    """√64 times the noise of a cell, whose scale is 1: no part of ε is for the count."""
    plan_toml.write_text(
        'name = "h"\n[record]\ndim = 1\nlower = [0]\nupper = [64]\n[sketch]\nfamily = "partition"\nbandwidth = 1\n'
        f"rows = 1\nbuckets = 64\n[privacy]\nepsilon = 1\ntotal_epsilon = 30\n{mode}\n"
    )
    shown = " ".join(hushsum("plan", "show", str(plan_toml)).out.split())
    assert f"count no count counter: the sums of rows tell the number of records, {told}" in shown
    assert json.loads(hushsum("plan", "show", str(plan_toml), "--json").out)["counters"] == 64


def test_a_wrong_key_is_named(hushsum: Hushsum, plan_toml: Path) -> None:
    plan_toml.write_text(TOML.replace("rows = 50", "rows = 0"))
    ended = hushsum("plan", "make", str(plan_toml))
    assert ended.status == 1
    assert ended.err.startswith("hushsum: sketch.rows: got 0")


def test_show_tells_an_approximate_promise_its_test_of_the_clients_and_its_budget(
    hushsum: Hushsum, plan_toml: Path
) -> None:
    plan_toml.write_text(f"{TOML}delta = 1e-6\ntotal_delta = 1e-4\n[window]\nmin_clients = 50\n")
    shown = " ".join(hushsum("plan", "show", str(plan_toml)).out.split())
    assert "guarantee ε = 1, δ = 1e-6 per record and window, add/remove" in shown
    assert "discrete-gaussian, standard deviation 34.9" in shown
    assert "withheld windows with fewer than 50 clients, by a noisy count (± 28.28) that uses ε = 0.05" in shown
    assert "budget ε = 30, δ = 1e-4 in total" in shown
    assert "one window is charged ε = 0.73541, δ = 1e-4" in shown
    assert "; the budget pays for any number of windows" in shown
    told = json.loads(hushsum("plan", "show", str(plan_toml), "--json").out)
    assert told["guarantee"]["mechanism"]["clients_scale"] == "20"
    assert float(told["guarantee"]["rho"]) == pytest.approx(0.0221, rel=0.01)


@pytest.mark.parametrize(
    ("delta", "told"),
    [
        ("", "draws of discrete-laplace of scale "),
        (
            "delta = 1e-6\ntotal_delta = 1e-6\nnoise = 'gaussian'\n",
            "draws of discrete-gaussian of standard deviation ",
        ),
    ],
)
def test_show_tells_that_zcdp_is_that_of_a_whole_sequence(
    hushsum: Hushsum, plan_toml: Path, delta: str, told: str
) -> None:
    plan_toml.write_text(f'{TOML}{delta}[window]\nrelease = "cumulative"\nhorizon = 100\n')
    shown = " ".join(hushsum("plan", "show", str(plan_toml)).out.split())
    assert f"noise {told}" in shown
    assert ("on every counter (the whole sequence is 0.0" in shown) == bool(delta)
    assert "one guarantee for 100 outcomes" in shown


def test_show_tells_what_one_window_is_charged_and_how_many_the_budget_pays_for(
    hushsum: Hushsum, plan_toml: Path
) -> None:
    client = 'unit = "client"\nrecords_per_client = 1\n'
    plan_toml.write_text(f"{TOML}{client}")
    assert "one window is charged ε = 1, δ = 0; the budget pays for 30 windows" in words(hushsum, plan_toml)
    plan_toml.write_text(f"{TOML}{client}total_delta = 1e-6\n")
    assert "one window is charged ε = 0.62121" in words(hushsum, plan_toml)
    assert "δ = 1e-6; the budget pays for 898 windows" in words(hushsum, plan_toml)


def words(hushsum: Hushsum, plan_toml: Path) -> str:
    return " ".join(hushsum("plan", "show", str(plan_toml)).out.split())


def test_public_participation_is_refused_in_one_line_that_says_what_to_use(hushsum: Hushsum, plan_toml: Path) -> None:
    plan_toml.write_text(f'{TOML}participation = "public"\n[window]\nmin_clients = 50\n')
    for command in ("make", "show"):
        ended = hushsum("plan", command, str(plan_toml))
        assert (ended.status, ended.err.count("\n")) == (1, 1)
        assert ended.err.startswith("hushsum: privacy.participation: got 'public', expected 'protected': 'public' was")
        assert "set window.min_clients" in ended.err


def test_an_approximate_plan_without_its_total_is_refused_by_what_is_missing(hushsum: Hushsum, plan_toml: Path) -> None:
    plan_toml.write_text(f"{TOML}delta = 1e-6\n")
    ended = hushsum("plan", "make", str(plan_toml))
    assert ended.status == 1
    assert ended.err.startswith("hushsum: privacy.total_delta: is missing, expected at least delta (0.000001)")


TURN = np.array([[0.6, -0.8, 0.0], [0.8, 0.6, 1.0]])
TURNED = TOML.replace(
    "[privacy]",
    f"""transforms = [
    {{kind = "scale", factor = [1, 0.5, 2]}},
    {{kind = "linear", matrix = "{digest(TURN)}"}},
]
[privacy]""",
).replace("dim = 3", 'dim = 3\nclasses = ["sky", "ground"]')


@pytest.fixture
def turned_toml(tmp_path: Path) -> Path:
    path = tmp_path / "turned.toml"
    path.write_text(TURNED)
    np.save(tmp_path / "turn.npy", TURN)
    return path


def test_digest_prints_what_a_plan_file_names_an_array_by(hushsum: Hushsum, turned_toml: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "same.npy", TURN.astype(">f4"))
    files = [str(tmp_path / name) for name in ("turn.npy", "same.npy")]
    ended = hushsum("plan", "digest", *files)
    assert (ended.status, ended.out) == (0, "".join(f"{digest(TURN)}  {file}\n" for file in files))
    assert hushsum("plan", "digest", str(turned_toml)).status == 1


def test_make_writes_the_arrays_that_the_plan_names_after_its_canonical_bytes(
    hushsum: Hushsum, turned_toml: Path
) -> None:
    arrays = ("--parameters", str(turned_toml.with_name("turn.npy")))
    ended = hushsum("plan", "make", str(turned_toml), *arrays)
    plan = hs.Plan.from_toml(turned_toml, [TURN])
    assert ended.status == 0
    assert turned_toml.with_suffix(".json").read_bytes() == plan.bundle != plan.to_bytes()
    assert plan.hex_id in ended.out
    assert hushsum("plan", "make", str(turned_toml), *arrays).status == 0  # the same again is no harm
    made = hushsum("plan", "show", str(turned_toml.with_suffix(".json")), "--json").out
    assert hushsum("plan", "show", str(turned_toml), *arrays, "--json").out == made


def test_an_array_that_is_missing_and_one_that_nobody_names_are_told_by_their_digests(
    hushsum: Hushsum, turned_toml: Path, tmp_path: Path
) -> None:
    missing = hushsum("plan", "make", str(turned_toml))
    assert (missing.status, missing.err.count("\n")) == (1, 1)
    assert f"sketch.transforms[1].matrix: got '{digest(TURN)}'" in missing.err
    np.save(tmp_path / "other.npy", -TURN)
    files = [str(tmp_path / name) for name in ("turn.npy", "other.npy")]
    unused = hushsum("plan", "make", str(turned_toml), "--parameters", files[0], "--parameters", files[1])
    assert unused.status == 1
    assert f"other.npy: the plan does not refer to this array (digest {digest(-TURN)})" in unused.err
    assert not turned_toml.with_suffix(".json").exists()


@pytest.mark.parametrize("content", [b"", b"words", b"\x93NUMPY\x01\x00"])
def test_a_file_that_is_no_array_is_told_by_its_name(hushsum: Hushsum, turned_toml: Path, content: bytes) -> None:
    broken = turned_toml.with_name("broken.npy")
    broken.write_bytes(content)
    ended = hushsum("plan", "make", str(turned_toml), "--parameters", str(broken))
    assert ended.status == 1
    assert "broken.npy: not a NumPy .npy file" in ended.err


def test_show_gives_classes_transforms_and_arrays_a_line_each(hushsum: Hushsum, turned_toml: Path) -> None:
    arrays = ("--parameters", str(turned_toml.with_name("turn.npy")))
    lines = {" ".join(line.split()) for line in hushsum("plan", "show", str(turned_toml), *arrays).out.splitlines()}
    assert "classes 2, one sketch each: sky, ground" in lines
    assert "transform 1 kind scale, factor [1, 0.5, 2]" in lines
    assert f"transform 2 kind linear, matrix {digest(TURN)[:12]}… (2 × 3)" in lines
    assert "arrays 1 in plan.json, 6 numbers" in lines
    assert any(line.startswith("sketch hashed, kernel euclidean, bandwidth 5, power 1, rows 50") for line in lines)


def test_show_gives_groups_a_line_each_and_cuts_long_lists(hushsum: Hushsum, plan_toml: Path) -> None:
    many = ", ".join(f'"{number}"' for number in range(30))
    groups = """groups = [
        {columns = [0, 1], kernel = "euclidean", bandwidth = 5},
        {columns = [2], kernel = "laplacian", bandwidth = 7},
    ]"""
    text = TOML.replace('kernel = "euclidean"\nbandwidth = 5.0\n', groups + "\n")
    plan_toml.write_text(text.replace("dim = 3", f"dim = 3\nclasses = [{many}]"))
    out = hushsum("plan", "show", str(plan_toml)).out
    lines = {" ".join(line.split()) for line in out.splitlines()}
    assert "group 1 columns [0, 1], kernel euclidean, bandwidth 5, power 1" in lines
    assert "group 2 columns [2], kernel laplacian, bandwidth 7, power 1" in lines
    assert "classes 30, one sketch each: 0, 1, 2, 3, 4, 5, 6, 7, … 22 more" in lines


def test_show_says_what_a_sketch_and_its_deltas_take(hushsum: Hushsum, plan_toml: Path) -> None:
    plan = hs.Plan.from_toml(plan_toml)
    shown = json.loads(hushsum("plan", "show", str(plan_toml), "--json").out)
    sketch = hs.Sketch(plan)
    assert shown["counters"] == sketch.counters.size + sketch.counts.size == 50 * 256 + 1
    assert shown["sketch_bytes"] == sketch.counters.nbytes + sketch.counts.nbytes
    assert shown["delta_bytes_max"] == plan.delta_bytes_max
    records = np.random.default_rng(0).uniform(0, 255, (4096, 3))
    for most, name in ((1, "delta_bytes_of_one_record_max"), (4096, "delta_bytes_max")):
        delta, _ = encode(plan, records[:most], window=1, id=DeltaId(2**63, 2**31))
        assert delta is not None
        assert shown[name] / 2 < len(delta.pack(plan)) <= shown[name]
    lines = {" ".join(line.split()) for line in hushsum("plan", "show", str(plan_toml)).out.splitlines()}
    assert "memory 12,801 counters, 100.0 KiB" in lines
    assert f"delta at most {shown['delta_bytes_of_one_record_max']} bytes for one record, " in " ".join(lines)
    assert any(line.startswith("bias") for line in lines) == (plan.family.kernel_error > 0)


def test_show_gives_large_sketches_in_mebibytes(hushsum: Hushsum, plan_toml: Path) -> None:
    plan_toml.write_text(TOML.replace("rows = 50", "rows = 1000").replace("buckets = 256", "buckets = 1024"))
    assert "1,024,001 counters, 7.8 MiB" in hushsum("plan", "show", str(plan_toml)).out


def test_show_states_the_bias_of_a_series_and_that_its_noise_is_the_worst(hushsum: Hushsum, plan_toml: Path) -> None:
    hermite = 'family = "hermite"\nkernel = "gaussian"\nbandwidth = 100\n'
    head, tail = TOML.split("family", 1)[0], TOML[TOML.index("[privacy]") :]
    plan_toml.write_text(head + hermite + tail)
    out = " ".join(hushsum("plan", "show", str(plan_toml)).out.split())
    error = hs.Plan.from_toml(plan_toml).family.kernel_error
    assert f"bias up to {error:.2g} per record" in out
    assert "records per answer at the worst query" in out
    assert json.loads(hushsum("plan", "show", str(plan_toml), "--json").out)["kernel_error"] == error
    plan_toml.write_text(f'{head}family = "partition"\nbandwidth = 100\nrows = 5\nbuckets = 64\n{tail}')
    assert "bias" not in hushsum("plan", "show", str(plan_toml)).out


def test_a_plan_of_sets_is_made_and_shown(hushsum: Hushsum, plan_toml: Path) -> None:
    columns = 'kind = "vector"\ndim = 3\nlower = [0, 0, 0]\nupper = [255, 255, 255]\n'
    plan_toml.write_text(
        TOML.replace(columns, 'kind = "set"\nuniverse = 5000\n').replace(
            'kernel = "euclidean"\nbandwidth = 5.0', 'kernel = "jaccard"'
        )
    )
    ended = hushsum("plan", "make", str(plan_toml))
    assert ended.status == 0
    assert "a set of ids from 0 to 4,999" in ended.out


SECURE = TOML.replace("total_epsilon = 30.0", 'total_epsilon = 30.0\ntotal_delta = 1e-6\nmode = "secure"')


def test_a_secure_plan_shows_its_cohort_its_vector_and_whom_it_trusts(hushsum: Hushsum, tmp_path: Path) -> None:
    path = tmp_path / "secure.toml"
    path.write_text(SECURE)
    ended = hushsum("plan", "make", str(path))
    assert ended.status == 0, ended.err
    plan = hs.Plan.from_bytes(path.with_suffix(".json").read_bytes())
    shown = " ".join(ended.out.split())
    assert plan.privacy.cohort is not None
    for text in (
        "ε = 1, δ = 7.27596e-12 per record and window, zero-out",
        "cohorts of 90 to 100 clients, at most 10 corrupt: the noise of h = 80 honest survivors",
        f"{plan.privacy.cohort.degree} neighbours per client, any {plan.privacy.cohort.threshold} of which",
        f"{plan.words.bytes / 1024:,.1f} KiB per client and window, with or without records: 12,800 counters of",
        "malicious server; no key registry: the server is trusted to relay keys correctly",
        "public participation: every client submits in every window",
        "assumed at most 10 clients of every cohort are corrupt (the plan states no pool)",
    ):
        assert text in shown
    assert "for one record" not in shown  # no delta is sent
    fields = json.loads(hushsum("plan", "show", str(path), "--json").out)
    assert fields["vector_bytes"] == plan.words.bytes
    assert fields["plan"]["privacy"]["secure"]["cohort"] == 100


def test_a_secure_plan_without_a_delta_for_failures_is_told_so(hushsum: Hushsum, tmp_path: Path) -> None:
    path = tmp_path / "secure.toml"
    path.write_text(SECURE.replace("total_delta = 1e-6\n", ""))
    ended = hushsum("plan", "make", str(path))
    assert ended.status != 0
    assert "privacy.total_delta: is missing" in ended.err
