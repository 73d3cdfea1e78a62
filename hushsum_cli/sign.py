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
    short_help="Sign a compiled plan.",
    epilog=examples(
        "hushsum plan sign plan.json --key planner-1.pem",
        "hushsum plan sign plan.json --key secret.pem --key-id planner-1",
    ),
)
@click.argument("plan_json", type=_FILE)
@click.option("--key", "key_file", type=_FILE, required=True, help="Private key of the planner (PEM).")
@click.option(
    "--key-id", metavar="NAME", help="Name of the key in key registries.  [default: the file name without .pem]"
)
@click.option("--force", is_flag=True, help="Overwrite another signature in PLAN_JSON.sig.")
@as_json_option
def sign(*, plan_json: Path, key_file: Path, key_id: str | None, force: bool, as_json: bool) -> None:
    """Sign a compiled plan: write PLAN_JSON.sig, which `hushsum serve --plan PLAN_JSON` sends to devices.

    A device with the policy signed_by accepts only plans that are signed by a planner in its key registry. Review the
    plan first (`hushsum plan show`). To create a key: `hushsum keys make --role planner`.
    """
    from hushsum.signed_plan import SignedPlan, signature_file
    from hushsum.signing import DirectoryKey, Role, SigningKey, toml_of

    made, key = _made(plan_json), SigningKey.load(key_file)
    name = key_file.stem if key_id is None else key_id
    lines = toml_of(DirectoryKey(name, Role.PLANNER, key.verify_key))  # refuses a name before anything is written
    signed, target = SignedPlan.sign(made.bundle, key, name), signature_file(plan_json)
    if target.exists() and target.read_bytes() != signed.to_bytes() and not force:
        raise click.ClickException(f"{target} already contains another signature: use --force to overwrite it")
    target.write_bytes(signed.to_bytes())
    if as_json:
        public = key.verify_key.hex
        print_json({"plan_id": made.hex_id, "key_id": name, "public_key": public, "file": str(target)})
        return
    print_pairs(
        [
            ("signed", f"plan {made.hex_id}"),
            ("by", f"{name}, public key {key.verify_key.hex}"),
            ("file", f"{target}: `hushsum serve --plan {plan_json}` sends it with the plan"),
            ("devices", "verify it with Policy(signed_by='planners.toml'), a key registry with this entry:"),
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
        return f"invalid: {error}"
    if signed is None:
        return ""
    return f"{signature_file(plan_file).name}, by key {signed.key_id!r} (not verified here: devices verify it)"


def _made(path: Path) -> "Plan":
    from hushsum.plan import Plan

    data = path.read_bytes()
    if not data.lstrip().startswith(b"{"):
        raise click.ClickException(f"{path}: not a compiled plan; compile it first: hushsum plan make {path}")
    return Plan.from_bytes(data)
