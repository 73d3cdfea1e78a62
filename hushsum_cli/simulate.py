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
from hushsum_cli.output import ExactNumber, examples
from hushsum_cli.output import as_json as as_json_option

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_COLUMNS = (
    "The columns of --data to take: names with commas, or PLAN=FILE pairs where the --plan calls them otherwise. "
    "Default: those of the --plan by their names, or all."
)
_MODES = ("central", "secure", "local")
_MODE = (
    "Who draws the noise: the server at the end; or the clients together, so that no server sees more than a cohort's "
    "sum; or each client by itself, before anything leaves it."
)
_DROPOUT_RATE = "Secure mode: the share of the clients that vanish on the way, from 0 to below 0.5.  [default: 0.1]"
_FORM = "Local mode: what a client sends: a report for each record, or one noised sum.  [default: report]"
_RANDOMISER = "Local mode: what makes a report of a record.  [default: k-rr]"
_SHUFFLER = "Local mode: put a shuffler between clients and server, with a key made for the run."
_CLIENTS = "Size of the fleet.  [default: 200, or 40 if silos]"
_DELTAS = "Send at least so many, or batches of reports.  [default: 5000, or 1000 if reports]"
_EPSILON = "ε of the release. Default: the plan's, or 1, or 4 if reports."
_DELTA = "δ of the release; 0 is pure ε. Default: the plan's, or 0, or 1e-6 if secure, silo or shuffled."
_COHORT = "Secure mode: how many clients sum together. Default: the plan's, or about 100."


class _Delta(ExactNumber):
    """A number of at least 0, kept exactly as it was written."""

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> Fraction:
        """The value of text such as ``1e-6`` or ``0``."""
        return Fraction(0) if value == "0" else super().convert(value, param, ctx)


@click.command(
    short_help="Run the whole journey on this machine, with a kill on the way.",
    epilog=examples(
        "hushsum simulate",
        "hushsum simulate --data trips.parquet --columns lon,lat --clients 50 --epsilon 0.5",
        "hushsum simulate --epsilon 0.1 --delta 1e-6",
        "hushsum simulate --unit client --records-per-client 5 --clients 4000",
        "hushsum simulate --mode secure --dropout-rate 0.1",
        "hushsum simulate --mode local --shuffler",
        "hushsum simulate --mode local --form silo --clients 30",
    ),
)
@click.option("--data", type=_FILE, help="Your records: .parquet, .csv or .npy. Default: the pixels of china.jpg.")
@click.option("--columns", help=_COLUMNS)
@click.option("--label-column", help="For a --plan with classes: the column of --data that holds each record's label.")
@click.option("--plan", type=_FILE, help="plan.toml or plan.json. Default: one that fits the records.")
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
@click.option("--queries", type=click.IntRange(1), default=2000, show_default=True, help="Hold out so many records.")
@click.option("--epsilon", type=ExactNumber(), help=_EPSILON)
@click.option("--delta", type=_Delta(), help=_DELTA)
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

    In secure mode the clients sum in cohorts, each with its share of the noise inside a masked vector, and some of them
    vanish at a step of the round; nothing is killed. Exits with 1 when the release without the exact sum of the clients
    that are in it is anything but the plan's noise, or when what they have spent does not add up.

    In local mode each record is randomised on its client, or each client's sum is noised there; the server is killed as
    in central mode, and with --shuffler the shuffler before it as well. Exits with 1 when a report or a sum was lost or
    counted twice, when the service has kept whose a report is, or when what is spent does not add up.
    """
    _refuse_contradictions(choices)
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


def _with_defaults(choices: Mapping[str, Any]) -> dict[str, Any]:
    """The choices with those defaults that go by the mode and its form."""
    local, form = choices["mode"] == "local", choices["form"] or "report"
    clients = choices["clients"] or (40 if local and form == "silo" else 200)
    deltas = choices["deltas"] or (1000 if local else 5000)
    return {**choices, "form": form, "clients": clients, "deltas": deltas}


def _refuse_contradictions(choices: Mapping[str, Any]) -> None:
    if choices["plan"] is None and (choices["unit"] == "client") != (choices["records_per_client"] is not None):
        raise click.UsageError("--unit client and --records-per-client M go together")
    if choices["label_column"] is not None and (choices["data"] is None or choices["plan"] is None):
        raise click.UsageError("--label-column is for --data and a --plan with classes")
    given = {name for name in ("deltas", "dropout_rate", "cohort") if _is_given(name)}
    secure, silo = choices["mode"] == "secure", choices["form"] == "silo"
    _refuse_outside_local(choices)
    if given & {"dropout_rate", "cohort"} and not secure:
        raise click.UsageError("--dropout-rate and --cohort are for --mode secure")
    if "deltas" in given and secure:
        raise click.UsageError("--deltas is for --mode central: with a secure sum no delta leaves its client")
    if "deltas" in given and silo:
        raise click.UsageError("--deltas is not for --form silo: of a silo nothing leaves but one sum")
    if choices["cohort"] is not None and choices["plan"] is not None:
        raise click.UsageError("--cohort is for a run that makes its own plan: the cohort of --plan is in the plan")


def _refuse_outside_local(choices: Mapping[str, Any]) -> None:
    own = {"--form": choices["form"], "--randomiser": choices["randomiser"], "--shuffler": choices["shuffler"]}
    given = [option for option, value in own.items() if value]
    if not given:
        return
    if choices["mode"] != "local":
        raise click.UsageError(f"{given[0]} is for --mode local")
    if choices["plan"] is not None:
        raise click.UsageError(f"{given[0]} is for a run that makes its own plan: with --plan, the plan says it")
    if choices["form"] == "silo" and len(given) > 1:
        raise click.UsageError(f"{given[1]} is for --form report: a silo sends a noised sum, and no reports")


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
