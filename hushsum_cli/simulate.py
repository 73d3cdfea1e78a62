"""`hushsum simulate`: the main job."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from hushsum_cli.output import ExactNumber, examples
from hushsum_cli.output import as_json as as_json_option

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command(
    short_help="Run the whole journey on this machine, with a kill on the way.",
    epilog=examples(
        "hushsum simulate",
        "hushsum simulate --data trips.parquet --columns lon,lat --clients 50 --epsilon 0.5",
        "hushsum simulate --epsilon 0.1 --delta 1e-6",
        "hushsum simulate --unit client --records-per-client 5 --clients 4000",
    ),
)
@click.option("--data", type=_FILE, help="Your records: .parquet, .csv or .npy. Default: the pixels of china.jpg.")
@click.option("--columns", help="Names of the columns of --data to take, with commas. Default: all.")
@click.option("--label-column", help="For a --plan with classes: the column of --data that holds each record's label.")
@click.option("--plan", type=_FILE, help="plan.toml or plan.json. Default: one that fits the records.")
@click.option("--clients", type=click.IntRange(1), default=200, show_default=True, help="Size of the fleet.")
@click.option("--deltas", type=click.IntRange(2), default=5000, show_default=True, help="Send at least so many.")
@click.option("--queries", type=click.IntRange(1), default=2000, show_default=True, help="Hold out so many records.")
@click.option("--epsilon", type=ExactNumber(), help="ε of the release. Default: the plan's, or 1.")
@click.option("--delta", type=ExactNumber(), help="δ of the release. Default: the plan's, or 0, which is pure ε.")
@click.option(
    "--unit", type=click.Choice(["record", "client"]), help="Whom ε protects. Default: the plan's, or record."
)
@click.option("--records-per-client", type=click.IntRange(1), help="Unit client: count at most so many of each.")
@click.option("--partitions", type=click.IntRange(1, 64), default=1, show_default=True, help="Of the server's log.")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=7, show_default=True, help="Of all public choices.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("out"),
    show_default=True,
    help="Folder for density.png, summary.json, release.hush and plan.json.",
)
@as_json_option
def simulate(*, columns: str | None, as_json: bool, **choices: Any) -> int:
    """Run one record's whole journey on this machine, on real data, with a kill on the way.

    A fleet of clients hashes real records and sends deltas to an aggregator in a process of its own; the aggregator is
    killed while some deltas are durable but not acknowledged, and started again; the window is sealed and released; the
    release is queried, and compared with the truth. Exits with 1 when a delta was lost or counted twice, or when a
    counter differs.
    """
    if choices["plan"] is None and (choices["unit"] == "client") != (choices["records_per_client"] is not None):
        raise click.UsageError("--unit client and --records-per-client M go together")
    if choices["label_column"] is not None and (choices["data"] is None or choices["plan"] is None):
        raise click.UsageError("--label-column is for --data and a --plan with classes")
    from simulator import Settings
    from simulator import simulate as run
    from simulator.progress import Bars, Quiet
    from simulator.summary_table import print_summary

    settings = Settings(columns=tuple(columns.split(",")) if columns else (), **choices)
    with _terminated_like_interrupted():
        if sys.stderr.isatty():
            with Bars() as bars:
                summary = run(settings, bars)
        else:
            summary = run(settings, Quiet())
    if as_json:
        click.echo(summary.to_json(), nl=False)
    else:
        print_summary(summary, settings.out)
    violations = summary.violations()
    for sentence in violations:
        click.echo(f"hushsum: {sentence}", err=True)
    return 1 if violations else 0


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does: with the server that it has started, and its temporary folder."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
