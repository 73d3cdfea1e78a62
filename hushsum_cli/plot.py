"""`hushsum plot`: a figure of a release."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hushsum_cli.output import examples, level_option

if TYPE_CHECKING:
    from hushsum.panels import Panels, View
    from hushsum.plan import Plan

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command(
    short_help="Plot a release.",
    epilog=examples(
        "hushsum plot today.hush --columns red,green --hold blue=230 -o today.png",
        "hushsum plot today.hush --kind pairs --columns red,green,blue --dark",
        "hushsum plot today.hush --difference yesterday.hush",
        "hushsum plot today.hush -o today.html",
        "hushsum plot --over-time days/*.hush --at 45,22000",
    ),
)
@click.argument("release_files", metavar="FILE.hush...", type=_FILE, nargs=-1, required=True)
@click.option(
    "-o",
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Output file: .png, .svg, .pdf, or .html (interactive).  [default: FILE.png in this directory]",
)
@click.option(
    "--kind",
    type=click.Choice(["density", "pairs", "classes", "cdf"]),
    help="What to plot.  [default: by the plan; density with --hold or --difference]",
)
@click.option("--columns", metavar="X,Y", help="Names or indices (from 0) of columns.  [default: the first ones]")
@click.option(
    "--hold", "held", multiple=True, metavar="COLUMN=VALUE", help="Fix another column at this value. Repeatable."
)
@click.option(
    "--difference", "other_file", metavar="OTHER.hush", type=_FILE, help="Plot the density minus that of this release."
)
@click.option("--over-time", is_flag=True, help="Plot the windows of several releases of one plan, and changes.")
@click.option(
    "--at", "places", multiple=True, metavar="X,Y,...", help="With --over-time: the density at this place. Repeatable."
)
@level_option
@click.option("--dark", is_flag=True, help="Light lines on a dark background.")
def plot(  # noqa: PLR0913  one argument an option
    *,
    release_files: tuple[Path, ...],
    out: Path | None,
    kind: str | None,
    columns: str | None,
    held: tuple[str, ...],
    other_file: Path | None,
    over_time: bool,
    places: tuple[str, ...],
    level: float,
    dark: bool,
) -> None:
    """Plot a release: its density, pairs of columns, classes, or the distribution of each column.

    \b
    density  along a column with its 95 % interval, and over two columns
    pairs    of up to five columns
    classes  records of each class, and the share of each class along a column
    cdf      histogram and distribution function of each column, of grid cells

    With --difference, the density minus that of another release of the same sketch, and where the difference is more
    than noise explains. Other columns are fixed at the densest point of the release, or as --hold sets them. For plans
    of vectors only: for sets and models (family paired) use `hushsum query`.

    With --over-time, the records of each window and densities at some places over time, and where what is collected
    changes (as `hushsum drift` finds it).

    An .html file is one interactive page: it shows each value with its interval, zooms, and loads nothing from any
    address.
    """  # noqa: D301  click keeps the lines after this character as they are
    from hushsum import panels
    from hushsum.releases import load

    if over_time:
        if kind or columns or held or other_file:
            raise click.UsageError("--over-time goes with --at, --level, --dark and --out alone")
        _plot_series(release_files, out or Path("over-time.png"), places, level=level, dark=dark)
        return
    if len(release_files) > 1 or places:
        raise click.UsageError("several releases and --at are for --over-time")
    (release_file,) = release_files
    release = load(release_file)
    plan = release.plan
    panels.refuse_undrawable(plan)
    of_density = other_file is not None or bool(held)
    if of_density and kind not in {None, "density"}:
        raise click.UsageError(f"--hold and --difference are for --kind density, got --kind {kind}")
    chosen = None if columns is None else [_column(plan, text, "--columns") for text in columns.split(",")]
    target = out or Path(release_file.with_suffix(".png").name)
    try:
        if not of_density:
            shown = panels.release_panels(release, kind=kind, columns=chosen)
        else:
            cut = chosen or [0, 1][: plan.vectors.dim]
            if other_file is None:
                view = _view(plan, panels.densest_view(release, cut), held)
                shown = panels.density_panels(release, view=view)
            else:
                compared = release.compare(load(other_file))
                view = _view(plan, panels.common_view(compared, cut), held)
                shown = panels.difference_panels(
                    compared, view=view, title=f"{release_file.name} minus {other_file.name}"
                )
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--columns") from error
    _write(shown, target, dark=dark)
    click.echo(str(target))


def _plot_series(files: tuple[Path, ...], target: Path, places: tuple[str, ...], *, level: float, dark: bool) -> None:
    from hushsum import panels
    from hushsum.releases import Series, load

    series = Series(map(load, files))
    panels.refuse_undrawable(series.plan)
    chosen = [_place(series.plan, text) for text in places] or None
    try:
        drift = series.drift(level=level) if len(series) > 1 else None
        shown = panels.over_time_panels(series, drift, places=chosen)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    _write(shown, target, dark=dark)
    click.echo(str(target))


def _place(plan: "Plan", text: str) -> list[float]:
    try:
        place = [float(number) for number in text.split(",")]
    except ValueError:
        place = []
    if len(place) != plan.vectors.dim:
        raise click.BadParameter(f"got {text!r}, expected {plan.vectors.dim} numbers", param_hint="--at")
    return place


def _write(shown: "Panels", target: Path, *, dark: bool) -> None:
    """Writes panels as a page (.html), or as a picture in the format that the file's ending names."""
    if target.suffix.lower() == ".html":
        from hushsum.plot_pages import page

        target.write_text(page(shown, dark=dark), encoding="utf-8")
        return
    from hushsum import plots

    with plots.theme(dark=dark):
        try:
            plots.draw(shown).savefig(target)
        except ValueError as error:  # an ending that is no format
            raise click.BadParameter(str(error).splitlines()[0], param_hint="--out") from error


def _view(plan: "Plan", view: "View", held: tuple[str, ...]) -> "View":
    """The same, at the values that are given."""
    place = list(view.held)
    for text in held:
        name, _, value = text.partition("=")
        try:
            place[_column(plan, name, "--hold")] = float(value)
        except ValueError as error:
            raise click.BadParameter(f"{text!r}, expected COLUMN=NUMBER", param_hint="--hold") from error
    return replace(view, held=tuple(place), is_highest=view.is_highest and not held)


def _column(plan: "Plan", text: str, option: str) -> int:
    if text in plan.collection.names:
        return plan.collection.names.index(text)
    if text.isdecimal() and int(text) < plan.vectors.dim:
        return int(text)
    known = ", ".join(plan.collection.names) or f"0 to {plan.vectors.dim - 1}"
    raise click.BadParameter(f"no column {text!r}; the release has {known}", param_hint=option)
