"""`hushsum release`: makes releases from files, lists what a service has published, and fetches releases."""

import json
from errno import EEXIST
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from hushsum_cli.columns import chosen_columns
from hushsum_cli.connection import connects
from hushsum_cli.output import as_json as as_json_option
from hushsum_cli.output import examples, print_json, print_pairs, print_table, utc_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hushsum.plan import Plan
    from hushsum.privacy.ledger import Ledger
    from hushsum.privacy.relations import Cost
    from hushsum.releases import Release
    from hushsum.sketch import Sketch
    from hushsum.tables import Columns
    from hushsum_proto.credentials import Credentials
    from hushsum_proto.messages import NextOutcome, ReleaseInfo
    from hushsum_simulator.console import Console

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_BATCH: Final = 1 << 16  # records
_NAMES_MAX: Final = 99
_AGAIN_S: Final = 2.0
_service = click.option(
    "--from",
    "service",
    metavar="HOST:PORT",
    default="127.0.0.1:7443",
    show_default=True,
    help="Address of the service.",
)


@click.group(short_help="Make a release from a file; list or fetch the releases of a service.")
def release() -> None:
    """Make a release from a file, list the published outcomes of a service, or fetch a release as a .hush file."""


@release.command(
    "list", short_help="List published outcomes.", epilog=examples("hushsum release list --from 127.0.0.1:7443")
)
@_service
@connects
@as_json_option
def list_(*, service: str, credentials: "Credentials", as_json: bool) -> None:
    """List the published outcomes of a service by window: released or withheld.

    A window is withheld if it had fewer clients than the plan's min_clients. Outcomes are final. The last line says
    when the next outcome is due, or that a cumulative sequence has all outcomes of its horizon.
    """
    import asyncio

    from hushsum_simulator.console import Console

    async def ask() -> "tuple[Plan, tuple[list[ReleaseInfo], NextOutcome | None]]":
        async with Console(service, credentials) as console:
            return await console.plan(), await console.listing()

    plan, (infos, due) = asyncio.run(ask())
    if as_json:
        print_json([_fields(plan, info) for info in infos])
        return
    rows = [
        [
            str(info.window),
            info.kind,
            _start(plan, info.window),
            _outcome(info),
            f"{info.size_bytes:,}" if info.size_bytes else "",
        ]
        for info in infos
    ]
    title = f"{plan.name}: {len(infos)} published"
    print_table(["window", "kind", "from (UTC)", "outcome", "bytes"], rows, title=title)
    horizon = plan.window.horizon
    if due is not None:
        so_far = "" if horizon is None else f"; {len(infos):,} of {horizon:,} outcomes so far"
        click.echo(f"next outcome: {_next_outcome(due)}{so_far}")
    elif horizon is not None and len(infos) >= horizon:
        click.echo(f"sequence complete: {len(infos):,} of {horizon:,} outcomes")


@release.command(
    short_help="Show outcomes as they are published.",
    epilog=examples(
        "hushsum release watch --from 127.0.0.1:7443",
        "hushsum release watch --first-window 498691 --save releases",
        "hushsum release watch --json | while read -r line; do …; done",
    ),
)
@_service
@connects
@click.option("--first-window", type=int, help="Index of the first window.  [default: all published outcomes]")
@click.option(
    "--save",
    type=click.Path(file_okay=False, path_type=Path),
    help="Save each release in this directory, unless it is there.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line.")
def watch(
    *, service: str, credentials: "Credentials", first_window: int | None, save: Path | None, as_json: bool
) -> None:
    """Show the published outcomes of a service, then each one as it is published, until Ctrl-C.

    If the connection is lost, it is made again, and no outcome is left out.
    """
    import asyncio
    from contextlib import suppress

    if save is not None:
        save.mkdir(parents=True, exist_ok=True)
    with suppress(KeyboardInterrupt):
        asyncio.run(_follow(service, credentials, first_window, save, as_json=as_json))


async def _follow(
    service: str, credentials: "Credentials", first_window: int | None, save: Path | None, *, as_json: bool
) -> None:
    import asyncio

    from hushsum.release_format import file_name
    from hushsum_simulator.console import Console
    from hushsum_simulator.errors import ServiceError

    plan: Plan | None = None
    shown = ""
    while True:
        try:
            async with Console(service, credentials) as console:
                plan = await console.plan()
                async for info in console.watch(first_window):
                    file = None
                    if save is not None and info.size_bytes:
                        file = save / file_name(plan.name, info.window)
                        if not file.exists():
                            (await console.fetch(info)).save(file)
                    _print_outcome(plan, info, file, as_json=as_json)
                    first_window, shown = info.window + 1, ""
            why = "the service has stopped"
        except ServiceError as error:
            if plan is None:  # it was never there
                raise
            why = str(error)
        if why != shown:
            click.echo(f"{why}; retrying", err=True)
            shown = why
        await asyncio.sleep(_AGAIN_S)


