"""`hushsum keys`: keys of services, clients and planners, the directories that name them, and certificates."""

from pathlib import Path

import click

from hushsum_cli.certificates import certificates
from hushsum_cli.output import as_json as as_json_option
from hushsum_cli.output import examples, print_json, print_table

#: Checked against hushsum.signing.Role by the tests.
_ROLES = ("gateway", "releaser", "producer", "client", "shuffler", "planner")


@click.group(short_help="Create keys and certificates, and check a key registry.")
def keys() -> None:
    """Create keys, and check the key registries that list them.

    A key registry is a TOML file of names, roles and public keys. One registry holds the services that may write to
    the log (roles gateway, releaser, producer), one the clients of a plan's secure sums (client; the plan has its
    digest), one the shufflers that a gateway accepts (shuffler), and one the signers of plans that a device accepts
    (planner).
    """


@keys.command(
    short_help="Create a key.",
    epilog=examples(
        "hushsum keys make --role gateway --name gw-1 --out gw-1.pem >> registry.toml",
        "hushsum keys make --role client --name device-1 --out device-1.pem >> clients.toml",
        "hushsum keys make --role planner --name planner-1 --out planner-1.pem >> planners.toml",
    ),
)
@click.option("--role", type=click.Choice(_ROLES), required=True, help="Role of the key: what it may sign.")
@click.option("--name", required=True, help="Name of the key in the registry; for role client, the client id.")
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    help="Output file for the private key (PEM, mode 600).",
)
@as_json_option
def make(*, role: str, name: str, out: Path, as_json: bool) -> None:
    """Create a key: write the private key to --out, and print the key's entry for a key registry."""
    from hushsum.entropy import OsEntropy
    from hushsum.signing import DirectoryKey, Role, SigningKey, toml_of

    key = SigningKey.generate(OsEntropy())
    lines = toml_of(DirectoryKey(name, Role(role), key.verify_key))  # refuses a name before anything is written
    key.save(out)
    if as_json:
        print_json({"name": name, "role": role, "public_key": key.verify_key.hex, "private_key_file": str(out)})
    else:
        click.echo(lines)


@keys.command(short_help="Check a key registry.", epilog=examples("hushsum keys check registry.toml"))
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@as_json_option
def check(*, file: Path, as_json: bool) -> None:
    """Check a key registry, and show its keys and digest."""
    from hushsum.errors import DirectoryError
    from hushsum.signing import Directory

    try:
        directory = Directory.from_toml(file.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise DirectoryError(f"{file}: not valid UTF-8") from error
    except DirectoryError as error:
        raise DirectoryError(f"{file}: {error}") from error
    rows = [(key.id, key.role.value, key.public_key.hex) for key in directory.keys.values()]
    if as_json:
        shown = [{"name": id, "role": role, "public_key": public} for id, role, public in rows]
        print_json({"digest": directory.digest().hex(), "keys": shown})
        return
    print_table(["name", "role", "public key"], rows)
    click.echo(f"digest {directory.digest().hex()}")


keys.add_command(certificates)
