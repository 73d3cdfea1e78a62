"""`hushsum admin backup | restore | verify | mark-lost | {begin,end}-receipts-copy`: the stored data of a service."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from hushsum_cli.output import as_json as as_json_option
from hushsum_cli.output import examples, print_json

if TYPE_CHECKING:
    from collections.abc import Callable

    from aggregator.backup import Restored
    from aggregator.config import Config
    from aggregator.release.lost import LostOutcomes

_FILE: Final = click.Path(dir_okay=False, path_type=str)
_PATH: Final = click.Path(path_type=Path)


def _stored(command: "Callable[..., Any]") -> "Callable[..., Any]":  # Any: any command's
    """Gives a command the options that say where a service stores its data: those of `hushsum serve`."""
    for option in reversed(
        (
            click.option("--data", type=click.Path(file_okay=False, path_type=str), help="Data directory."),
            click.option("--receipts", type=_FILE, help="Receipts file.  [default: in --data]"),
            click.option(
                "--receipts-copy", metavar="FILE|kafka://HOST:PORT/TOPIC", help="Second copy of the receipts."
            ),
            click.option(
                "--config",
                "config_file",
                type=click.Path(dir_okay=False, path_type=Path),
                help="Configuration file of the service (TOML); options override it.",
            ),
        )
    ):
        command = option(command)
    return command


def _config(config_file: Path | None, **settings: object) -> "Config":
    from aggregator.config import Config
    from aggregator.logs import write_journal

    write_journal("warning", "command", sys.stderr)
    return Config.load(config_file, settings, needs_plan=False)


@click.command(
    short_help="Copy the data of a service, which may run.",
    epilog=examples("hushsum admin backup --data DIR backups/monday"),
)
@_stored
@click.argument("target", type=_PATH)
@as_json_option
def backup(*, config_file: Path | None, target: Path, as_json: bool, **settings: object) -> None:
    """Copy store, log and receipts into a new directory TARGET, open the copy, and write a manifest with its digests.

    The service may run. With PostgreSQL, TARGET has a dump (pg_dump is required), and with Kafka the receipts of the
    topic and the positions that the plans' topics must still hold; their entries are not copied.

    The back-up holds exact counts, and the keys of outcomes that are being drawn: protect it like the data. Tokens,
    private keys and certificates are not in it.
    """
    import asyncio

    from aggregator.backup import back_up
    from aggregator.backup_cluster import back_up_cluster
    from aggregator.release.receipts import plural
    from aggregator.runtime import SystemRuntime

    config = _config(config_file, **settings)
    take = back_up_cluster if config.log == "kafka" else back_up
    made = asyncio.run(take(config, target, SystemRuntime()))
    plans = [{"name": name, "published_outcomes": count} for name, count in made.plans]
    if as_json:
        print_json({"target": str(target), "plans": plans, "receipt_lines": made.receipts, "files": dict(made.files)})
        return
    for name, count in made.plans:
        click.echo(f"plan {name}: {plural(count, 'published outcome')}")
    click.echo(f"{target}: {', '.join(made.files)}; {plural(made.receipts, 'line')} of receipts")
    if config.log == "kafka":
        click.echo(
            "read whole: ok; not compared with each other and with the topics: `hushsum admin restore` does that"
        )
    else:
        click.echo("opened; store, log and receipts compared with each other: ok")
    if config.receipts_copy is not None:
        click.echo("the copy of the receipts: not compared; `hushsum admin verify` does that")


@click.command(
    short_help="Make a data directory of a back-up.",
    epilog=examples(
        "hushsum admin restore backups/monday DIR --receipts /mnt/receipts/receipts.jsonl",
        "hushsum admin restore backups/monday DIR --receipts receipts.jsonl --receipts copy.jsonl --mark-lost",
    ),
)
@click.argument("source", type=_PATH)
@click.argument("target", type=_PATH, required=False)
@click.option(
    "--receipts",
    type=click.Path(dir_okay=False, path_type=Path),
    multiple=True,
    help="Receipts file, or copy of it, that survived. Repeatable: name all; the newest is used.",
)
@click.option(
    "--config",
    "config_file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Configuration file of a service with Kafka and PostgreSQL, whose database has no tables yet.",
)
@click.option("--mark-lost", is_flag=True, help="Mark outcomes that the back-up lacks as lost; see `admin mark-lost`.")
def restore(
    *, source: Path, target: Path | None, receipts: tuple[Path, ...], config_file: Path | None, mark_lost: bool
) -> None:
    """Make an empty directory TARGET the data directory of the back-up SOURCE, with the newest receipts.

    The digests of the manifest are compared, and the result is opened. If the receipts prove outcomes that were
    published after the back-up was taken, it is refused: restore a newer one, or use --mark-lost.

    Receipts that are part of a back-up are refused, too: they cannot tell what was published after it was taken, and
    those windows would be drawn again. The service must not run anywhere.

    With Kafka and PostgreSQL, --config replaces TARGET and --receipts: pg_restore loads the dump into its database,
    which is compared with the topics. A plan whose topic has been erased further than the dump knows cannot go on: it
    is named, and the exit status is 1.
    """
    import asyncio

    from aggregator.backup import restore as restored
    from aggregator.backup_cluster import restore_cluster
    from aggregator.logs import write_journal
    from aggregator.runtime import SystemRuntime

    write_journal("warning", "command", sys.stderr)
    if config_file is not None:
        if target is not None or receipts:
            raise click.UsageError("--config excludes TARGET and --receipts: database and topics are in the file")
        config = _config(config_file)
        if (config.log, config.store) != ("kafka", "postgresql"):
            raise click.UsageError("--config is for a service with Kafka and PostgreSQL; with files, name TARGET")
        made, where = asyncio.run(restore_cluster(source, config, SystemRuntime(), marks_lost=mark_lost)), "database"
    else:
        if target is None or not receipts:
            raise click.UsageError("TARGET and --receipts are required, or --config")
        made = asyncio.run(restored(source, target, receipts, SystemRuntime(), marks_lost=mark_lost))
        where = str(target)
    _say_restored(where, made)
    for name, why in made.lost.gaps.items():
        click.echo(
            f"plan {name}: it cannot go on with this back-up; only its outcomes and charges are restored: {why}",
            err=True,
        )
    if made.lost.gaps:
        sys.exit(1)


@click.command(
    short_help="Compare receipts, ledger, outcomes and copies.",
    epilog=examples("hushsum admin verify --data DIR --publish releases"),
)
@_stored
@click.option("--publish", metavar="DIR", help="Directory of copies of the releases, as of `hushsum serve`.")
@as_json_option
def verify(*, config_file: Path | None, as_json: bool, **settings: object) -> None:
    """Compare receipts and their copy, store, ledger, releases and published copies of a stopped service.

    Prints a line for each part: "ok", "failed" with the reason, or "not checked". Exits with status 1 if any failed.
    """
    import asyncio

    from aggregator.runtime import SystemRuntime
    from aggregator.verify import State
    from aggregator.verify import verify as verified

    found: list[dict[str, str]] = []

    def report(what: str, state: State, text: str) -> None:
        found.append({"what": what, "state": state, "text": text})
        if not as_json:
            click.echo(f"{what}: {state}: {text}")

    asyncio.run(verified(_config(config_file, **settings), SystemRuntime(), report))
    failed = any(each["state"] == "failed" for each in found)
    if as_json:
        print_json({"ok": not failed, "parts": found})
    if failed:
        sys.exit(1)


@click.command(
    "mark-lost",
    short_help="Mark outcomes that a restored store lacks.",
    epilog=examples("hushsum admin mark-lost --data DIR"),
)
@_stored
def mark_lost(*, config_file: Path | None, **settings: object) -> None:
    """Mark outcomes that receipts prove and a restored store lacks as lost, so that releasing goes on without them.

    Their charges are entered from the receipts, their windows are final and never drawn again, and what was collected
    for them is erased. Use it only where no newer copy of the store exists. The service must be stopped.

    Where the copy of the receipts is lost, too, leave --receipts-copy out, and begin another copy or end it afterwards.
    """
    import asyncio

    from aggregator.repair import mark_all_lost
    from aggregator.runtime import SystemRuntime

    lost = asyncio.run(mark_all_lost(_config(config_file, **settings), SystemRuntime()))
    _say_lost(lost)
    if not lost.windows and not lost.unknown:
        click.echo("no outcome is lost")


@click.command(
    "begin-receipts-copy",
    short_help="Begin a second copy of the receipts.",
    epilog=examples(
        "hushsum admin begin-receipts-copy --data DIR --receipts-copy /mnt/other/receipts.jsonl",
        "hushsum admin begin-receipts-copy --data DIR --receipts-copy /mnt/other/receipts.jsonl --reverse",
    ),
)
@_stored
@click.option("--reverse", is_flag=True, help="The receipts are lost: make them from the copy, which survived.")
def begin_receipts_copy(*, config_file: Path | None, reverse: bool, **settings: object) -> None:
    """Begin a second copy of the receipts of an existing store, move it, or replace a lost one; stop the service first.

    Receipts and store are compared first. A copy that has lines which the receipts lack is left as it is: it is newer.
    The store records where the copy is: a start without the setting, or with another place, releases nothing. A copy
    that the store knows elsewhere is read, too, and not given up if it is newer; if it is missing, a warning says so.
    Never use this while an earlier copy may still be found: it can tell that the store was set back, a new one cannot.

    With --reverse the receipts are made from the copy, or completed if they are older: the copy must have the store's
    id, its lines and a receipt for every published outcome. If the store has neither an id nor an outcome, nothing
    tells whose copy it is; a warning says so, and the store is bound to it.
    """
    import asyncio

    from aggregator.release.receipts import plural
    from aggregator.repair import begin_receipts_copy as begun
    from aggregator.repair import rebuild_receipts as rebuilt
    from aggregator.runtime import SystemRuntime

    config = _config(config_file, **settings)
    if reverse:
        lines = asyncio.run(rebuilt(config, SystemRuntime()))
        click.echo(f"receipts: {plural(lines, 'line')} copied from {config.receipts_copy}; start the service")
        return
    lines = asyncio.run(begun(config, SystemRuntime()))
    click.echo(f"{config.receipts_copy}: {plural(lines, 'line')} copied; start the service with this receipts_copy")


@click.command(
    "end-receipts-copy",
    short_help="Go on without the second copy of the receipts.",
    epilog=examples("hushsum admin end-receipts-copy --data DIR"),
)
@_stored
def end_receipts_copy(*, config_file: Path | None, **settings: object) -> None:
    """Record in the store that its receipts have no second copy any more. The service must be stopped.

    Remove receipts_copy from the settings first; the copy itself is left where it is. Receipts and store are compared,
    and the copy, if it is still there: it is not given up if it is newer. Never use this because a start reports that
    the copy is newer: then the store or the receipts were set back.
    """
    import asyncio

    from aggregator.repair import end_receipts_copy as ended
    from aggregator.runtime import SystemRuntime

    place = asyncio.run(ended(_config(config_file, **settings), SystemRuntime()))
    if place is None:
        click.echo("the store knows of no copy of its receipts")
    else:
        click.echo(f"{place}: no longer the copy of this store's receipts; start the service without it")


def _say_restored(where: str, made: "Restored") -> None:
    """What a restore has proved, and what it has not."""
    from aggregator.release.receipts import plural

    _say_lost(made.lost)
    which = "every other outcome" if made.lost.windows or made.lost.unknown else "every outcome"
    receipts = plural(made.receipts, "receipt")
    click.echo(f"{where}: restored; {which} that is proved by {made.places} ({receipts}) is in the store")
    if made.other_copy:
        click.echo(
            f"{where}: the copy of its receipts, {made.other_copy}, was not compared; `hushsum admin verify` with "
            "--receipts-copy compares it"
        )


def _say_lost(lost: "LostOutcomes") -> None:
    from aggregator.release.lost import numbered

    for name, windows in lost.windows.items():
        click.echo(f"plan {name}: marked as lost, charged, never drawn again: {numbered(windows)}")
    for plan_id, windows in lost.unknown.items():
        click.echo(
            f"plan {plan_id}: not in the store, because it was registered later; lost: {numbered(windows)}. Start the "
            "service once with its plan file, stop it, and run `hushsum admin mark-lost`"
        )
