"""`hushsum plan init`: a plan file from public bounds and a few answers."""

import io
import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from hushsum import Plan
from tests.hushsum_cli.calling import Hushsum

BOUNDS = ("--bounds", "age=0:120", "--bounds", "income=0:500000")
TOTAL = ("--total-epsilon", "3")


class Terminal(io.StringIO):
    """What somebody types."""

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.stdin", io.StringIO())


def csv(path: Path, seed: int, rows: int = 50) -> str:
    rng = np.random.default_rng(seed)
    lines = [f"{rng.integers(20, 90)},{rng.integers(1000, 90_000)},{'ab'[rng.integers(2)]}" for _ in range(rows)]
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(["age,income,kind", *lines]))
    return str(path)


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--question", "outliers"),
        ("--question", "classes", "--classes", "a,b"),
        ("--question", "histogram", "--records", "1e6"),
        ("--trust", "secure", "--clients", "60"),
        ("--trust", "silo"),
        ("--trust", "report", "--records", "1000"),
        ("--records-per-client", "5", "--epsilon", "0.3"),
        ("--delta", "1e-6"),
    ],
    ids=" ".join,
)
def test_what_is_written_is_made_unchanged_without_a_warning(hushsum: Hushsum, options: tuple[str, ...]) -> None:
    data = csv(Path("data.csv"), 1)
    ended = hushsum("plan", "init", data, *BOUNDS, *TOTAL, "--label-column", "kind", *options)
    assert (ended.status, ended.err) == (0, ""), ended.err
    assert "the header of data.csv only, no value: age, income, kind" in ended.out
    assert " ± " in ended.out or "about ±" in ended.out
    written = Path("plan.toml").read_bytes()
    made = hushsum("plan", "make", "plan.toml")
    assert (made.status, made.err) == (0, ""), made.err
    assert Path("plan.toml").read_bytes() == written
    assert Plan.from_bytes(Path("plan.json").read_bytes()).name == "data"


def test_a_regression_is_written_with_its_target_last(hushsum: Hushsum) -> None:
    bounds = ("--bounds", "y=-3:3", "--bounds", "x=-1:1")
    assert hushsum("plan", "init", *bounds, *TOTAL, "--question", "regression", "--target", "y").status == 0
    assert Plan.from_toml("plan.toml").collection.names == ("x", "y")


def test_files_that_differ_in_their_values_alone_give_the_same_plan_byte_for_byte(hushsum: Hushsum) -> None:
    written, said = set(), set()
    for folder, (seed, rows) in {"first": (1, 50), "other": (2, 7), "third": (3, 400), "latin": (4, 9)}.items():
        data = csv(Path(folder) / "data.csv", seed, rows)
        if folder == "latin":  # bytes behind the first line that are no UTF-8, quotes that are not closed
            Path(data).write_bytes(Path(data).read_bytes().replace(b"kind\n", b'kind\n"Jos\xe9,\x00\n'))
        ended = hushsum("plan", "init", data, *BOUNDS, *TOTAL, "--columns", "age,income", "-o", f"{folder}/plan.toml")
        assert ended.status == 0, ended.err
        written.add(Path(folder, "plan.toml").read_bytes())
        said.add("".join(ended.out.split()).replace(folder, ""))
    assert len(written) == len(said) == 1
    assert b"and no value" in written.pop()


def test_of_a_public_file_what_is_missing_is_taken_and_both_texts_say_so(hushsum: Hushsum) -> None:
    data = csv(Path("data.csv"), 1, rows=80)
    options = (*TOTAL, "--public", "--bounds", "age=0:120", "--label-column", "kind", "--question", "classes")
    ended = hushsum("plan", "init", data, *options)
    assert ended.status == 0, ended.err
    assert "values of data.csv, which --public declares public: bounds of income" in " ".join(ended.out.split())
    text = Path("plan.toml").read_text()
    assert "which was declared public" in text
    assert '"bounds of income, the number of records, the labels"' in text
    plan = Plan.from_toml("plan.toml")
    values = np.loadtxt(data, delimiter=",", skiprows=1, usecols=1)
    assert (plan.vectors.lower[1], plan.vectors.upper[1]) == (values.min(), values.max())
    assert plan.vectors.upper[0] == 120
    assert plan.classes == ("a", "b")


def test_a_missing_bound_is_refused_with_the_reason_and_nothing_is_written(hushsum: Hushsum) -> None:
    data = csv(Path("data.csv"), 1)
    ended = hushsum("plan", "init", data, "--bounds", "age=0:120", "--columns", "age,income", *TOTAL)
    assert ended.status == 1
    assert "bounds: column 'income' has none; bounds must not be taken from the data" in ended.err
    assert "--bounds NAME=LOW:HIGH" in ended.err
    assert not Path("plan.toml").exists()


