"""`hushsum keys`: keys of services, clients and planners, the directories that name them, and certificates."""

from pathlib import Path

import click

from hushsum_cli.certificates import certificates
from hushsum_cli.output import as_json as as_json_option
from hushsum_cli.output import examples, print_json, print_table

#: Checked against hushsum.signing.Role by the tests.
_ROLES = ("gateway", "releaser", "producer", "client", "shuffler", "planner")


@click.group(short_help="Make keys and certificates, and check a directory.")
def keys() -> None:
    """Make keys, and check the directories that name them.

    One directory says which services may write to the log (gateway, releaser, producer); another one which clients take
    part in a plan's secure sums (client), and the plan names that one by its digest. Gateways know by a third whose
    batches of reports were shuffled (shuffler), and devices by one of their own whose plans they take (planner).
    """


@keys.command(
    short_help="Make a key.",
    epilog=examples(
        "hushsum keys make --role gateway --name gw-1 --out gw-1.pem >> directory.toml",
        "hushsum keys make --role client --name device-1 --out device-1.pem >> clients.toml",
        "hushsum keys make --role planner --name planner-1 --out planner-1.pem >> planners.toml",
    ),
)
@click.option("--role", type=click.Choice(_ROLES), required=True, help="What the key may sign.")
@click.option("--name", required=True, help="Its name in the directory; a client's is its client id.")
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), required=True, help="The file of the private key."
)
@as_json_option
def make(*, role: str, name: str, out: Path, as_json: bool) -> None:
    """Make a key: write its private half to a file that nobody else may read, print its lines of the directory."""
    from hushsum.entropy import OsEntropy
    from hushsum.signing import DirectoryKey, Role, SigningKey, toml_of

    key = SigningKey.generate(OsEntropy())
    lines = toml_of(DirectoryKey(name, Role(role), key.verify_key))  # refuses a name before anything is written
    key.save(out)
    if as_json:
        print_json({"name": name, "role": role, "public_key": key.verify_key.hex, "private_key_file": str(out)})
    else:
        click.echo(lines)


@keys.command(short_help="Check a directory.", epilog=examples("hushsum keys check directory.toml"))
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@as_json_option
def check(*, file: Path, as_json: bool) -> None:
    """Check a directory, and show its keys and its digest."""
    from hushsum.errors import DirectoryError
    from hushsum.signing import Directory

    try:
        directory = Directory.from_toml(file.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise DirectoryError(f"{file}: not UTF-8") from error
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
