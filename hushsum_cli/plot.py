"""`hushsum plot`: a figure of a release."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hushsum_cli.output import examples

if TYPE_CHECKING:
    from hushsum.plan import Plan
    from hushsum.plots import View

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command(
    short_help="Plot a release.",
    epilog=examples(
        "hushsum plot today.hush --columns red,green --hold blue=230 -o today.png",
        "hushsum plot today.hush --kind pairs --columns red,green,blue --dark",
        "hushsum plot today.hush --difference yesterday.hush",
    ),
)
@click.argument("release_file", metavar="FILE.hush", type=_FILE)
@click.option(
    "-o",
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Output file (.png, .svg, .pdf).  [default: FILE.png in this directory]",
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
@click.option("--dark", is_flag=True, help="Light lines on a dark background.")
def plot(
    *,
    release_file: Path,
    out: Path | None,
    kind: str | None,
    columns: str | None,
    held: tuple[str, ...],
    other_file: Path | None,
    dark: bool,
) -> None:
    r"""Plot a release: its density, pairs of columns, classes, or the distribution of each column.

    \b
    density  along a column with its 95 % interval, and over two columns
    pairs    of up to five columns
    classes  records of each class, and the share of each class along a column
    cdf      histogram and distribution function of each column, of grid cells

    With --difference, the density minus that of another release of the same sketch, and where the difference is more
    than noise explains. Other columns are fixed at the densest point of the release, or as --hold sets them. For plans
    of vectors only: for sets and models (family paired) use `hushsum query`.
    """
    from hushsum import plots
    from hushsum.releases import load

    release = load(release_file)
    plan = release.plan
    plots.refuse_undrawable(plan)
    of_density = other_file is not None or bool(held)
    if of_density and kind not in {None, "density"}:
        raise click.UsageError(f"--hold and --difference are for --kind density, got --kind {kind}")
    chosen = None if columns is None else [_column(plan, text, "--columns") for text in columns.split(",")]
    target = out or Path(release_file.with_suffix(".png").name)
    with plots.theme(dark=dark):
        try:
            if not of_density:
                figure = plots.release_figure(release, kind=kind, columns=chosen, dark=dark)
            else:
                cut = chosen or [0, 1][: plan.vectors.dim]
                if other_file is None:
                    view = _view(plan, plots.densest_view(release, cut), held)
                    figure = plots.density_figure(release, view=view)
                else:
                    compared = release.compare(load(other_file))
                    view = _view(plan, plots.common_view(compared, cut), held)
                    title = f"{release_file.name} minus {other_file.name}"
                    figure = plots.difference_figure(compared, view=view, title=title)
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--columns") from error
        try:
            figure.savefig(target)
        except ValueError as error:  # an ending that is no format
            raise click.BadParameter(str(error).splitlines()[0], param_hint="--out") from error
    click.echo(str(target))


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
