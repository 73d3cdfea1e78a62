"""`hushsum describe`: the statistics of a release of cells."""

import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hushsum_cli.output import as_json as as_json_option
from hushsum_cli.output import confidence_option, examples, print_json, print_table

if TYPE_CHECKING:
    from hushsum.statistics import Description, Figure


@click.command(
    short_help="Describe the columns of a release: count, mean, std, quartiles.",
    epilog=examples("hushsum describe today.hush", "hushsum describe today.hush --label sky --confidence 0.9 --json"),
)
@click.argument("release_file", metavar="FILE.hush", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--label", help="Only records of this class.  [default: all classes]")
@confidence_option
@as_json_option
def describe(*, release_file: Path, label: str | None, confidence: float, as_json: bool) -> None:
    """Describe the columns of a release: count, mean, standard deviation, bounds and quartiles, with intervals.

    The release must be of family partition with a counter for each cell (question histogram). This uses no privacy
    budget. min and max are the public bounds of the plan, not values of records.
    """
    from hushsum.releases import load
    from hushsum.statistics import Statistics

    release = load(release_file)
    found = Statistics(release, label=label).describe(confidence=confidence)
    if as_json:
        columns = {
            name: {"cell_width": found.cell_widths[name], **{figure.name: _fields(figure) for figure in figures}}
            for name, figures in found.columns.items()
        }
        about = {"label": label, "confidence": confidence, "statement": release.statement()}
        print_json({**about, "count": _fields(found.count), "columns": columns})
        return
    where = "released in process" if release.window is None else f"window {release.window}"
    title = f"{release.plan.name}, {where}" + ("" if label is None else f", class {label!r}")
    share = f"{100 * confidence:g} %"
    rows = [_row("", found.count)]
    rows += [_row(name, figure) for name, figures in found.columns.items() for figure in figures]
    print_table(["column", "figure", "value", "± std error", f"{share} from", "to"], rows, title=title)
    for line in _notes(found):
        click.echo(line)
    click.echo(release.statement())


def _row(column: str, figure: "Figure") -> list[str]:
    error = "" if figure.std_error is None else _shown(figure.std_error)
    ends = ["bound", ""] if figure.name in {"min", "max"} else [_shown(figure.low), _shown(figure.high)]
    return [column, figure.name, _shown(figure.value) + ("*" if figure.at_bound else ""), error, *ends]


def _notes(found: "Description") -> list[str]:
    widths = ", ".join(f"{name} {width:,.6g}" for name, width in found.cell_widths.items())
    notes = [f"width of a cell, which intervals include: {widths}"]
    figures = [figure for figures in found.columns.values() for figure in figures]
    if any(figure.at_bound for figure in figures):
        notes.append("* the interval reaches a bound, where records beyond it were clipped: the value may be beyond it")
    if any(math.isnan(figure.value) for figure in figures):
        notes.append("unknown: too few records for the noise, or a variance that is not above 0")
    return notes


def _fields(figure: "Figure") -> dict[str, object]:
    known = {"value": figure.value, "std_error": figure.std_error}
    numbers = {name: None if number is None or math.isnan(number) else number for name, number in known.items()}
    ends = None if math.isnan(figure.low) else [figure.low, figure.high]
    return {**numbers, "interval": ends, "at_bound": figure.at_bound}


def _shown(number: float) -> str:
    return "unknown" if math.isnan(number) else f"{number:,.6g}"
