"""`hushsum admin tokens`: the file of hashed tokens that a service reads; it is changed here, and asks nobody."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from hushsum_cli.output import as_json as as_json_option
from hushsum_cli.output import examples, print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aggregator.auth.tokens import IssuedToken, TokenEntry, TokenTable

#: Checked against aggregator.model.Scope by the tests.
_SCOPES: Final = ("submit", "read", "admin")
_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_LONGEST_S: Final = 36_500 * 86_400
_COUNT_MAX: Final = 100_000
#: Checked against how often services look by the tests.
_FOUND: Final = "running services reload the token file within 2 s and then close the open streams of these tokens"


class _Duration(click.ParamType):  # type: ignore[type-arg]  # older versions of click take no argument
    """A time span such as ``90d``, in milliseconds."""

    name = "span"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The milliseconds of a number with its unit."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"([0-9]{1,12})([smhd])", str(value))
        if match is None or int(match[1]) * _UNITS_S[match[2]] > _LONGEST_S:
            self.fail(f"{value!r}, expected a number of days (d), hours (h), minutes (m) or seconds (s)", param, ctx)
        return int(match[1]) * _UNITS_S[match[2]] * 1000


_file = click.option(
    "--file",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="Token file (hashes only); the service's setting `tokens`.",
)
_out = click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the token to this new file; several tokens as a JSON object by name.",
)


@click.group(short_help="Create, list, rotate and revoke tokens.")
def tokens() -> None:
    """Create, list, rotate and revoke bearer tokens.

    The token file contains only hashes: a token is shown once, when it is created. Running services reload the file
    within 2 seconds of a change, and close the streams of revoked tokens.
    """


@tokens.command(
    short_help="Create tokens.",
    epilog=examples(
        "hushsum admin tokens add --file tokens.jsonl --name till-7 --scope submit --expires 90d",
        "hushsum admin tokens add --file tokens.jsonl --count 500 --name-prefix edge- --scope submit --out t.json",
    ),
)
@_file
@click.option("--name", help="Name of the token; with scope submit, the client id.")
@click.option(
    "--count", type=click.IntRange(1, _COUNT_MAX), help="Create this number of tokens; requires --name-prefix."
)
@click.option("--name-prefix", help="Prefix of the names of --count tokens; a number is appended.")
@click.option(
    "--scope",
    "scopes",
    type=click.Choice(_SCOPES),
    multiple=True,
    required=True,
    help="What the token permits. Repeatable.",
)
@click.option("--expires", type=_Duration(), help="Validity, such as 90d.  [default: unlimited]")
@_out
@as_json_option
def add(  # noqa: PLR0913  one argument an option
    *,
    file: Path,
    name: str | None,
    count: int | None,
    name_prefix: str | None,
    scopes: tuple[str, ...],
    expires: int | None,
    out: Path | None,
    as_json: bool,
) -> None:
    """Create a token, or --count tokens for a fleet of clients, and show it once."""
    from aggregator.auth.tokens import adding, issue
    from aggregator.model import Scope
    from hushsum.entropy import OsEntropy

    now_ms, entropy = _now_ms(), OsEntropy()
    wanted = [Scope(scope) for scope in scopes]
    until_ms = None if expires is None else now_ms + expires
    issued = [
        issue(entropy, each, wanted, now_ms=now_ms, expires_ms=until_ms) for each in _names(name, count, name_prefix)
    ]

    _change_and_show(file, adding(issued, now_ms), issued, one=count is None, out=out, as_json=as_json)


@tokens.command("list", short_help="List tokens.", epilog=examples("hushsum admin tokens list --file tokens.jsonl"))
@_file
@as_json_option
def list_(*, file: Path, as_json: bool) -> None:
    """List the names, scopes and times of tokens."""
    from aggregator.auth.tokens import read_table

    now_ms = _now_ms()
    if not file.exists():
        raise click.ClickException(f"{file}: no such file")
    entries = list(read_table(file))
    if as_json:
        print_json([{**_shown(entry), "expired": not entry.is_good(now_ms)} for entry in entries])
        return
    rows = [
        (
            entry.id,
            entry.name,
            ", ".join(_shown_scopes(entry)),
            str(_shown(entry)["made"]),
            ("" if entry.is_good(now_ms) else "expired ") + str(_shown(entry)["expires"] or "never"),
        )
        for entry in entries
    ]
    print_table(["id", "name", "scopes", "made", "expires"], rows)


@tokens.command(
    short_help="Replace a token.",
    epilog=examples("hushsum admin tokens rotate 0123456789abcdef --file tokens.jsonl --grace 1h"),
)
@click.argument("id")
@_file
@click.option(
    "--grace",
    type=_Duration(),
    default="1h",
    show_default=True,
    help="Remaining validity of the old token; 0s revokes it at once.",
)
@click.option("--expires", type=_Duration(), help="Validity of the new token.  [default: that of the old token]")
@_out
@as_json_option
def rotate(*, id: str, file: Path, grace: int, expires: int | None, out: Path | None, as_json: bool) -> None:
    """Replace a token by a new one with the same name and scopes, and show the new token once.

    Both tokens are valid during the grace period. No restart is needed.
    """
    from dataclasses import replace

    from aggregator.auth.tokens import issue, read_table
    from hushsum.entropy import OsEntropy

    now_ms = _now_ms()
    old = _expect(read_table(file), id)
    lasts_ms = expires if expires is not None or old.expires_ms is None else old.expires_ms - old.made_ms
    until_ms = None if lasts_ms is None else now_ms + lasts_ms
    issued = issue(OsEntropy(), old.name, old.scopes, now_ms=now_ms, expires_ms=until_ms)

    def change(table: "TokenTable") -> "TokenTable":
        now_old = _expect(table, id)  # it may have been revoked meanwhile
        ends_ms = (now_ms + grace) // 1000 * 1000
        if now_old.expires_ms is not None:
            ends_ms = min(ends_ms, now_old.expires_ms)
        left = [replace(now_old, expires_ms=ends_ms)] if grace else []
        return table.changed(without=[id], with_=[*left, issued.entry])

    _change_and_show(file, change, [issued], one=True, out=out, as_json=as_json)


@tokens.command(
    short_help="Revoke tokens.",
    epilog=examples("hushsum admin tokens revoke 0123456789abcdef --file tokens.jsonl"),
)
@click.argument("ids", nargs=-1, metavar="[ID]...")
@_file
@click.option("--name", help="All tokens with this name.")
@click.option("--expired", is_flag=True, help="All expired tokens.")
@as_json_option
def revoke(*, ids: tuple[str, ...], file: Path, name: str | None, expired: bool, as_json: bool) -> None:
    """Remove tokens from the token file. Running services reject them within seconds and close their open streams."""
    from aggregator.auth.tokens import change_table

    if not (ids or name is not None or expired):
        raise click.UsageError("expected an id, --name or --expired")
    now_ms = _now_ms()
    gone: dict[str, TokenEntry] = {}

    def change(table: "TokenTable") -> "TokenTable":
        gone.update({id: _expect(table, id) for id in ids})
        of_name = {entry.id: entry for entry in table if entry.name == name}
        if name is not None and not of_name:
            raise click.ClickException("no token with this name")
        gone.update(of_name)
        gone.update({entry.id: entry for entry in table if expired and not entry.is_good(now_ms)})
        return table.changed(without=gone)

    change_table(file, change)
    if as_json:
        print_json([_shown(entry) for entry in gone.values()])
    for entry in () if as_json else gone.values():
        click.echo(f"{entry.id} ({entry.name}) revoked")
    if gone:
        click.echo(_FOUND, err=True)


def _now_ms() -> int:
    import time

    return time.time_ns() // 1_000_000


def _names(name: str | None, count: int | None, prefix: str | None) -> list[str]:
    if (name is None) == (count is None) or (count is None) != (prefix is None):
        raise click.UsageError("expected --name, or --count with --name-prefix")
    if count is None:
        return [str(name)]
    return [f"{prefix}{number:0{len(str(count))}d}" for number in range(1, count + 1)]


def _expect(table: "TokenTable", id: str) -> "TokenEntry":
    entry = table.get(id)
    if entry is None:
        # Not what came: somebody may have taken the token for its id.
        raise click.ClickException("no token with this id; see `hushsum admin tokens list`")
    return entry


def _change_and_show(
    file: Path,
    change: "Callable[[TokenTable], TokenTable]",
    issued: "Sequence[IssuedToken]",
    *,
    one: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Changes the table and shows the new tokens; those in a file of their own are there before the table has them."""
    import json

    from aggregator.auth.tokens import change_table, lacks, write_private

    texts = {each.entry.name: each.text for each in issued}
    if out is not None:
        data = issued[0].text + "\n" if one else json.dumps(texts, ensure_ascii=False, indent=1) + "\n"
        write_private(out, data.encode())
    try:
        change_table(file, change)
    except BaseException:
        if out is not None and lacks(file, [each.entry.id for each in issued]):
            out.unlink()  # what it holds is good for nothing
        raise
    if as_json:
        shown = [{**_shown(each.entry), **({"token": each.text} if out is None else {})} for each in issued]
        print_json(shown[0] if one else shown)
    elif out is not None:
        click.echo(f"{'1 token' if one else f'{len(issued)} tokens'} written to {out}")
    else:
        for each in issued:
            click.echo(each.text if one else f"{each.entry.name}\t{each.text}")
        click.echo("this token is not shown again: store it safely", err=True)


def _shown_scopes(entry: "TokenEntry") -> list[str]:
    return [scope for scope in _SCOPES if scope in entry.scopes]


def _shown(entry: "TokenEntry") -> dict[str, object]:
    from aggregator.auth.tokens import utc_text

    return {
        "id": entry.id,
        "name": entry.name,
        "scopes": _shown_scopes(entry),
        "made": utc_text(entry.made_ms),
        "expires": None if entry.expires_ms is None else utc_text(entry.expires_ms),
    }