def _print_outcome(plan: "Plan", info: "ReleaseInfo", file: Path | None, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(_fields(plan, info) | ({} if file is None else {"file": str(file)})))
        return
    parts = [f"window {info.window}, from {_start(plan, info.window)} UTC: {_outcome(info)}"]
    if info.size_bytes:
        parts.append(f"{info.size_bytes:,} bytes")
    if file is not None:
        parts.append(str(file))
    click.echo(", ".join(parts))


@release.command(
    short_help="Fetch a release as a .hush file.",
    epilog=examples(
        "hushsum release get --window 498691 -o today.hush", "hushsum release get --window 498692 --wait -o next.hush"
    ),
)
@_service
@connects
@click.option("--window", type=int, help="Index of the window.  [default: the newest release]")
@click.option(
    "-o",
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Output file.  [default: NAME-WINDOW.hush in this directory]",
)
@click.option("--wait", is_flag=True, help="If the outcome is not published yet, wait until it is, or until Ctrl-C.")
@as_json_option
def get(
    *, service: str, credentials: "Credentials", window: int | None, out: Path | None, wait: bool, as_json: bool
) -> None:
    """Fetch a release as a .hush file, which answers any number of queries offline."""
    import asyncio

    from hushsum.release_format import file_name
    from hushsum_simulator.console import Console

    async def ask() -> "Release":
        async with Console(service, credentials) as console:
            return await console.fetch(await _outcome_asked_for(console, service, window, waits=wait))

    fetched = asyncio.run(ask())
    assert fetched.window is not None, "a service releases windows"
    target = out or Path(file_name(fetched.plan.name, fetched.window))
    fetched.save(target)
    if as_json:
        print_json({"file": str(target), "window": fetched.window, "statement": fetched.statement()})
    else:
        click.echo(f"{target}: {fetched.statement()}")


async def _outcome_asked_for(console: "Console", service: str, window: int | None, *, waits: bool) -> "ReleaseInfo":
    """The outcome of a window, or without one the newest release; ``waits`` until it is published.

    Raises:
        ServiceError: It is not published yet, or never will be; or the service stops meanwhile.
    """
    from hushsum_simulator.errors import ServiceError

    which = "no release" if window is None else f"no outcome of window {window}"
    listed, due = await console.listing()
    if found := [info for info in listed if _is_meant(info, window)]:
        return found[-1]
    horizon = (await console.plan()).window.horizon
    when = "" if due is None else f"; next outcome: {_next_outcome(due)}"
    if len(listed) == horizon:
        raise ServiceError(f"{service}: {which} was published, and the sequence is complete")
    if window is not None and due is not None and window < due.window:
        raise ServiceError(f"{service}: {which} was published, and later ones follow{when}")
    if not waits:
        raise ServiceError(f"{service}: {which} is published yet{when}; to wait for it, use --wait")
    seen = 0
    async for info in console.watch():
        if _is_meant(info, window):
            return info
        seen += 1
        if seen == horizon or (window is not None and info.window > window):
            raise ServiceError(f"{service}: {which} was published, and none will be after that of window {info.window}")
    raise ServiceError(f"{service}: the service has stopped; try again")


def _is_meant(info: "ReleaseInfo", window: int | None) -> bool:
    # A withheld window that is asked for says so itself; none is what "the newest release" means.
    return info.size_bytes > 0 if window is None else info.window == window


