"""`hushsum keys certificates`: an authority, and certificates of services and clients that it signs."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hushsum_cli.output import as_json as as_json_option
from hushsum_cli.output import examples, print_json, print_table

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hushsum_proto.authority import Authority, Issued

_FOLDER = click.Path(file_okay=False, path_type=Path)
_CA = "ca"
_SERVER = "server"


@click.command(
    short_help="Make certificates for TLS.",
    epilog=examples(
        "hushsum keys certificates --out tls --host gateway.example --host 10.0.0.7",
        "hushsum keys certificates --out tls --host localhost --client till-3 --client analyst:read",
        "hushsum keys certificates --authority tls --out tls --client till-4",
        "hushsum keys certificates --out metrics --client prometheus:admin",
    ),
)
@click.option("--out", type=_FOLDER, required=True, help="The folder that takes the files.")
@click.option(
    "--host", "hosts", multiple=True, help="A name or address of the service, as clients call it. Repeatable."
)
@click.option(
    "--client",
    "clients",
    metavar="NAME[:SCOPE,…]",
    multiple=True,
    help="A client, and what it may do: submit, read, admin (which /metrics needs). Default: submit. Repeatable.",
)
@click.option("--days", type=click.IntRange(1, 3650), default=365, show_default=True, help="How long they are valid.")
@click.option(
    "--authority", type=_FOLDER, help="The folder of an earlier run, whose authority signs. Default: a new one."
)
@as_json_option
def certificates(
    *, out: Path, hosts: tuple[str, ...], clients: tuple[str, ...], days: int, authority: Path | None, as_json: bool
) -> None:
    """Make certificates for trying TLS out, and for deployments without an authority of their own.

    With a new authority come ca.pem, which both sides are given, and ca.key, which signs: keep it where no service is.
    Hosts share server.pem and server.key; each client has NAME.pem and NAME.key. Keys are files that nobody else may
    read, and nothing is overwritten.
    """
    from datetime import UTC, datetime

    from hushsum_proto.authority import Authority

    if not hosts and not clients:
        raise click.UsageError("nothing to make: name a --host or a --client")
    names = dict(map(_client, clients))
    if len(names) < len(clients):
        raise click.UsageError("a client is named twice; several scopes stand behind one name, with commas")
    now = datetime.now(UTC)
    signing = Authority.make(now, days) if authority is None else Authority(_loaded(authority), now, days)
    made = _made(signing, hosts, names)
    if authority is None:
        made = {_CA: signing.own, **made}
    paths = _written(out, made)
    rows = [(stem, str(certificate), str(key)) for stem, (certificate, key) in paths.items()]
    if as_json:
        print_json(
            [{"name": name, "certificate": certificate, "private_key_file": key} for name, certificate, key in rows]
        )
    else:
        print_table(["of", "certificate", "private key"], rows)


def _client(text: str) -> tuple[str, tuple[str, ...]]:
    name, _, scopes = text.partition(":")
    if (
        not name.replace("-", "").replace("_", "").replace(".", "").isalnum()
        or name[0] == "."
        or name in {_CA, _SERVER}
    ):
        raise click.BadParameter(f"{name!r}: expected letters, digits, - _ and . alone, and neither ca nor server")
    return name, tuple(scopes.split(",")) if scopes else ("submit",)


def _loaded(folder: Path) -> "Issued":
    from hushsum_proto.authority import Issued

    return Issued((folder / f"{_CA}.pem").read_bytes(), (folder / f"{_CA}.key").read_bytes())


def _made(
    signing: "Authority", hosts: tuple[str, ...], clients: "Mapping[str, tuple[str, ...]]"
) -> "dict[str, Issued]":
    made = {_SERVER: signing.server(hosts)} if hosts else {}
    return made | {name: signing.client(name, scopes) for name, scopes in clients.items()}


def _written(out: Path, made: "Mapping[str, Issued]") -> dict[str, tuple[Path, Path]]:
    """Writes all files, or none where one of them is there already."""
    from hushsum_proto.errors import CredentialsError

    paths = {stem: (out / f"{stem}.pem", out / f"{stem}.key") for stem in made}
    for path in (path for pair in paths.values() for path in pair):
        if path.exists():
            raise CredentialsError(f"{path}: is there already; nothing is overwritten, and nothing was written")
    out.mkdir(parents=True, exist_ok=True)
    for stem, issued in made.items():
        certificate, key = paths[stem]
        _write(key, issued.key, 0o600)
        _write(certificate, issued.certificate, 0o644)
    return paths


def _write(path: Path, data: bytes, mode: int) -> None:
    import os

    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:  # noqa: PTH123  a descriptor is opened, no path
        file.write(data)
