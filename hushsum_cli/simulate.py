"""`hushsum simulate`: the main job."""

import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from hushsum_cli.columns import chosen_columns
from hushsum_cli.output import ExactNumber, examples, print_json, print_table
from hushsum_cli.output import as_json as as_json_option

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_COLUMNS = (
    "Columns of --data to use: names, or PLAN=FILE pairs if the --plan uses other names, separated by commas.  "
    "[default: those of the --plan, or all]"
)
_MODES = ("central", "secure", "local")
_MODE = (
    "Trust mode: the server adds the noise (central), the clients of a cohort add it together (secure), or each client "
    "adds it before sending (local)."
)
_DROPOUT_RATE = "Mode secure: fraction of clients that drop out, from 0 to below 0.5.  [default: 0.1]"
_FORM = "Mode local: send one randomised report per record, or one noised sum per client.  [default: report]"
_RANDOMISER = "Mode local: randomiser of reports.  [default: k-rr]"
_SHUFFLER = "Mode local: run a shuffler between clients and server."
_CLIENTS = "Number of clients.  [default: 200; silos: 40]"
_DELTAS = "Minimum number of deltas or report batches to send.  [default: 5000; reports: 1000]"
_EPSILON = "ε of the release.  [default: the plan's, or 1; reports: 4]"
_DELTA = "δ of the release; 0 means pure ε.  [default: the plan's, or 0; secure, silo and shuffled: 1e-6]"
_WINDOWS = "Number of windows that the records are dealt out to, with --release cumulative."
_RELEASE = "Compare releases of all windows so far, under one ε, with sums of one release per window."
_COHORT = "Mode secure: clients per cohort.  [default: the plan's, or about 100]"


