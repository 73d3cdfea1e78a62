"""The notebooks of the examples are short and clean, and each shows what it says, run as it stands."""

import ast
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

import hushsum as hs
from build_tools.docs_site.tutorials import AS_NOTEBOOKS, notebook_file
from tests.doc_pages import SHOWN_WINDOW, answers, terminals

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples" / "notebooks"
NAMES = ("drift", "fleet_outliers", "heat_map", "synthetic", "tumours")
SHARED = ROOT.parent / "shared"
_LINE = 120


class Run:
    """The cells of a notebook, run in their order.

    Attributes:
        names: What the cells define.
        shown: The values that a notebook shows: the last expression of each cell, unless a semicolon follows it.
    """

    def __init__(self, name: str) -> None:
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.shown: list[Any] = []
        for number, source in enumerate(code_of(name), 1):
            tree = ast.parse(source)
            last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) and not source.endswith(";") else None
            where = f"{name}.ipynb, code cell {number}"
            exec(compile(tree, where, "exec"), self.names)
            if isinstance(last, ast.Expr):
                self.shown.append(eval(compile(ast.Expression(last.value), where, "eval"), self.names))

    @property
    def pictures(self) -> list[Figure]:
        """The figures that a notebook shows as pictures: those of pyplot, and values that have one."""
        drawn = [plt.figure(number) for number in plt.get_fignums()]
        return drawn + [value for value in self.shown if hasattr(value, "_repr_png_")]


