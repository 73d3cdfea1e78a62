"""`hushsum query`: answers from a release."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from hushsum_cli.columns import chosen_columns
from hushsum_cli.output import as_json as as_json_option
from hushsum_cli.output import confidence_option, examples, print_json, print_table

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from hushsum.plan import Plan
    from hushsum.releases import Release

    Floats = npt.NDArray[np.float64]
    Ids = npt.NDArray[np.int64]

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command(
    short_help="Query a release for kernel sums or densities.",
    epilog=examples(
        "hushsum query today.hush --at 210,225,240 --at 30,30,30",
        "hushsum query today.hush --queries points.csv --density --json",
        "hushsum query today.hush --at 210,225,240 --label sky",
        "hushsum query baskets.hush --at 3,17,29 --at 5,17",
    ),
)
@click.argument("release_file", metavar="FILE.hush", type=_FILE)
@click.option("--at", "points", multiple=True, metavar="X,Y,…", help="Query point. Repeatable.")
@click.option("--queries", type=_FILE, help="File of query points (.parquet, .csv, .npy).")
@click.option("--columns", help="Columns of --queries to use: names, or PLAN=FILE pairs, separated by commas.")
@click.option("--by-position", is_flag=True, help="Match columns by position and ignore their names.")
@click.option("--label", help="Only records of this class.  [default: all classes]")
@click.option("--density", is_flag=True, help="Print densities (mean kernels) instead of kernel sums.")
@confidence_option
@as_json_option
def query(  # noqa: PLR0913  one argument an option
    *,
    release_file: Path,
    points: tuple[str, ...],
    queries: Path | None,
    columns: str | None,
    by_position: bool,
    label: str | None,
    density: bool,
    confidence: float,
    as_json: bool,
) -> None:
    """Query a release for kernel sums (roughly, the number of records near a point), with confidence intervals.

    A query point has the coordinates of a record. For plans of sets it is the ids of one set; for family paired, the
    coefficients of a model (one fewer than columns), and the answer is the model's total loss.

    Queries use no privacy budget: there is no limit on their number.
    """
    if bool(points) == (queries is not None):
        raise click.UsageError("expected either --at or --queries")
    from hushsum.releases import load

    release = load(release_file)
    asked: Floats | list[Ids]
    if queries is not None:
        asked = _from_file(queries, columns, release, by_position=by_position)
    else:
        asked = _from_texts(points, release.plan)
    answer = release.density(asked, label=label) if density else release.kernel_sum(asked, label=label)
    low, high = answer.interval(confidence)
    what = "density" if density else "kernel sum"
    counts = _counts(release)
    if as_json:
        places = [at.tolist() for at in asked]
        rows = zip(places, answer.value.tolist(), answer.std_error.tolist(), low.tolist(), high.tolist(), strict=True)
        answers = [
            {"at": at, "value": value, "std_error": None, "interval": None}
            if math.isnan(error)
            else {"at": at, "value": value, "std_error": error, "interval": [start, end]}
            for at, value, error, start, end in rows
        ]
        about = {"what": what, "label": label, "confidence": confidence, "statement": release.statement()}
        print_json({**about, **counts.to_fields(), "answers": answers})
        return
    form = "{:.4g}" if density else "{:,.1f}"
    table = [
        [", ".join(f"{x:g}" for x in at), *(_shown(form, number) for number in row)]
        for at, *row in zip(asked, answer.value, answer.std_error, low, high, strict=True)
    ]
    share = f"{100 * confidence:g} %"
    where = "released in process" if release.window is None else f"window {release.window}"
    title = f"{release.plan.name}, {where}" + ("" if label is None else f", class {label!r}")
    print_table(["at", what, "± std error", f"{share} from", "to"], table, title=title)
    if counts.classes:
        of_classes = [[name, f"{value:,.1f}", f"{error:,.1f}"] for name, value, error in counts.classes]
        print_table(["class", "records", "± std error"], of_classes)
    click.echo(_in_all(release, counts))
    click.echo(release.statement())


def _in_all(release: "Release", counts: "_Counts") -> str:
    if release.plan.report_sizes is None:
        return f"{counts.value:,.1f} ± {counts.std_error:,.1f} records in total"
    return f"{counts.value:,.0f} report{'' if counts.value == 1 else 's'} in total (exact)"


def _shown(form: str, number: float) -> str:
    """One row alone does not show how far it is off."""
    return "unknown" if math.isnan(number) else form.format(number)


class _Counts(NamedTuple):
    """Numbers of records, in all and of each class."""

    value: float
    std_error: float
    classes: tuple[tuple[str, float, float], ...]

    def to_fields(self) -> dict[str, object]:
        """For JSON."""
        of_classes = {label: {"value": value, "std_error": error} for label, value, error in self.classes}
        return {"count": {"value": self.value, "std_error": self.std_error}, "counts": of_classes}


def _counts(release: "Release") -> _Counts:
    from hushsum.query import count_std_error

    def error(label: str | None = None) -> float:
        counters = release.counters  # of reports they tell how many are of a class, of cells how many in all
        return count_std_error(release.plan, label=label, draws=release.draws, counters=counters)

    of_classes = ((label, release.count_of(label), error(label)) for label in release.plan.classes)
    return _Counts(release.count, error(), tuple(of_classes))


def _from_texts(points: tuple[str, ...], plan: "Plan") -> "Floats | list[Ids]":
    """An array (m, query_dim), or m arrays of ids."""
    import numpy as np

    dim = plan.family.query_dim
    if not dim:
        return [_ids(point) for point in points]
    expected = f"expected {_numbers(plan)}"
    try:
        asked = [[float(number) for number in point.split(",")] for point in points]
    except ValueError as error:
        raise click.BadParameter(f"{error}; {expected} separated by commas", param_hint="--at") from error
    for point, numbers in zip(points, asked, strict=True):
        if len(numbers) != dim:
            raise click.BadParameter(f"{point!r} has {len(numbers)} numbers, {expected}", param_hint="--at")
    return np.array(asked, np.float64)


def _ids(point: str) -> "Ids":
    import numpy as np

    try:
        return np.unique(np.array([int(number) for number in point.split(",")], np.int64))
    except (ValueError, OverflowError) as error:
        expected = "expected the ids of one set, separated by commas, such as 3,17,29"
        raise click.BadParameter(f"{point!r}: {expected}", param_hint="--at") from error


def _numbers(plan: "Plan") -> str:
    """How many numbers a query has, and of what."""
    dim = plan.family.query_dim
    if plan.family.name != "paired":
        return f"{dim} numbers" if dim > 1 else "1 number"
    return f"{dim} coefficients of a model" if dim > 1 else "1 coefficient of a model"


def _from_file(path: Path, columns: str | None, release: "Release", *, by_position: bool) -> "Floats":
    import numpy as np

    from hushsum.errors import RecordError
    from hushsum.tables import NamedColumns, read_file, read_queries

    plan = release.plan
    if not plan.family.query_dim:
        raise click.UsageError("--queries is not supported for plans of sets: use --at with ids, such as --at 3,17,29")
    asked, chosen = read_file(path, names=plan.collection.names), chosen_columns(columns)
    if isinstance(asked, NamedColumns) and plan.family.query_dim == plan.vectors.dim:
        asked = read_queries(plan, asked, columns=chosen, by_position=by_position)
    elif isinstance(asked, NamedColumns):  # the coefficients of models, which the plan has no names for
        asked = asked.numbers(tuple(chosen or asked.names))
    elif chosen is not None:
        raise RecordError(f"{path}: the columns have no names, so --columns cannot be used")
    points = np.asarray(asked, np.float64)
    if points.shape[1] != plan.family.query_dim:
        raise RecordError(f"{path}: {points.shape[1]} columns, expected {_numbers(plan)}")
    return points