def test_another_plan_file_is_not_replaced_unasked(hushsum: Hushsum) -> None:
    Path("plan.toml").write_text("precious")
    ended = hushsum("plan", "init", *BOUNDS, *TOTAL)
    assert (ended.status, Path("plan.toml").read_text()) == (1, "precious")
    assert "plan.toml already exists: use --force" in ended.err
    assert hushsum("plan", "init", *BOUNDS, *TOTAL, "--force").status == 0
    Plan.from_toml("plan.toml")


SECRETS = (  # the bytes of a first line of values, and what must not show of it
    ("1,2,3", "1,2"),
    ("Smith,34,b", "Smith"),
    ("34;52000;alice", "alice"),
    ("alice\t34\t52000", "alice"),
    ("alice|34|52000", "alice"),
    ("alice,2020-01-31,b", "alice"),
    ("alice,a@b.example,b", "alice"),
    ("alice,12 %,b", "alice"),
    ("alice,-5,b", "alice"),
    ("alice,.5 kg,b", "alice"),
    ("alice,nan", "alice"),
    ('"alice,bob\n34,52000', "alice"),
    ('alice,"bob\n34,52000"\n', "alice"),
    ('alice, "bob\n', "alice"),
    ("alice,alice", "alice"),
    ("alice,jos\udce9", "alice"),
    ("alice,b\x00ob", "alice"),
    ("alice," + "b" * 70_000, "alice"),
    ("alice,bob,carol", "bob"),  # looks like names, of which none was given
)


@pytest.mark.parametrize(("first", "secret"), SECRETS, ids=range(len(SECRETS)))
@pytest.mark.parametrize("options", [(), ("--bounds", "age=0:120"), ("--columns", "age"), ("--label-column", "kind")])
def test_a_first_line_of_values_is_refused_and_not_shown(
    hushsum: Hushsum, first: str, secret: str, options: tuple[str, ...]
) -> None:
    Path("data.csv").write_bytes(f"{first}\n4,5,6\n".encode(errors="surrogateescape"))
    for more in ((), ("--json",)):
        ended = hushsum("plan", "init", "data.csv", *TOTAL, *options, *more)
        assert ended.status == 1
        assert "data.csv" in ended.err
        assert secret not in ended.err + ended.out
        assert not Path("plan.toml").exists()


@pytest.mark.parametrize("first", ["2019,2020", "income @ home,1st"])
def test_names_that_look_like_values_are_taken_where_they_are_given(hushsum: Hushsum, first: str) -> None:
    Path("data.csv").write_text(f"{first}\n1,2\n3,4\n")
    one, other = first.split(",")
    bounds = ("--bounds", f"{one}=0:9", "--bounds", f"{other}=0:9")
    for options in (bounds, (*bounds, "--columns", first)):
        ended = hushsum("plan", "init", "data.csv", *TOTAL, *options, "--force")
        assert ended.status == 0, ended.err
        assert Plan.from_toml("plan.toml").collection.names == (one, other)
    refused = hushsum("plan", "init", "data.csv", *TOTAL, *bounds[:2], "--columns", one, "--force")
    assert refused.status == 1
    assert other not in refused.err


def test_other_columns_are_named_where_one_name_that_was_given_is_found(hushsum: Hushsum) -> None:
    data = csv(Path("data.csv"), 1)
    found = hushsum("plan", "init", data, *TOTAL, "--columns", "age,gender")
    assert "no column 'gender'; it has age, income, kind" in found.err
    none = hushsum("plan", "init", data, *TOTAL, "--columns", "gender")
    assert "no column 'gender'; it has 3 columns of other names" in none.err