def read(name: str) -> dict[str, Any]:
    return dict(json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8")))


def code_of(name: str) -> list[str]:
    return ["".join(cell["source"]) for cell in read(name)["cells"] if cell["cell_type"] == "code"]


@pytest.fixture(autouse=True)
def a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A notebook runs in a project that has nothing beside it, and writes nowhere else."""
    here = tmp_path / "project" / "examples" / "notebooks"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    plt.close("all")
    yield
    plt.close("all")
    assert not list(here.iterdir())


def test_every_notebook_is_tested() -> None:
    assert sorted(file.stem for file in FOLDER.iterdir()) == sorted(NAMES + AS_NOTEBOOKS)


@pytest.mark.parametrize("name", NAMES + AS_NOTEBOOKS)
def test_a_notebook_is_valid_and_without_outputs(name: str) -> None:
    """By the schema of nbformat 4.5, as far as these cells need it."""
    notebook = read(name)
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert set(notebook) == {"cells", "metadata", "nbformat", "nbformat_minor"}
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}
    assert notebook["metadata"]["kernelspec"] == {"display_name": "Python 3", "language": "python", "name": "python3"}
    cells = notebook["cells"]
    ids = [cell["id"] for cell in cells]
    assert len(set(ids)) == len(ids)
    assert all(re.fullmatch(r"[a-zA-Z0-9-_]{1,64}", each) for each in ids)
    for cell in cells:
        code = {"execution_count", "outputs"} if cell["cell_type"] == "code" else set()
        assert set(cell) == {"cell_type", "id", "metadata", "source"} | code
        assert cell["metadata"] == {}
        assert cell["cell_type"] in {"code", "markdown"}
        assert cell["cell_type"] == "markdown" or (cell["execution_count"] is None and cell["outputs"] == [])
        assert all(line.endswith("\n") for line in cell["source"][:-1])
    text = ["".join(cell["source"]) for cell in cells]
    assert text[0].startswith("# ")
    assert sum(line.startswith("# ") for line in "\n".join(text).split("\n")) == 1
    assert not re.search(r"(?m)(^|[\"'\s(])(/[a-z]+/|~/|[A-Z]:\\)", "\n".join(text)), "no path of a machine"


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_short_and_ends_with_what_was_spent(name: str) -> None:
    text = ["".join(cell["source"]) for cell in read(name)["cells"]]
    lines = [line for each in text for line in each.split("\n")]
    assert len(lines) < 100
    assert max(map(len, lines)) <= _LINE
    assert "statement()" in text[-1]


def spent(run: Run) -> float:
    with hs.Ledger(run.names["ledger"], read_only=True) as ledger:
        return float(ledger.spent.epsilon)


@pytest.mark.parametrize("where", ("stand-in", "real"))
def test_the_heat_map_has_its_hot_spot(where: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if where == "real":
        if not (SHARED / "data" / "nyc_taxi_pickups.parquet").exists():
            pytest.skip("there is no shared/data/nyc_taxi_pickups.parquet beside the project")
        (tmp_path / "shared").symlink_to(SHARED)
    run = Run("heat_map")
    out = capsys.readouterr().out
    assert ("stand-in" in out) == (where == "stand-in")
    release = run.names["release"]
    midtown, airport, park = release.density([[-73.98, 40.755], [-73.871, 40.774], [-73.87, 40.7]]).value
    assert midtown > 5 * airport > 10 * abs(park)
    exact = release.plan.family.kernel(np.column_stack([*run.names["trips"].values()]), [[-73.98, 40.755]]).mean()
    assert abs(midtown - exact) < 0.05 * exact
    (picture,) = run.pictures
    (drawn,) = picture.axes[0].images
    heat = np.asarray(drawn.get_array())
    row, column = np.unravel_index(np.argmax(heat), heat.shape)
    left, right, bottom, top = drawn.get_extent()
    side = len(heat)
    hottest = left + (column + 0.5) / side * (right - left), bottom + (row + 0.5) / side * (top - bottom)
    assert np.abs(np.array(hottest) - [-73.98, 40.755]).max() < 0.01
    assert "at most 73.2 %" in out
    assert spent(run) == 1.0


def test_outliers_of_the_fleet_raise_alarms_and_others_do_not(capsys: pytest.CaptureFixture[str]) -> None:
    from sklearn.metrics import roc_auc_score

    run = Run("fleet_outliers")
    normal, failing = run.names["normal"], run.names["failing"]
    assert run.names["fan_alarms"].mean() > 0.9
    assert run.names["normal_alarms"].mean() < 0.15
    scores = [run.names["detector"].score_samples(each) for each in (normal, failing)]
    assert roc_auc_score([0] * len(normal) + [1] * len(failing), -np.concatenate(scores)) > 0.95
    hot = run.names["fleet"].temperature.quantile(0.99)
    assert (failing.temperature < hot).any(), "temperature alone does not tell them"
    assert len(run.pictures) == 1
    assert run.names["release"].guarantee.unit == "client"
    assert "all records of one client (at most 10 in a window)" in capsys.readouterr().out
    assert spent(run) == 1.0


def test_tumours_are_classified_better_than_by_the_commonest_label(capsys: pytest.CaptureFixture[str]) -> None:
    """Of 200 runs the least accuracy was 0.85."""
    run = Run("tumours")
    assert 0.6 < run.names["commonest"] < 0.65
    assert run.names["accuracy"] > run.names["commonest"] + 0.1
    assert len(run.pictures) == 1
    assert "factor of at most e^1 = 2.72" in capsys.readouterr().out
    assert spent(run) == 1.0


def test_the_week_with_a_new_station_differs_there_and_like_weeks_do_not(capsys: pytest.CaptureFixture[str]) -> None:
    run = Run("drift")
    before, now = run.names["before"], run.names["now"]
    assert before.p_value() > 1e-4
    assert now.p_value() < 1e-9
    found = now.regions(sampling=True)
    assert len(found) > 5
    assert np.abs(found.places - run.names["station"]).max() < 0.03
    assert (found.difference.value > 0).all()
    assert len(before.regions(sampling=True, level=1e-4)) == 0
    assert len(run.pictures) == 1
    assert "with at most 95.3 %" in capsys.readouterr().out
    assert spent(run) == 3.0


def test_synthetic_records_keep_relations_and_lose_detail_with_more_columns() -> None:
    run = Run("synthetic")
    made, original = run.names["synthetic"], run.names["original"]
    apart = []
    for dim in (2, 3, 5):
        assert made[dim].shape == original[dim].shape
        assert np.abs(np.corrcoef(made[dim].T) - np.corrcoef(original[dim].T)).max() < 0.1
        shares = [
            np.histogram2d(each[:, 0], each[:, min(dim, 3) - 1], bins=64, range=[(0, 256)] * 2)[0] / len(each)
            for each in (made[dim], original[dim])
        ]
        apart.append(np.abs(shares[0] - shares[1]).sum() / 2)
    assert apart[0] < 0.2, "of red and blue, from two columns"
    assert apart[0] + 0.05 < apart[1] < apart[2] - 0.05
    assert len(run.pictures) == 1
    assert spent(run) == 3.0


# ------------------------------------------------------------------------------------------------------- tutorials

_IPYTHON = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for cell in json.load(open(sys.argv[1], encoding="utf-8"))["cells"]:
    if cell["cell_type"] == "code":
        source = "".join(cell["source"])
        shell.user_ns.pop("_exit_code", None)
        done = shell.run_cell(source)
        if not done.success or shell.user_ns.get("_exit_code"):
            raise SystemExit("failed: " + source)
"""


@pytest.mark.parametrize("name", AS_NOTEBOOKS)
def test_the_notebook_of_a_tutorial_is_made_of_its_page(name: str) -> None:
    file = FOLDER / f"{name}.ipynb"
    assert file.read_text(encoding="utf-8") == notebook_file(name), "python -m build_tools.docs_site.tutorials"


@pytest.mark.parametrize("name", AS_NOTEBOOKS)
def test_links_of_the_notebook_of_a_tutorial_lead_to_pages(name: str) -> None:
    links = re.findall(r"\]\((\.[^)#]*)", (FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))
    assert len(links) >= 3
    assert all((FOLDER / link).is_file() for link in links), links


@pytest.mark.long
@pytest.mark.parametrize("name", AS_NOTEBOOKS)
def test_the_notebook_of_a_tutorial_runs_from_its_first_cell_to_its_last(name: str, tmp_path: Path) -> None:
    """By IPython, which runs commands, writes files and keeps the service in the background as a notebook does."""
    with terminals(tmp_path) as opened:
        text = notebook_file(name).replace("localhost:7443", opened.address)
        file = tmp_path / "notebook.ipynb"
        file.write_text(text.replace(SHOWN_WINDOW, str(int(time.time() // 86_400))), encoding="utf-8")
        ended = subprocess.run(
            [sys.executable, "-c", _IPYTHON, str(file)],
            cwd=opened.folder,
            env={**opened.environment, "IPYTHONDIR": str(tmp_path / "ipython")},
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert len(answers(ended.stdout)) == 3
        assert list(opened.folder.glob("*.hush"))
