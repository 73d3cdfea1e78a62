"""`hushsum send`: contributes a file's records, as a device does."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hushsum_cli.connection import connects
from hushsum_cli.output import ExactNumber, examples, print_json, print_pairs
from hushsum_cli.output import as_json as as_json_option

if TYPE_CHECKING:
    from edge_client import EdgeClient, Stats
    from hushsum.plan import Plan
    from hushsum_proto.credentials import Credentials
    from hushsum_simulator.data import Records
    from hushsum_simulator.progress import Progress

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_BATCH = 1000


@click.command(
    short_help="Contribute a file's records, as a device does.",
    epilog=examples("hushsum send --data records.parquet --to 127.0.0.1:7443 --spool spool.db --client-id till-3"),
)
@click.option("--data", type=_FILE, required=True, help="The records: .parquet, .csv or .npy.")
@click.option("--columns", help="Names of the columns of --data to take, with commas. Default: all.")
@click.option("--label-column", help="For a plan with classes: the column of --data that holds each record's label.")
@click.option("--to", "target", metavar="HOST:PORT", default="127.0.0.1:7443", show_default=True, help="The service.")
@click.option(
    "--spool",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="This client's spool: a file of its own, kept between runs, never copied.",
)
@click.option(
    "--client-id",
    help="Who contributes: the name of the token, if there is one. Default: the one in the spool, at first random.",
)
@click.option("--key", type=_FILE, help="For a secure sum with a directory of clients: this client's private key.")
@click.option("--max-epsilon", type=ExactNumber(), help="Refuse a plan with a larger ε.")
@click.option(
    "--max-delta", type=ExactNumber(zero=True), help="Refuse a plan with a larger δ. Default: 0.00001, one in 100,000."
)
@click.option("--max-total-epsilon", type=ExactNumber(), help="Refuse a plan whose population may lose more in all.")
@click.option("--max-total-delta", type=ExactNumber(zero=True), help="Refuse a plan whose total δ is larger.")
@click.option("--mode", type=click.Choice(["central", "secure", "local"]), help="Refuse a plan that trusts more.")
@click.option("--signed-by", type=_FILE, help="Refuse a plan that no planner of this directory of keys has signed.")
@click.option("--memoise", is_flag=True, help="Allow plans whose reports of a record are the same in every window.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(0, min_open=True), help="Seconds to wait for answers.")
@connects
@as_json_option
def send(  # noqa: PLR0913  one argument an option
    *,
    data: Path,
    columns: str | None,
    label_column: str | None,
    target: str,
    spool: Path,
    client_id: str | None,
    key: Path | None,
    timeout_s: float | None,
    credentials: "Credentials",
    as_json: bool,
    **rules: Any,  # of the policy, by their names there; exact numbers, texts and a switch
) -> int:
    """Contribute a file's records: they are hashed here, and only sums of hashes leave this machine.

    Returns when everything is answered. What has no answer in time stays in the spool, and a later run sends it first.
    A second run with the same file contributes its records a second time.

    With a secure sum, and in local mode for a silo, which noises all its records of a window and sends that, a run
    shows that this client takes part, also where the file is empty or does not fit the plan. Run it in each window,
    then, and not only when there are records: that it was run tells that there are some. A run takes part at once, and
    once in a window: what a later run in the same window adds is left out. In local mode with reports each record is
    randomised here, and becomes one report; nothing else leaves this machine.
    """
    import asyncio
    import sys

    from edge_client import Config, EdgeClient, Policy
    from hushsum_simulator.data import load as load_records
    from hushsum_simulator.progress import Bars, Quiet

    def load() -> "Records":
        return load_records(data, tuple(columns.split(",")) if columns else (), label_column)

    client = EdgeClient(
        target,
        spool=spool,
        client_id=client_id,
        policy=Policy(**{rule: value for rule, value in rules.items() if value is not None}),
        config=Config(close_flush_s=0.0),
        key=key,
        credentials=credentials,
    )
    with _told_warnings():
        if sys.stderr.isatty():
            with Bars() as bars:
                tallies = asyncio.run(_contribute(client, load, timeout_s, bars))
        else:
            tallies = asyncio.run(_contribute(client, load, timeout_s, Quiet()))
    numbers = {name: getattr(tallies, name) for name in tallies.__dataclass_fields__ if name != "refused"}
    if as_json:
        print_json({**numbers, "refused": dict(tallies.refused)})
    else:
        print_pairs([(name.replace("_", " "), f"{count:,}") for name, count in numbers.items()])
    return 0


@contextmanager
def _told_warnings() -> Iterator[None]:
    """What the client warns of becomes a line on standard error, as its errors do."""
    import warnings

    from edge_client import DroppedRecordsWarning, EdgeWarning

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", EdgeWarning)
        warnings.simplefilter("ignore", DroppedRecordsWarning)  # their number is shown at the end
        try:
            yield
        finally:
            for warning in caught:
                click.echo(f"hushsum: {warning.message}", err=True)


async def _contribute(
    client: "EdgeClient", load: "Callable[[], Records]", timeout_s: float | None, progress: "Progress"
) -> "Stats":
    """Starts the client before anything is known of the records: whether it takes part is not theirs to say."""
    from edge_client import EdgeError
    from hushsum import ContributionError

    async with client:
        try:
            await _add(client, load, progress)
        except Exception as error:
            # What was added before a client's bound was reached is sent, too, and what came after it is told.
            if isinstance(error, ContributionError) or _takes_part(client.plan):
                with suppress(EdgeError):  # what is wrong with the records is told
                    await client.flush(timeout_s)
            raise
        answered = progress.bar("waiting for answers", None)
        await client.flush(timeout_s)
        answered(1)
    return client.tallies


def _takes_part(plan: "Plan") -> bool:
    """Whether it shows that a client takes part in a window, which must not be for its records to decide."""
    from hushsum.privacy.guarantee import SECURE

    return plan.privacy.mode == SECURE or plan.privacy.is_silo


async def _add(client: "EdgeClient", load: "Callable[[], Records]", progress: "Progress") -> None:
    import asyncio

    loaded = await asyncio.to_thread(load)
    _check(client.plan, loaded)
    added = progress.bar("records hashed", len(loaded.values))
    for start in range(0, len(loaded.values), _BATCH):
        labels = None if loaded.labels is None else loaded.labels[start : start + _BATCH]
        await client.add(loaded.values[start : start + _BATCH], labels=labels)
        added(min(start + _BATCH, len(loaded.values)))


def _check(plan: "Plan", loaded: "Records") -> None:
    """Refuses records that do not fit the plan, before any of them is hashed."""
    from hushsum.families import SetRecords
    from hushsum_simulator.errors import RecordsError

    if isinstance(plan.record, SetRecords):
        raise RecordsError(f"{loaded.source}: a table holds no sets, which the plan collects; send them by edge_client")
    if loaded.values.shape[1] != plan.vectors.dim:
        raise RecordsError(
            f"{loaded.source}: {loaded.values.shape[1]} columns ({', '.join(loaded.names)}), "
            f"the plan expects {plan.vectors.dim}; name them with --columns"
        )
    if plan.classes and loaded.labels is None:
        some = ", ".join(map(repr, plan.classes[:8])) + (", ..." if len(plan.classes) > 8 else "")
        raise RecordsError(f"{loaded.source}: the plan has classes ({some}); name the labels with --label-column")
    if loaded.labels is not None and not plan.classes:
        raise RecordsError(f"{loaded.source}: the plan has no classes, so --label-column has no use here")