def test_on_a_terminal_names_are_confirmed_before_anything_else(
    hushsum: Hushsum, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("data.csv").write_text("Smith,Boston\nJones,Paris\n")
    for typed in ("\n", "n\n"):
        monkeypatch.setattr("sys.stdin", Terminal(typed))
        ended = hushsum("plan", "init", "data.csv", *TOTAL)
        assert ended.status == 1
        assert "Columns of data.csv: Smith, Boston" in ended.out
        assert "Are these names of columns, and no values?" in ended.out
        assert "Question" not in ended.out
        assert not Path("plan.toml").exists()


def test_on_a_terminal_nothing_is_asked_where_all_columns_have_bounds_and_the_total_is_given(
    hushsum: Hushsum, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("data.csv").write_text("age,income,kind\n")
    kind = ("--bounds", "kind=0:1")
    monkeypatch.setattr("sys.stdin", Terminal(""))
    for given in (("data.csv", *BOUNDS, *kind), BOUNDS):
        ended = hushsum("plan", "init", *given, *TOTAL, "--force")
        assert ended.status == 0, ended.err
    classes = ("--question", "classes", "--label-column", "kind", "--classes", "a,b")
    assert hushsum("plan", "init", "data.csv", *BOUNDS, *classes, *TOTAL, "--force").status == 0
    for some, asked in (
        ((*BOUNDS, *TOTAL), "Are these names"),
        ((*BOUNDS, *kind), "Are these names"),
        ((*BOUNDS, *TOTAL, *classes[:4]), "Are these names"),
    ):
        assert asked in hushsum("plan", "init", "data.csv", *some, "--force").out


def test_the_output_says_that_the_name_becomes_public_and_comments_do_not_hold_it(hushsum: Hushsum) -> None:
    data = csv(Path("patients_hiv.csv"), 1)
    options = (*BOUNDS, *TOTAL, "--columns", "age,income")
    shown = " ".join(hushsum("plan", "init", data, *options).out.split())
    assert "patients_hiv: it becomes public with the plan and its releases; --name changes it" in shown
    for more in ((), ("--public",)):
        assert hushsum("plan", "init", data, *options, *more, "--name", "ages", "--force").status == 0
        assert "hiv" not in Path("plan.toml").read_text()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ((*BOUNDS,), "--total-epsilon is missing"),
        (("--bounds", "age", *TOTAL), "'age', expected NAME=LOW:HIGH"),
        (("--public", *TOTAL), "--public needs DATA"),
        ((*BOUNDS, *TOTAL, "--question", "classes"), "expected all labels that records may have"),
        ((*BOUNDS, *TOTAL, "--question", "histogram", "--trust", "report"), "reports cannot answer 'histogram'"),
    ],
)
def test_what_is_missing_or_contradicts_is_named(hushsum: Hushsum, options: tuple[str, ...], error: str) -> None:
    ended = hushsum("plan", "init", *options)
    assert ended.status == 2
    assert error in " ".join(ended.err.split())


def test_on_a_terminal_what_is_not_given_is_asked_for(hushsum: Hushsum, monkeypatch: pytest.MonkeyPatch) -> None:
    data = csv(Path("data.csv"), 1)
    typed = ["y", "histogram", "0", "0-120", "0:120", "0:500000", "", "half", "0.5", "2", "", "20000"]
    monkeypatch.setattr("sys.stdin", Terminal("\n".join(typed) + "\n"))
    ended = hushsum("plan", "init", data)
    assert ended.status == 0, ended.err
    for asked in ("Public bounds of age, as LOW:HIGH", "Question", "ε of one release", "Records expected"):
        assert asked in ended.out
    assert "'age=0-120', expected NAME=LOW:HIGH" in ended.out + ended.err
    assert "'half', expected a number above 0" in ended.out + ended.err
    plan = Plan.from_toml("plan.toml")
    assert plan.collection.names == ("age", "income")  # the third was left out
    assert plan.family.name == "partition"
    assert [float(number) for number in (plan.privacy.epsilon, plan.privacy.total_epsilon)] == [0.5, 2]


def test_labels_and_clients_are_asked_for_where_the_question_needs_them(
    hushsum: Hushsum, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = csv(Path("data.csv"), 1)
    typed = ["y", "classes", "kind", "3", "income", "0:120", "a,b", "1", "2", "central", "500"]
    monkeypatch.setattr("sys.stdin", Terminal("\n".join(typed) + "\n"))
    ended = hushsum("plan", "init", data)
    assert ended.status == 0, ended.err
    plan = Plan.from_toml("plan.toml")
    assert (plan.collection.names, plan.classes) == (("age",), ("a", "b"))
    assert plan.privacy.records_per_client == 3
    assert "--label-column kind --client-column income" in " ".join(ended.out.split())


def test_what_is_given_counts_more_than_what_a_public_file_holds(hushsum: Hushsum) -> None:
    data = csv(Path("data.csv"), 1)
    ended = hushsum("plan", "init", data, *BOUNDS, *TOTAL, "--public", "--columns", "age,income", "--records", "7e5")
    assert ended.status == 0, ended.err
    assert "700,000 records" in Path("plan.toml").read_text()
    assert "no value" in Path("plan.toml").read_text()  # of which none was needed


def test_the_command_that_comes_next_runs_as_it_is_printed(hushsum: Hushsum, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    data = csv(Path("data.csv"), 1, rows=400)
    shown = hushsum("plan", "init", data, *BOUNDS, *TOTAL, "--columns", "age,income").out
    for _ in range(2):  # release make, then query
        (line,) = [each for each in shown.splitlines() if each.startswith("next")]
        ended = hushsum(*shlex.split(line)[2:])
        assert ended.status == 0, ended.err
        shown = ended.out
    assert "kernel sum" in shown


def test_json_says_what_was_read_and_what_is_expected(hushsum: Hushsum) -> None:
    fields = json.loads(hushsum("plan", "init", *BOUNDS, *TOTAL, "--json").out)
    assert fields["read"] == "no file"
    assert fields["id"] == Plan.from_toml("plan.toml").hex_id
    assert fields["expected"]["std_error"] > 0