@release.command(
    short_help="Make a release from a file, without a server.",
    epilog=examples("hushsum release make data.csv --plan plan.toml --ledger ledger.db -o today.hush"),
)
@click.argument("data", type=_FILE)
@click.option("--plan", "plan_file", type=_FILE, required=True, help="Plan of mode central: plan.toml or plan.json.")
@click.option(
    "--ledger",
    "ledger_file",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="Ledger file to charge: one for all releases of this data. Created, with a new budget, if it does not exist.",
)
@click.option(
    "-o", "--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="Output file (.hush)."
)
@click.option(
    "--columns",
    help="Columns of DATA to use: names, or PLAN=FILE pairs if the plan uses other names, separated by commas.",
)
@click.option("--by-position", is_flag=True, help="Match columns by position and ignore their names.")
@click.option("--label-column", metavar="NAME", help="Column of DATA with the labels, for a plan with classes.")
@click.option("--client-column", metavar="NAME", help="Column of DATA with the client ids, for a plan of unit client.")
@as_json_option
def make(  # noqa: PLR0913  one argument an option
    *,
    data: Path,
    plan_file: Path,
    ledger_file: Path,
    out: Path,
    columns: str | None,
    by_position: bool,
    label_column: str | None,
    client_column: str | None,
    as_json: bool,
) -> None:
    """Make a private release from a CSV, Parquet or .npy file, on this machine.

    The records are sketched, the ledger is charged, noise is drawn, and the release is written. If the ledger has too
    little left, nothing is drawn or written. If the command is killed after the charge and before the file is written,
    the charge stays and nothing was shown: run it again while the ledger has enough left. An existing file is never
    replaced: if the output is created by another process after the charge, the release gets another name, which the
    error says.
    """
    import os

    from hushsum import Ledger, query
    from hushsum.privacy.events import IN_PROCESS
    from hushsum.privacy.spending import refuse_drawn_by_clients, spend_of
    from hushsum_simulator.plans import load

    plan = load(plan_file)
    refuse_drawn_by_clients(plan)
    spend_of(plan, kind=IN_PROCESS, window=None)  # refused before a ledger is made
    for option, given, needed in (
        ("--label-column", label_column, bool(plan.classes)),
        ("--client-column", client_column, plan.privacy.unit == "client"),
    ):
        if needed and given is None:
            raise click.UsageError(f"{option} is missing: plan {plan.name!r} needs it for each record")
        if given is not None and not needed:
            raise click.UsageError(f"{option}: plan {plan.name!r} does not use it")
    _refuse_existing(out)
    _refuse_ledger(out, ledger_file)
    folder = out.absolute().parent
    if not os.access(folder, os.W_OK):  # found before anything is charged
        raise click.ClickException(f"{folder}: no such directory, or it is not writable")
    sketch = _sketch(plan, data, chosen_columns(columns), label_column, client_column, by_position=by_position)
    _refuse_existing(out)
    how_new = "had no spend before this run" if ledger_file.exists() else "was created by this run"
    with Ledger(ledger_file) as ledger:
        earlier = len(ledger.events())
        made = _charge_and_save(sketch, ledger, out)
        spent, left = ledger.spent, ledger.left
    assert left is not None, "limits are registered by the charge"
    count, std_error = made.count, query.count_std_error(plan, counters=made.counters)
    if as_json:
        numbers = {"count": count, "count_std_error": std_error}
        budget = {"spent": _cost(spent, up=True), "left": _cost(left, up=False), "ledger_new": not earlier}
        print_json({"file": str(out), "plan_id": plan.hex_id, **numbers, **budget, "statement": made.statement()})
        return
    pairs = [
        ("records", f"{count:,.0f} ± {std_error:,.3g} (noisy count ± standard error)"),
        ("spent", f"{_cost_text(spent, up=True)} by all releases of {ledger_file}"),
        ("left", _cost_text(left, up=False)),
        *([] if earlier else [("ledger", f"NEW: {ledger_file} {how_new}: it counts no earlier release")]),
        ("file", f"written to {out}: it may be shared, and queries cost no budget"),
        ("next", _next(made, out)),
    ]
    print_pairs(pairs, title=f"release of {plan.name}")


def _refuse_existing(out: Path) -> None:
    import os

    if os.path.lexists(out):  # a link to nothing, too
        raise click.ClickException(f"{out} already exists, and a release is never overwritten: use -o for another file")


def _refuse_ledger(out: Path, ledger_file: Path) -> None:
    import os

    taken = os.path.realpath(out)
    if taken in {os.path.realpath(ledger_file) + suffix for suffix in ("", "-wal", "-shm", "-journal")}:
        raise click.UsageError(f"-o {out} is the ledger or one of its SQLite files; expected another file")


def _names(out: Path) -> "Iterator[Path]":
    yield out
    yield from (out.with_name(f"{out.stem}-{number}{out.suffix}") for number in range(2, _NAMES_MAX + 1))


