"""`hushsum plan sign`: puts a planner's signature beside a made plan, which devices may demand."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hushsum_cli.output import as_json as as_json_option
from hushsum_cli.output import examples, print_json, print_pairs

if TYPE_CHECKING:
    from hushsum.plan import Plan

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command(
    short_help="Sign a made plan, for devices that ask for it.",
    epilog=examples(
        "hushsum plan sign plan.json --key planner-1.pem",
        "hushsum plan sign plan.json --key secret.pem --key-id planner-1",
    ),
)
@click.argument("plan_json", type=_FILE)
@click.option("--key", "key_file", type=_FILE, required=True, help="The planner's private key.")
@click.option("--key-id", metavar="NAME", help="What directories call the key.  [default: the key's file without .pem]")
@click.option("--force", is_flag=True, help="Replace another signature in PLAN_JSON.sig.")
@as_json_option
def sign(*, plan_json: Path, key_file: Path, key_id: str | None, force: bool, as_json: bool) -> None:
    """Sign a made plan: write PLAN_JSON.sig, which `hushsum serve --plan PLAN_JSON` gives to devices with the plan.

    A device whose policy says signed_by takes part in no plan but those that one of its planners has signed, whatever
    the service says. Sign what you have read (`hushsum plan show`): the signature says that you answer for it. `hushsum
    keys make --role planner` makes the key.
    """
    from hushsum.signed_plan import SignedPlan, signature_file
    from hushsum.signing import DirectoryKey, Role, SigningKey, toml_of

    made, key = _made(plan_json), SigningKey.load(key_file)
    name = key_file.stem if key_id is None else key_id
    lines = toml_of(DirectoryKey(name, Role.PLANNER, key.verify_key))  # refuses a name before anything is written
    signed, target = SignedPlan.sign(made.bundle, key, name), signature_file(plan_json)
    if target.exists() and target.read_bytes() != signed.to_bytes() and not force:
        raise click.ClickException(f"{target} holds another signature; --force replaces it")
    target.write_bytes(signed.to_bytes())
    if as_json:
        public = key.verify_key.hex
        print_json({"plan_id": made.hex_id, "key_id": name, "public_key": public, "file": str(target)})
        return
    print_pairs(
        [
            ("signed", f"plan {made.hex_id}"),
            ("by", f"{name}, public key {key.verify_key.hex}"),
            ("file", f"{target}, beside the plan: `hushsum serve --plan {plan_json}` gives both to devices"),
            ("devices", "that ask for it have Policy(signed_by='planners.toml'), a directory which holds"),
        ],
        title=made.name,
    )
    click.echo(f"\n{lines}", nl=False)


def beside(plan_file: Path, plan: "Plan") -> str:
    """What `hushsum plan show` says of the signature in the file beside a plan's; empty without one."""
    from hushsum.errors import PlanError
    from hushsum.signed_plan import SignedPlan, signature_file

    try:
        signed = SignedPlan.beside(plan_file, plan.bundle)
    except PlanError as error:
        return f"none of this plan: {error}"
    if signed is None:
        return ""
    return f"{signature_file(plan_file).name} names the key {signed.key_id!r}; whether it is that key's, devices check"


def _made(path: Path) -> "Plan":
    from hushsum.plan import Plan

    data = path.read_bytes()
    if not data.lstrip().startswith(b"{"):
        raise click.ClickException(f"{path}: not a made plan; make it first: hushsum plan make {path}")
    return Plan.from_bytes(data)
