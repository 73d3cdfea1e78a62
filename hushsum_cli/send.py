"""`hushsum send`: contributes a file's records, as a device does."""

import warnings
from collections import Counter
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from hushsum_cli.columns import chosen_columns
from hushsum_cli.connection import connects
from hushsum_cli.output import ExactNumber, examples, print_json, print_pairs
from hushsum_cli.output import as_json as as_json_option

if TYPE_CHECKING:
    from edge_client import Counts
    from edge_client.blocking import EdgeClient
    from hushsum.plan import Plan
    from hushsum.tables import Columns, RecordTable
    from hushsum_proto.credentials import Credentials
    from hushsum_simulator.progress import Progress

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_BATCH = 1000
_TIMEOUT_S = 60.0


@click.command(
    short_help="Contribute the records of a file.",
    epilog=examples("hushsum send --data records.parquet --to 127.0.0.1:7443 --spool spool.db --client-id till-3"),
)
@click.option("--data", type=_FILE, required=True, help="File of records (.parquet, .csv, .npy).")
@click.option(
    "--columns",
    help="Columns of --data to use: names, or PLAN=FILE pairs if the plan uses other names, separated by commas.",
)
@click.option("--by-position", is_flag=True, help="Match columns by position and ignore their names.")
@click.option("--label-column", help="Column of --data with the labels, for a plan with classes.")
@click.option(
    "--to", "target", metavar="HOST:PORT", default="127.0.0.1:7443", show_default=True, help="Address of the service."
)
@click.option(
    "--spool",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="Spool file of this client: keep it between runs, and never copy it.",
)
@click.option(
    "--client-id",
    help="Client id; with a token, the token's name.  [default: the id in the spool, random at first]",
)
@click.option("--key", type=_FILE, help="Private key of this client, for secure sums with a key registry (PEM).")
@click.option("--max-epsilon", type=ExactNumber(), help="Largest ε accepted, per window.")
@click.option("--max-delta", type=ExactNumber(zero=True), help="Largest δ accepted, per window.  [default: 0.00001]")
@click.option("--max-total-epsilon", type=ExactNumber(), help="Largest total ε accepted.")
@click.option("--max-total-delta", type=ExactNumber(zero=True), help="Largest total δ accepted.")
@click.option("--mode", type=click.Choice(["central", "secure", "local"]), help="Weakest trust mode accepted.")
@click.option("--signed-by", type=_FILE, help="Accept only plans signed by a planner in this key registry.")
@click.option(
    "--new-plan-after-s",
    type=ExactNumber(zero=True),
    help="Change to the service's new plan, at most once in this many seconds; requires --signed-by.",
)
@click.option("--memoise", is_flag=True, help="Accept plans with memoised reports (equal records send equal reports).")
@click.option(
    "--timeout",
    "timeout_s",
    type=click.FloatRange(0, min_open=True),
    help="Maximum time to wait for answers, in seconds.  [default: 60; secure sums: until the round ends]",
)
@click.option("--all", "lifetime", is_flag=True, help="Show totals over all runs of this spool.")
@connects
@as_json_option
def send(  # noqa: PLR0913  one argument an option
    *,
    data: Path,
    columns: str | None,
    by_position: bool,
    label_column: str | None,
    target: str,
    spool: Path,
    client_id: str | None,
    key: Path | None,
    timeout_s: float | None,
    lifetime: bool,
    credentials: "Credentials",
    as_json: bool,
    **rules: Any,  # of the policy, by their names there; exact numbers, texts and a switch
) -> int:
    """Contribute the records of a file: hash them on this machine and send only the sums of hashes (sketch deltas).

    Columns are matched by the plan's column names. Exits with status 1 if anything was late, refused or unknown, and
    so is not counted. Sketch deltas without an answer stay in the spool and are sent first by the next run. Sending the
    same file again counts its records again.

    Secure sums and silos: a run shows that this client participates, even if the file is empty. Run the command in
    every window, with or without records, so that participation reveals nothing. Each client submits once per window;
    records of a later run in the same window are dropped.

    Plans with time = "arrival" and a bound of records for each client: what the open window has no room for is sent in
    the windows that follow, by this run if --timeout is long enough, else by the next one.

    Mode local with reports: each record is randomised on this machine and sent as one report.
    """
    import sys

    from edge_client import Config, Event, EventKind, Policy
    from edge_client.blocking import EdgeClient
    from hushsum_simulator.progress import Bars, Quiet

    def on_event(event: Event) -> None:
        if event.kind is EventKind.PLAN_REFUSED:
            click.echo(f"hushsum: warning: the service's new plan is not taken up: {event.detail}", err=True)

    file = RecordFile(data, chosen_columns(columns), label_column, by_position)
    with (
        Bars() if sys.stderr.isatty() else nullcontext(Quiet()) as progress,
        EdgeClient(
            target,
            spool=spool,
            client_id=client_id,
            policy=Policy(**{rule: value for rule, value in rules.items() if value is not None}),
            config=Config(close_flush_s=0.0),
            key=key,
            credentials=credentials,
            on_event=on_event,
        ) as client,
    ):
        before = client.status().counts
        uncounted = _contribute(client, file, timeout_s, progress)
    sent, after = client.status(since_start=True).counts, client.status().counts
    held = client.status().held
    shown = after if lifetime else sent
    numbers = {name: getattr(shown, name) for name in shown.__dataclass_fields__ if name != "refused"}
    if as_json:
        print_json({**numbers, "refused": dict(shown.refused), "held": held})
    elif lifetime:
        print_pairs([(name.replace("_", " "), f"{count:,}") for name, count in {**numbers, "held": held}.items()])
    else:
        if earlier := _answers(after) - _answers(before) - _answers(sent):  # to what waited in the spool
            click.echo(f"deltas of earlier runs: {_listed(earlier)}")
        if held:
            click.echo(f"held under earlier plans: {held:,}")
        click.echo(_summary(sent))
    return int(uncounted or _uncounted(after) > _uncounted(before))