def _charge_and_save(sketch: "Sketch", ledger: "Ledger", out: Path) -> "Release":
    """The release, written to ``out``; what stops it after the charge says what is left.

    Raises:
        ClickException: It could not be written, or is under another name, for ``out`` exists by now.
        HushsumError: The ledger refuses the charge.
    """
    from hushsum import release
    from hushsum.errors import HushsumError

    earlier, made = len(ledger.events()), None
    try:
        made = release(sketch, ledger=ledger)
        written = _save(made, out)
    except BaseException as error:
        if made is None and isinstance(error, HushsumError):  # the charge was refused
            raise
        result = _after_charge(ledger, earlier, made, out)
        if result and isinstance(error, OSError):
            raise click.ClickException(f"{out}: {error.strerror}; {result}") from error
        if result:
            click.echo(f"hushsum: {result}", err=True)
        raise
    if written != out:
        raise click.ClickException(
            f"{out} was created by another process after the charge, and a file is never replaced: this release is in "
            f"{written}, and the ledger is charged"
        )
    return made


def _save(made: "Release", out: Path) -> Path:
    """Writes a release under the first free name, and replaces nothing; the name.

    Raises:
        OSError: It cannot be written.
    """
    from contextlib import suppress

    for name in _names(out):
        with suppress(FileExistsError):
            made.save(name, replace=False)
            return name
    raise FileExistsError(EEXIST, "it already exists, and so do all alternative names", str(out))


def _after_charge(ledger: "Ledger", earlier: int, made: "Release | None", out: Path) -> str:
    """What a failed or interrupted run has left, a clause; empty if the ledger has no more spends than before.

    Args:
        ledger: It had ``earlier`` spends before this run.
        earlier: Their number.
        made: The release, if it was drawn.
        out: The output.
    """
    from contextlib import suppress

    from hushsum.errors import LedgerError

    try:
        if made is None and len(ledger.events()) == earlier:
            return ""
    except LedgerError as error:
        return f"{error}; it may be charged, and this release is lost: nothing of it was shown"
    with suppress(OSError, MemoryError):
        data = b"" if made is None else made.to_bytes()
        for name in _names(out):
            if data and name.is_file() and name.read_bytes() == data:
                return f"the ledger is charged, and the release is in {name}"
    return "the ledger is charged, and this release is lost: nothing of it was shown"