class _Delta(ExactNumber):
    """A number of at least 0, kept exactly as it was written."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Fraction:
        """The value of text such as ``1e-6`` or ``0``."""
        return Fraction(0) if value == "0" else super().convert(value, param, ctx)


@click.command(
    short_help="Demonstrate a collection end to end on this machine.",
    epilog=examples(
        "hushsum simulate",
        "hushsum simulate --data trips.parquet --columns lon,lat --clients 50 --epsilon 0.5",
        "hushsum simulate --epsilon 0.1 --delta 1e-6",
        "hushsum simulate --unit client --records-per-client 5 --clients 4000",
        "hushsum simulate --windows 48 --release cumulative --delta 1e-6",
        "hushsum simulate --mode secure --dropout-rate 0.1",
        "hushsum simulate --mode local --shuffler",
        "hushsum simulate --mode local --form silo --clients 30",
    ),
)
@click.option("--windows", type=click.IntRange(2, 10_000), help=_WINDOWS)
@click.option("--release", type=click.Choice(["cumulative"]), help=_RELEASE)
@click.option("--data", type=_FILE, help="Records (.parquet, .csv, .npy).  [default: the pixels of an example image]")
@click.option("--columns", help=_COLUMNS)
@click.option("--label-column", help="Column of --data with the labels, for a --plan with classes.")
@click.option("--plan", type=_FILE, help="plan.toml or plan.json.  [default: generated from the records]")
@click.option(
    "--mode", type=click.Choice(["central", "secure", "local"]), default="central", show_default=True, help=_MODE
)
@click.option("--dropout-rate", type=click.FloatRange(0, 0.5, max_open=True), default=0.1, help=_DROPOUT_RATE)
@click.option("--cohort", type=click.IntRange(3, 10_000), help=_COHORT)
@click.option("--form", type=click.Choice(["report", "silo"]), help=_FORM)
@click.option("--randomiser", type=click.Choice(["k-rr", "projective", "one-bit"]), help=_RANDOMISER)
@click.option("--shuffler", is_flag=True, help=_SHUFFLER)
@click.option("--clients", type=click.IntRange(1), help=_CLIENTS)
@click.option("--deltas", type=click.IntRange(2), help=_DELTAS)
@click.option(
    "--queries",
    type=click.IntRange(1),
    default=2000,
    show_default=True,
    help="Number of records to hold out as queries.",
)
@click.option("--epsilon", type=ExactNumber(), help=_EPSILON)
@click.option("--delta", type=_Delta(), help=_DELTA)
@click.option("--unit", type=click.Choice(["record", "client"]), help="Privacy unit.  [default: the plan's, or record]")
@click.option(
    "--records-per-client", type=click.IntRange(1), help="Unit client: maximum number of records per client and window."
)
@click.option(
    "--partitions",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    help="Number of log partitions of the server.",
)
@click.option(
    "--seed", type=click.IntRange(0, 2**32 - 1), default=7, show_default=True, help="Seed of all public random choices."
)
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("out"),
    show_default=True,
    help="Output directory for density.png, summary.json, release.hush and plan.json.",
)
@as_json_option
def simulate(*, columns: str | None, as_json: bool, **choices: Any) -> int:
    """Demonstrate a collection end to end on this machine, with real data and a crash of the aggregator.

    Clients hash records and send sketch deltas to an aggregator process. The aggregator is killed while some deltas are
    durable but not acknowledged, and restarted. The window is sealed and released, and the release is compared with the
    exact answers. Exits with status 1 if a delta is lost or counted twice, or if a counter differs.

    Mode secure: clients sum in cohorts, each with its share of the noise in a masked vector, and some drop out during a
    round; no process is killed. Exits with status 1 if the release minus the exact sum is not distributed as
    the plan's noise, or if the recorded spends are wrong.

    Mode local: clients randomise each record, or add noise to their sum. The aggregator is killed as in mode central,
    and with --shuffler the shuffler too. Exits with status 1 if a report or sum is lost or counted twice, if the
    service stored the sender of a report, or if the recorded spends are wrong.

    With --windows 48 --release cumulative the records are released in 48 windows, by the parts of a service in this
    process: a table and errors.png compare the errors by noise of cumulative releases with those of sums of tumbling
    releases. Exits with status 1 if the variance of the noise is not the stated one.
    """
    _refuse_contradictions(choices)
    if choices.pop("release") is not None:
        return _over_time(choices, columns, as_json=as_json)
    from hushsum_simulator import RunSettings
    from hushsum_simulator import simulate as run
    from hushsum_simulator.demo.summary import print_summary
    from hushsum_simulator.progress import Bars, Lines, Quiet

    settings = RunSettings(columns=chosen_columns(columns) or (), **_with_defaults(choices))
    with _terminated_like_interrupted():
        if sys.stderr.isatty():
            with Bars() as bars:
                summary = run(settings, bars)
        else:
            summary = run(settings, Quiet() if settings.mode == "central" else Lines())
    if as_json:
        click.echo(summary.to_json(), nl=False)
    else:
        print_summary(summary, settings.out)
    violations = summary.violations()
    for sentence in violations:
        click.echo(f"hushsum: {sentence}", err=True)
    return 1 if violations else 0


def _over_time(choices: Mapping[str, Any], columns: str | None, *, as_json: bool) -> int:
    from dataclasses import asdict

    from hushsum_simulator import RunSettings
    from hushsum_simulator.demo import over_time
    from hushsum_simulator.progress import Lines

    settings = RunSettings(columns=chosen_columns(columns) or (), **_with_defaults(choices))
    run = over_time.simulate_over_time(settings, Lines())
    if as_json:
        print_json({"variance_ratio": run.variance_ratio, "windows": [asdict(each) for each in run.windows]})
    else:
        title = f"{run.plan.name}: errors by noise of an answer, in records"
        print_table(over_time.COLUMNS, over_time.rows(run), title=title)
        for line in over_time.explanation(run.plan):
            click.echo(line)
        click.echo(f"noise of all counters: {run.variance_ratio:.3f} × the stated variance")
        click.echo(over_time.files(settings.out))
    for sentence in run.violations():
        click.echo(f"hushsum: {sentence}", err=True)
    return 1 if run.violations() else 0


def _with_defaults(choices: Mapping[str, Any]) -> dict[str, Any]:
    """The choices with those defaults that go by the mode and its form."""
    local, form = choices["mode"] == "local", choices["form"] or "report"
    clients = choices["clients"] or (40 if local and form == "silo" else 200)
    deltas = choices["deltas"] or (1000 if local else 5000)
    return {**choices, "form": form, "clients": clients, "deltas": deltas, "windows": choices["windows"] or 1}


def _refuse_contradictions(choices: Mapping[str, Any]) -> None:
    if (choices["windows"] is None) != (choices["release"] is None):
        raise click.UsageError("--windows and --release cumulative must be given together")
    if choices["windows"] is not None and choices["mode"] != "central":
        raise click.UsageError("--windows requires --mode central")
    if choices["plan"] is None and (choices["unit"] == "client") != (choices["records_per_client"] is not None):
        raise click.UsageError("--unit client and --records-per-client must be given together")
    if choices["label_column"] is not None and (choices["data"] is None or choices["plan"] is None):
        raise click.UsageError("--label-column requires --data and a --plan with classes")
    given = {name for name in ("deltas", "dropout_rate", "cohort") if _is_given(name)}
    secure, silo = choices["mode"] == "secure", choices["form"] == "silo"
    _refuse_outside_local(choices)
    if given & {"dropout_rate", "cohort"} and not secure:
        raise click.UsageError("--dropout-rate and --cohort require --mode secure")
    if "deltas" in given and secure:
        raise click.UsageError("--deltas cannot be used with --mode secure: clients send no deltas")
    if "deltas" in given and silo:
        raise click.UsageError("--deltas cannot be used with --form silo: a silo sends one noised sum per window")
    if choices["cohort"] is not None and choices["plan"] is not None:
        raise click.UsageError("--cohort cannot be used with --plan: the plan defines the cohort")


def _refuse_outside_local(choices: Mapping[str, Any]) -> None:
    own = {"--form": choices["form"], "--randomiser": choices["randomiser"], "--shuffler": choices["shuffler"]}
    given = [option for option, value in own.items() if value]
    if not given:
        return
    if choices["mode"] != "local":
        raise click.UsageError(f"{given[0]} requires --mode local")
    if choices["plan"] is not None:
        raise click.UsageError(f"{given[0]} cannot be used with --plan: the plan defines it")
    if choices["form"] == "silo" and len(given) > 1:
        raise click.UsageError(f"{given[1]} cannot be used with --form silo: a silo sends no reports")


def _is_given(option: str) -> bool:
    return click.get_current_context().get_parameter_source(option) is not ParameterSource.DEFAULT


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    """SIGTERM ends a run as Ctrl-C does: with the server that it has started, and its temporary folder."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
