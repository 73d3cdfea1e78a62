"""`hushsum release`: lists what a service has published, and fetches releases."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hushsum_cli.connection import connects
from hushsum_cli.output import as_json as as_json_option
from hushsum_cli.output import examples, print_json, print_pairs, print_table, utc_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hushsum.plan import Plan
    from hushsum.releases import Release
    from hushsum_proto.credentials import Credentials
    from hushsum_proto.messages import ReleaseInfo

_service = click.option(
    "--from",
    "service",
    metavar="HOST:PORT",
    default="127.0.0.1:7443",
    show_default=True,
    help="The service to ask.",
)


@click.group(short_help="List published windows, or fetch a release.")
def release() -> None:
    """List the windows whose outcome a service has published, or fetch a release as a .hush file."""


@release.command(
    "list", short_help="List published windows.", epilog=examples("hushsum release list --from 127.0.0.1:7443")
)
@_service
@connects
@as_json_option
def list_(*, service: str, credentials: "Credentials", as_json: bool) -> None:
    """List what a service has published of its windows, in their order: releases, and which windows are withheld.

    A window is withheld, for ever, where too few clients were in it by the plan's test.
    """
    import asyncio

    from hushsum_simulator.console import Console

    async def ask() -> "tuple[Plan, list[ReleaseInfo]]":
        async with Console(service, credentials) as console:
            return await console.plan(), await console.releases()

    plan, infos = asyncio.run(ask())
    if as_json:
        print_json(
            [
                {
                    "window": info.window,
                    "start_ms": plan.window.start_ms(info.window),
                    "end_ms": plan.window.end_ms(info.window),
                    "kind": info.kind,
                    "outcome": _outcome(info),
                    "bytes": None if info.withheld else info.size_bytes,
                    "sha256": None if info.withheld else info.sha256.hex(),
                }
                for info in infos
            ]
        )
        return
    rows = [
        [
            str(info.window),
            info.kind,
            _start(plan, info.window),
            _outcome(info),
            "" if info.withheld else f"{info.size_bytes:,}",
        ]
        for info in infos
    ]
    title = f"{plan.name}: {len(infos)} published"
    print_table(["window", "kind", "from (UTC)", "outcome", "bytes"], rows, title=title)


@release.command(
    short_help="Fetch a release as a .hush file.", epilog=examples("hushsum release get --window 498691 -o today.hush")
)
@_service
@connects
@click.option("--window", type=int, help="Default: the newest one.")
@click.option("-o", "--out", type=click.Path(dir_okay=False, path_type=Path), help="Default: NAME-WINDOW.hush here.")
@as_json_option
def get(*, service: str, credentials: "Credentials", window: int | None, out: Path | None, as_json: bool) -> None:
    """Fetch a published release as a .hush file, which answers any number of queries without the service."""
    import asyncio

    from hushsum_simulator.console import Console
    from hushsum_simulator.errors import ServiceError

    async def ask() -> "Release":
        async with Console(service, credentials) as console:
            infos = await console.releases()
            # A withheld window that is asked for says so itself; none is what "the newest release" means.
            infos = [each for each in infos if (not each.withheld if window is None else each.window == window)]
            if not infos:
                which = "no release" if window is None else f"no release of window {window}"
                due = _next_due(await console.plan(), (await console.welcome()).oldest_window)
                raise ServiceError(f"{service}: {which} is published here; {due}")
            return await console.fetch(infos[-1])

    fetched = asyncio.run(ask())
    target = out or Path(f"{_file_name(fetched.plan.name)}-{fetched.window}.hush")
    fetched.save(target)
    if as_json:
        print_json({"file": str(target), "window": fetched.window, "statement": fetched.statement()})
    else:
        click.echo(f"{target}: {fetched.statement()}")


def _next_due(plan: "Plan", window: int) -> str:
    """When the next outcome can come, given the oldest window that still accepts deltas; half a sentence."""
    over_ms = plan.window.end_ms(window) + plan.window.lateness_ms
    return f"window {window} is the next that is over, at {utc_text(over_ms)} (UTC), and has its outcome after that"


@release.command(short_help="Show what a .hush file promises.", epilog=examples("hushsum release show today.hush"))
@click.argument("file", metavar="FILE.hush", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@as_json_option
def show(*, file: Path, as_json: bool) -> None:
    """Show what a release promises to those who are in it, in plain words, and how many records it counts.

    A release of randomised reports tells their exact number, which was never hidden; and only one whose reports came
    through a shuffler tells what that adds.
    """
    import hushsum
    from hushsum import query

    shown = hushsum.load(file)
    count, error = shown.count, query.count_std_error(shown.plan, submissions=shown.submissions)
    if as_json:
        about = {"plan": shown.plan.name, "plan_id": shown.plan.hex_id, "kind": shown.kind, "window": shown.window}
        numbers = {"count": count, "count_std_error": error}
        print_json({**about, **_contributors(shown), **numbers, "statement": shown.statement()})
        return
    when = "no window: released in process" if shown.window is None else _window(shown.plan, shown.window)
    records = ("records", f"{count:,.0f} ± {error:,.3g}: their noisy number, with its standard error")
    if shown.plan.report_sizes is not None:
        records = ("reports", f"{count:,.0f}, one a record: their exact number")
    pairs = [("plan", shown.plan.hex_id), ("window", when), records, *_local(shown), ("promise", shown.statement())]
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
        yield "sum of", f"{clients}, each with noise of its own on every counter"
    if cost := shown.amplified:  # None, too, where they came through no shuffler
        ends = f"ε = {numeral(cost.epsilon, up=True)}, δ = {numeral(cost.delta, up=True)}"
        yield (
            "shuffled",
            f"{ends} against those who see nothing before the shuffler; on what conditions, see the promise",
        )
    elif shown.shuffled:
        yield "shuffled", "by too few for a smaller ε to be proven: the promise is what holds against everybody"


def _window(plan: "Plan", window: int) -> str:
    end = utc_text(plan.window.end_ms(window))
    return f"{window}, from {_start(plan, window)} to {end} UTC"


def _outcome(info: "ReleaseInfo") -> str:
    return "withheld" if info.withheld else "released"


def _start(plan: "Plan", window: int) -> str:
    return utc_text(plan.window.start_ms(window))


def _file_name(name: str) -> str:
    return "".join(char if char.isalnum() or char in "-_." else "_" for char in name).lstrip(".") or "release"
