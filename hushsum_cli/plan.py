"""`hushsum plan`: makes a plan, and shows one."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hushsum_cli.output import as_json as as_json_option
from hushsum_cli.output import examples, print_json, print_pairs

if TYPE_CHECKING:
    from hushsum.plan import Plan

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group(short_help="Make a plan, or show one.")
def plan() -> None:
    """Make a plan from a plan file, or show what one promises."""


@plan.command(short_help="Write the made plan, plan.json.", epilog=examples("hushsum plan make plan.toml -o plan.json"))
@click.argument("plan_toml", type=_FILE)
@click.option("-o", "--out", type=click.Path(dir_okay=False, path_type=Path), help="Default: PLAN_TOML with .json.")
@click.option("--force", is_flag=True, help="Replace another plan in that file.")
@as_json_option
def make(*, plan_toml: Path, out: Path | None, force: bool, as_json: bool) -> None:
    """Check a plan file, calibrate its noise, and write the made plan: the canonical bytes that its id is a hash of.

    Give plan.json to `hushsum serve` and to devices: they verify it, and never calibrate again.
    """
    from hushsum.plan import Plan

    made = Plan.from_toml(plan_toml)
    target = out or plan_toml.with_suffix(".json")
    if target.exists() and target.read_bytes() != made.to_bytes() and not force:
        raise click.ClickException(f"{target} holds something else; --force replaces it, -o names another file")
    target.write_bytes(made.to_bytes())
    _print(made, as_json=as_json, note=f"written to {target}")


@plan.command(short_help="Show what a plan promises.", epilog=examples("hushsum plan show plan.json"))
@click.argument("plan_file", type=_FILE)
@as_json_option
def show(*, plan_file: Path, as_json: bool) -> None:
    """Show a plan.json, or what a plan.toml would be made into."""
    from simulator.plans import load

    _print(load(plan_file), as_json=as_json)


def _print(made: "Plan", *, as_json: bool, note: str = "") -> None:
    from hushsum import query
    from hushsum.canonical import real_text

    noise = query.noise_std_error(made)
    if as_json:
        print_json({"id": made.hex_id, "noise_std_error": noise, "plan": json.loads(made.to_bytes())})
        return
    mechanism = made.privacy.mechanism
    pairs = [
        ("id", made.hex_id),
        ("record", f"{made.record.dim} columns" + (f": {', '.join(made.columns.names)}" if made.columns.names else "")),
        ("sketch", ", ".join(f"{key} {value}" for key, value in made.family.to_fields().items())),
        ("promise", _promise(made)),
        ("noise", f"{mechanism.name}, scale {real_text(mechanism.scale)}: ± {noise:,.4g} records on an answer"),
        ("budget", f"ε = {real_text(made.privacy.total_epsilon)} in all, for the population {_population(made)}"),
        ("window", ", ".join(f"{key} {value}" for key, value in made.window.to_fields().items())),
    ]
    print_pairs([*pairs, ("file", note)] if note else pairs, title=made.name)


def _promise(made: "Plan") -> str:
    from hushsum.canonical import real_text

    guarantee = made.guarantee
    bound = "" if guarantee.records_per_client is None else f" (at most {guarantee.records_per_client} records)"
    return f"ε = {real_text(guarantee.epsilon)} per {guarantee.unit}{bound} and window, {guarantee.relation}"


def _population(made: "Plan") -> str:
    return repr(made.privacy.population) if made.privacy.population else "of its aggregator"
