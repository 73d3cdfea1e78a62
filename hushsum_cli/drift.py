"""`hushsum drift`: when what a series of releases is of changes."""

from datetime import UTC, datetime
from pathlib import Path

import click

from hushsum_cli.output import as_json as as_json_option
from hushsum_cli.output import examples, level_option, print_json, print_table, utc_text


@click.command(
    short_help="Find when what is collected changes.",
    epilog=examples("hushsum drift days/*.hush", "hushsum drift days/*.hush --level 0.01 --horizon 365 --json"),
)
@click.argument(
    "release_files",
    metavar="FILE.hush...",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    nargs=-1,
    required=True,
)
@level_option
@click.option(
    "--horizon",
    type=click.IntRange(min=2),
    help="The level is for so many windows, tested anew after each.  [default: those of the files, or the plan's]",
)
@click.option("--label", help="Only records of this class.  [default: all classes]")
@as_json_option
def drift(
    *, release_files: tuple[Path, ...], level: float, horizon: int | None, label: str | None, as_json: bool
) -> None:
    """Find when what is collected changes, from the releases of several windows of one plan.

    Windows before and after each moment are compared, 1, 2, 4, ... on each side. The probability that any change is
    false is at most --level, for all tests of the horizon together. This uses no privacy budget. Windows without a
    release are passed over. `hushsum plot --over-time` draws the changes.
    """
    from hushsum.releases import Series, load

    series = Series(map(load, release_files))
    try:
        found = series.drift(level=level, horizon=horizon, label=label)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    schedule = series.plan.window
    moments = [
        datetime.fromtimestamp(schedule.end_ms(change.after) / 1000, UTC).isoformat(timespec="seconds")
        for change in found.changes
    ]
    if as_json:
        changes = [
            {
                "after_window": change.after,
                "at": moment,
                "within_windows": [change.first, change.last],
                "p_value": change.p_value,
            }
            for change, moment in zip(found.changes, moments, strict=True)
        ]
        about = {"windows": len(series), "level": found.level, "horizon": found.horizon, "label": label}
        print_json({**about, "tests": found.tests, "tests_made": found.made, "changes": changes})
        return
    rows = [
        [
            str(change.after),
            utc_text(schedule.end_ms(change.after)),
            f"{change.first} to {change.last}",
            f"{change.p_value:.2g}",
        ]
        for change in found.changes
    ]
    class_text = "" if label is None else f", class {label!r}"
    title = f"{series.plan.name}, {len(series)} windows{class_text}"
    if rows:
        print_table(["change after window", "at (UTC)", "within windows", "p"], rows, title=title)
    else:
        click.echo(f"{title}: no change found")
    click.echo(
        f"That any change is false has probability {found.level:g} at most, over {found.tests:,} tests of "
        f"{found.horizon:,} windows, of which {found.made:,} are made."
    )