def _sketch(
    plan: "Plan",
    data: Path,
    columns: "Columns | None",
    label_column: str | None,
    client_column: str | None,
    *,
    by_position: bool,
) -> "Sketch":
    """The file's records, with a warning of those that are left out or clipped, and a bar on a terminal.

    A sketch of no records is released too: else a single usable record would decide whether there is a release.

    Raises:
        RecordError: The file does not fit the plan.
        ContributionError: A client has more records than the plan allows.
    """
    import sys
    import warnings
    from contextlib import nullcontext
    from itertools import compress

    import numpy as np

    from hushsum.collection import label_list
    from hushsum.errors import ClippedRecordsWarning
    from hushsum.sketch import Sketch
    from hushsum.tables import read_table
    from hushsum.usable_records import read
    from hushsum_simulator.progress import Bars, Quiet

    table = read_table(plan, data, labels=label_column, clients=client_column, columns=columns, by_position=by_position)
    labels = None if table.labels is None else label_list(table.labels)
    usable = read(plan, table.records, labels, table.lines)
    problems = usable.problems
    for warning in problems.warnings():
        warnings.warn(warning, stacklevel=1)
    records = np.asarray(table.records)[usable.kept]
    labels = None if labels is None else list(compress(labels, usable.kept))
    clients = None if table.clients is None else list(compress(table.clients, usable.kept))
    sketch = Sketch(plan)
    with (
        Bars() if sys.stderr.isatty() else nullcontext(Quiet()) as progress,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore", ClippedRecordsWarning)  # said above, of the whole file
        added = progress.bar("records sketched", len(records))
        for start in range(0, len(records), _BATCH):
            some = slice(start, start + _BATCH)
            sketch.add(
                records[some],
                labels=None if labels is None else labels[some],
                clients=None if clients is None else clients[some],
            )
            added(min(start + _BATCH, len(records)))
    return sketch


def _next(made: "Release", out: Path) -> str:
    """The next command: a query in the middle of the public bounds."""
    from shlex import quote

    if made.plan.family.name == "paired":
        return f"in Python: hushsum.estimators.LinearRegressor.from_release(hushsum.load({str(out)!r}))"
    vectors = made.plan.vectors
    middle = ",".join(f"{float(low + high) / 2:g}" for low, high in zip(vectors.lower, vectors.upper, strict=True))
    return (
        f"hushsum query {quote(str(out))} --at {middle}"
        if middle[0] != "-"
        else (f"hushsum query {quote(str(out))} --at={middle}")
    )


def _cost(cost: "Cost", *, up: bool) -> dict[str, str]:
    from hushsum.privacy.exact_numbers import numeral

    return {"epsilon": numeral(cost.epsilon, up=up), "delta": numeral(cost.delta, up=up)}


def _cost_text(cost: "Cost", *, up: bool) -> str:
    found = _cost(cost, up=up)
    return f"epsilon {found['epsilon']}" + (f", delta {found['delta']}" if cost.delta else "")


def _next_outcome(due: "NextOutcome") -> str:
    if due.is_sealed:
        return f"window {due.window}, sealed and not published yet"
    return f"window {due.window}, due at {utc_text(due.due_ms)} (UTC)"


@release.command(short_help="Show a release and its guarantee.", epilog=examples("hushsum release show today.hush"))
@click.argument("file", metavar="FILE.hush", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@as_json_option
def show(*, file: Path, as_json: bool) -> None:
    """Show a release: its window, its number of records, and its privacy guarantee in plain words.

    For releases of randomised reports the number is exact, because it is public. If the reports were shuffled, the
    amplified guarantee is shown too.
    """
    import hushsum
    from hushsum import query

    shown = hushsum.load(file)
    count, error = (
        shown.count,
        query.count_std_error(shown.plan, draws=shown.draws, counters=shown.counters),
    )
    if as_json:
        about = {"plan": shown.plan.name, "plan_id": shown.plan.hex_id, "kind": shown.kind, "window": shown.window}
        numbers = {"count": count, "count_std_error": error}
        print_json({**about, **_contributors(shown), **numbers, "statement": shown.statement()})
        return
    when = "none (released in process)" if shown.window is None else _window(shown.plan, shown.window)
    records = ("records", f"{count:,.0f} ± {error:,.3g} (noisy count ± standard error)")
    if shown.plan.report_sizes is not None:
        records = ("reports", f"{count:,.0f}, one per record (exact)")
    pairs = [("plan", shown.plan.hex_id), ("window", when), records, *_local(shown), ("guarantee", shown.statement())]
    print_pairs(pairs, title=shown.plan.name)


def _contributors(shown: "Release") -> dict[str, object]:
    """For JSON: how many clients in how many cohorts; of reports, whether they were shuffled and what that adds."""
    from hushsum.canonical import real_text

    if shown.plan.report_sizes is not None:
        cost = shown.amplified
        amplified = None if cost is None else {"epsilon": real_text(cost.epsilon), "delta": real_text(cost.delta)}
        return {"shuffled": shown.shuffled, "amplified": amplified}
    if shown.submissions is None:
        return {}
    cohorts = {} if shown.cohorts is None else {"cohorts": shown.cohorts}
    return {"submissions": shown.submissions, **cohorts}


def _local(shown: "Release") -> "Iterator[tuple[str, str]]":
    """Rows of a release of mode local: who contributed, and what a shuffler adds, where there was one."""
    from hushsum.privacy.exact_numbers import numeral

    if shown.plan.privacy.local is None:
        return
    if shown.submissions is not None:
        clients = "1 client" if shown.submissions == 1 else f"{shown.submissions:,} clients"
        yield "sum of", f"{clients}, each with its own noise on every counter"
    if cost := shown.amplified:  # None, too, where they came through no shuffler
        ends = f"ε = {numeral(cost.epsilon, up=True)}, δ = {numeral(cost.delta, up=True)}"
        yield (
            "shuffled",
            f"{ends} against observers after the shuffler; for the conditions see the guarantee",
        )
    elif shown.shuffled:
        yield "shuffled", "too few reports per batch to prove a smaller ε"


def _window(plan: "Plan", window: int) -> str:
    end = utc_text(plan.window.end_ms(window))
    return f"{window}, from {_start(plan, window)} to {end} UTC"


def _fields(plan: "Plan", info: "ReleaseInfo") -> dict[str, object]:
    return {
        "window": info.window,
        "start_ms": plan.window.start_ms(info.window),
        "end_ms": plan.window.end_ms(info.window),
        "kind": info.kind,
        "outcome": _outcome(info),
        "bytes": info.size_bytes or None,
        "sha256": None if info.withheld else info.sha256.hex(),
    }


def _outcome(info: "ReleaseInfo") -> str:
    if info.withheld:
        return "withheld"
    return "removed" if info.removed else "released"


def _start(plan: "Plan", window: int) -> str:
    return utc_text(plan.window.start_ms(window))
