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
    short_help="Create TLS certificates.",
    epilog=examples(
        "hushsum keys certificates --out tls --host gateway.example --host 10.0.0.7",
        "hushsum keys certificates --out tls --host localhost --client till-3 --client analyst:read",
        "hushsum keys certificates --authority tls --out tls --client till-4",
        "hushsum keys certificates --out metrics --client prometheus:admin",
    ),
)
@click.option("--out", type=_FOLDER, required=True, help="Output directory.")
@click.option("--host", "hosts", multiple=True, help="Host name or IP address of the service. Repeatable.")
@click.option(
    "--client",
    "clients",
    metavar="NAME[:SCOPE,…]",
    multiple=True,
    help="Client name and scopes: submit, read, admin (needed for /metrics). Repeatable.  [default scope: submit]",
)
@click.option("--days", type=click.IntRange(1, 3650), default=365, show_default=True, help="Validity, in days.")
@click.option(
    "--authority", type=_FOLDER, help="Directory with an existing CA (ca.pem, ca.key).  [default: create a CA]"
)
@as_json_option
def certificates(
    *, out: Path, hosts: tuple[str, ...], clients: tuple[str, ...], days: int, authority: Path | None, as_json: bool
) -> None:
    """Create TLS certificates, for tests and for deployments without a certificate authority (CA).

    A new CA is written to ca.pem (distribute to services and clients) and ca.key (keep offline). All hosts share
    server.pem and server.key; each client gets NAME.pem and NAME.key. Private keys have mode 600. Existing files are
    never overwritten.
    """
    from datetime import UTC, datetime

    from hushsum_proto.authority import Authority

    if not hosts and not clients:
        raise click.UsageError("no --host and no --client given: expected at least one")
    names = dict(map(_client, clients))
    if len(names) < len(clients):
        raise click.UsageError("the same client is given twice: give several scopes as --client NAME:SCOPE,SCOPE")
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
        raise click.BadParameter(
            f"{name!r}: expected letters, digits, '-', '_' and '.' only, and neither 'ca' nor 'server'"
        )
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
            raise CredentialsError(f"{path} already exists: nothing was written; remove it or choose another --out")
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