class RecordFile(NamedTuple):
    """A file of records, and how its columns are read."""

    path: Path
    columns: "Columns | None"
    label_column: str | None
    by_position: bool


def _uncounted(sent: "Counts") -> int:
    """What will never count, and should have."""
    return sent.late + sent.unknown + sum(sent.refused.values()) + sent.submissions_lost + sent.records_absent


def _summary(sent: "Counts") -> str:
    """The records of this run, and what became of what they were sent in."""
    dropped = f", {sent.records_dropped:,} dropped" if sent.records_dropped else ""
    refused = f", {sent.records_refused:,} beyond this client's bound refused" if sent.records_refused else ""
    records = f"{sent.records:,} record{'' if sent.records == 1 else 's'}{dropped}{refused}"
    if sent.submissions_spent or sent.submissions_counted or sent.submissions_lost:
        windows = f"{sent.submissions_counted} window{'' if sent.submissions_counted == 1 else 's'}"
        return f"{records}: {windows} counted, {sent.submissions_lost} not"
    if sent.records_absent:
        return f"{records}: {sent.records_absent:,} of a window in which this client does not participate"
    answers = _answers(sent)
    if list(answers) == ["acknowledged"] and sent.acknowledged == sent.deltas:
        return f"{records}: {sent.records:,} acknowledged"
    return f"{records} in {sent.deltas:,} delta{'' if sent.deltas == 1 else 's'}: {_listed(answers)}"


def _answers(stats: "Counts") -> Counter[str]:
    """How many deltas have which answer."""
    names = ("acknowledged", "counted", "late", "unknown")
    counts = {name: getattr(stats, name) for name in names}
    counts |= {f"refused for {name}": count for name, count in stats.refused.items()}
    return Counter({name: count for name, count in counts.items() if count})


def _listed(answers: Counter[str]) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in answers.items()) or "no answer yet"


def _contribute(client: "EdgeClient", file: RecordFile, timeout_s: float | None, progress: "Progress") -> bool:
    """Adds the records and waits for answers.

    The client runs before anything is known of the records: whether it takes part is not theirs to say.

    Returns:
        Whether something that was sent is counted nowhere, of which it has warned.
    """
    from edge_client import EdgeError, NotCountedError, NotCountedWarning
    from hushsum import ContributionError

    if timeout_s is None and client.plan.privacy.cohort is None:
        timeout_s = _TIMEOUT_S
    try:
        _add(client, file, progress)
    except Exception as error:
        # What was added before a client's bound was reached is sent, too, and what came after it is told.
        if isinstance(error, ContributionError) or _takes_part(client.plan):
            with suppress(EdgeError):  # what is wrong with the records is told
                client.flush(timeout_s)
        raise
    answered = progress.bar("waiting for answers", None)
    try:
        client.flush(timeout_s)
    except NotCountedError as error:
        warnings.warn(NotCountedWarning(str(error)), stacklevel=1)
        return True
    answered(1)
    return False


def _takes_part(plan: "Plan") -> bool:
    """Whether it shows that a client takes part in a window, which must not be for its records to decide."""
    from hushsum.privacy.guarantee import SECURE

    return plan.privacy.mode == SECURE or plan.privacy.is_silo


def _add(client: "EdgeClient", file: RecordFile, progress: "Progress") -> None:
    from hushsum.collection import label_list
    from hushsum.errors import ClippedRecordsWarning, DroppedRecordsWarning, RecordError

    table = _read(client.plan, file)
    records, labels = table.records, None if table.labels is None else label_list(table.labels)
    added = progress.bar("records hashed", len(records))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DroppedRecordsWarning)  # said below, of the whole file
            warnings.simplefilter("ignore", ClippedRecordsWarning)
            for start in range(0, len(records), _BATCH):
                batch = slice(start, start + _BATCH)
                client.add(records[batch], labels=None if labels is None else labels[batch])
                added(min(start + _BATCH, len(records)))
    finally:
        problems = replace(client.status().problems, lines=table.lines)
        for warning in problems.warnings():
            warnings.warn(warning, stacklevel=1)
    if problems.dropped == problems.records and client.plan.report_sizes is None:  # else each sends a random report
        raise RecordError(f"{file.path}: none of {problems.records} records can be used: {problems.reasons}")


def _read(plan: "Plan", file: RecordFile) -> "RecordTable":
    """The file's records in the order of the plan's columns.

    Raises:
        RecordError: They do not fit the plan, or there are none.
    """
    from hushsum.errors import RecordError
    from hushsum.tables import read_table

    if plan.classes and file.label_column is None:
        some = ", ".join(map(repr, plan.classes[:8])) + (", ..." if len(plan.classes) > 8 else "")
        raise RecordError(f"{file.path}: the plan has classes ({some}): --label-column is required")
    if file.label_column is not None and not plan.classes:
        raise RecordError(f"{file.path}: the plan has no classes: --label-column cannot be used")
    table = read_table(plan, file.path, labels=file.label_column, columns=file.columns, by_position=file.by_position)
    if not len(table.records):
        raise RecordError(f"{file.path}: expected at least one record, got none")
    return table
