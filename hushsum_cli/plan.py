"""`hushsum plan`: makes a plan, shows one, signs one, and names the arrays that go beside one."""

from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from hushsum_cli import local_text, secure_text
from hushsum_cli.init import init
from hushsum_cli.output import ExactNumber, bytes_text, examples, print_json, print_pairs
from hushsum_cli.output import as_json as as_json_option
from hushsum_cli.sign import beside, sign

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from hushsum.plan import Plan

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_SHOWN_MAX: Final = 8  # items of a list
_parameters = click.option(
    "--parameters",
    type=_FILE,
    multiple=True,
    metavar="FILE.npy",
    help="Array that the plan refers to by digest. Repeatable.",
)


@click.group(short_help="Propose, compile, show and sign plans.")
def plan() -> None:
    """Propose a plan file, compile it, show a plan and its guarantee, or sign a compiled plan."""


plan.add_command(init)
plan.add_command(sign)


@plan.command(
    short_help="Compile plan.toml to plan.json.",
    epilog=examples(
        "hushsum plan make plan.toml -o plan.json", "hushsum plan make plan.toml --parameters directions.npy"
    ),
)
@click.argument("plan_toml", type=_FILE)
@click.option(
    "-o",
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Output file.  [default: PLAN_TOML with suffix .json]",
)
@click.option("--force", is_flag=True, help="Overwrite a different plan in the output file.")
@click.option(
    "--records", type=ExactNumber(), help="Expected number of records per window; warns if δ is too large for it."
)
@_parameters
@as_json_option
def make(
    *,
    plan_toml: Path,
    out: Path | None,
    force: bool,
    records: Fraction | None,
    parameters: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Compile a plan: check plan.toml, calibrate the noise, and write plan.json. The plan's id is the hash of it.

    Give plan.json to `hushsum serve` and to devices, which verify it without calibrating again. Arrays that the plan
    refers to by digest (`hushsum plan digest`) are appended to plan.json.
    """
    from hushsum.parameters import Parameters, digest
    from hushsum.plan import Plan

    arrays = [_array(path) for path in parameters]
    made = Plan.from_toml(plan_toml, Parameters.of(arrays))  # which may be more than it names: said below, by file
    if records is not None:
        warn_of_delta(made, round(records))
    for path, array in zip(parameters, arrays, strict=True):
        if digest(array) not in made.parameters.arrays:
            raise click.ClickException(f"{path}: the plan does not refer to this array (digest {digest(array)})")
    target = out or plan_toml.with_suffix(".json")
    if target.exists() and target.read_bytes() != made.bundle and not force:
        raise click.ClickException(
            f"{target} already exists with other contents: use --force to overwrite it, or -o for another file"
        )
    target.write_bytes(made.bundle)
    _print(made, as_json=as_json, note=f"written to {target}")


@plan.command(short_help="Show a plan and its guarantee.", epilog=examples("hushsum plan show plan.json"))
@click.argument("plan_file", type=_FILE)
@_parameters
@as_json_option
def show(*, plan_file: Path, parameters: tuple[Path, ...], as_json: bool) -> None:
    """Show a plan: a plan.json, or a plan.toml as it would be compiled."""
    from hushsum_simulator.plans import load

    shown = load(plan_file, [_array(path) for path in parameters])
    _print(shown, as_json=as_json, signature=beside(plan_file, shown))


@plan.command(short_help="Print array digests.", epilog=examples("hushsum plan digest directions.npy"))
@click.argument("files", metavar="FILE.npy...", type=_FILE, nargs=-1, required=True)
def digest(*, files: tuple[Path, ...]) -> None:
    """Print the digest by which a plan refers to an array: the matrix of a linear transform, or hash directions.

    Arrays are public, like the rest of the plan. Do not compute them from the data that the plan protects.
    """
    from hushsum.parameters import digest

    for path in files:
        click.echo(f"{digest(_array(path))}  {path}")


def warn_of_delta(made: "Plan", records: int) -> None:
    """Warns of a δ that is large for so many records."""
    import warnings

    from hushsum.errors import PlanWarning

    if text := made.delta_warning(records):
        warnings.warn(text, PlanWarning, stacklevel=2)


def _array(path: Path) -> "npt.NDArray[np.generic]":
    import numpy as np

    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise click.ClickException(f"{path}: not a NumPy .npy file: {' '.join(str(error).split())}") from error
    if not isinstance(array, np.ndarray):
        raise click.ClickException(f"{path}: contains several arrays, expected a .npy file with one")
    return array


def _print(made: "Plan", *, as_json: bool, note: str = "", signature: str = "") -> None:
    import json

    sizes = _sizes(made)
    if as_json:
        numbers = {"noise_std_error": _noise_of(made), "kernel_error": made.family.kernel_error, **sizes._asdict()}
        numbers |= secure_text.numbers(made) | local_text.numbers(made)  # where reports are sent, deltas are not
        if made.report_sizes is not None:
            del numbers["delta_bytes_of_one_record_max"], numbers["delta_bytes_max"]
        promised = {"guarantee": made.guarantee.to_fields(), "plan": json.loads(made.to_bytes())}
        print_json({"id": made.hex_id, **numbers, **promised})
        return
    pairs = [
        ("id", made.hex_id),
        *_record(made),
        *_sketch(made),
        ("memory", f"{sizes.counters:,} counters, {bytes_text(sizes.sketch_bytes)}"),
        *_sent(made, sizes),
        *_kernel_error(made),
        ("guarantee", _promise(made)),
        *secure_text.of_plan(made),
        *local_text.of_plan(made),
        ("noise", _noise(made)),
        *_count(made),
        *_clients(made),
        *_sequence(made),
        ("budget", _budget(made)),
        ("ledger", _charge(made)),
        ("window", _keys(made.window.to_fields())),
        ("signature", signature),
        ("file", note),
    ]
    print_pairs([(name, value) for name, value in pairs if value], title=made.name)


def _noise_of(made: "Plan") -> float | None:
    """The standard error that noise is of an answer; of reports, whose number decides it, None."""
    from hushsum import query

    return None if made.report_sizes is not None else query.noise_std_error(made)


class _Sizes(NamedTuple):
    """What a plan costs."""

    counters: int
    sketch_bytes: int
    delta_bytes_of_one_record_max: int
    delta_bytes_max: int


def _sizes(made: "Plan") -> _Sizes:
    from math import prod

    from hushsum.delta_sizes import DeltaSizes

    shape = made.counters_shape
    counters = prod(shape) + made.count_counters
    one = DeltaSizes(made.family, shape[0], records_per_client=1)
    return _Sizes(counters, 8 * counters, one.bytes_max, made.delta_bytes_max)


def _sent(made: "Plan", sizes: _Sizes) -> Iterator[tuple[str, str]]:
    if made.privacy.cohort is None and made.privacy.local is None:  # else none is sent
        yield "delta", _delta(made, sizes)


def _delta(made: "Plan", sizes: _Sizes) -> str:
    one, largest = bytes_text(sizes.delta_bytes_of_one_record_max), bytes_text(sizes.delta_bytes_max)
    most = made.delta_records_max
    return f"at most {one} for one record" + (f", {largest} for {most:,} records (the maximum)" if most > 1 else "")


def _kernel_error(made: "Plan") -> Iterator[tuple[str, str]]:
    if error := made.family.kernel_error:
        yield "bias", f"up to {error:.2g} per record (approximated kernel against exact kernel)"


def _record(made: "Plan") -> Iterator[tuple[str, str]]:
    from hushsum.families import SetRecords

    if isinstance(made.record, SetRecords):
        yield "record", f"a set of ids from 0 to {made.record.universe - 1:,}"
    else:
        names = made.collection.names
        columns = "1 column" if made.vectors.dim == 1 else f"{made.vectors.dim} columns"
        yield "record", f"{columns}: {_listed(names)}" if names else columns
    if made.classes:
        yield "classes", f"{len(made.classes)}, one sketch each: {_listed(made.classes)}"


def _sketch(made: "Plan") -> Iterator[tuple[str, str]]:
    """One line for the family and its plain keys, then one for each table of a list: a transform, a group."""
    fields = made.family.to_fields()
    tables: dict[str, Any] = {key: value for key, value in fields.items() if _is_tables(value)}
    plain = {key: value for key, value in fields.items() if key not in tables}
    yield "sketch", f"{made.family.name}, {_keys(plain, made)}"
    for key, value in tables.items():
        for number, table in enumerate(value, 1):
            yield f"{key.removesuffix('s')} {number}", _keys(table, made)
    if len(made.parameters):
        numbers = sum(array.size for array in made.parameters.arrays.values())
        yield "arrays", f"{len(made.parameters)} in plan.json, {numbers:,} numbers"


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value)


def _keys(fields: Mapping[str, Any], made: "Plan | None" = None) -> str:
    return ", ".join(f"{key} {_value(value, made)}" for key, value in fields.items())


def _value(value: Any, made: "Plan | None") -> str:
    if isinstance(value, Mapping):
        return f"({_keys(value, made)})"
    if isinstance(value, list | tuple):
        return f"[{_listed([_value(item, made) for item in value])}]"
    if made is not None and value in made.parameters.arrays:
        shape = " × ".join(map(str, made.parameters.arrays[value].shape))
        return f"{value[:12]}… ({shape})"
    return str(value)


def _listed(items: Any) -> str:
    more = f", … {len(items) - _SHOWN_MAX} more" if len(items) > _SHOWN_MAX else ""
    return ", ".join(items[:_SHOWN_MAX]) + more


def _promise(made: "Plan") -> str:
    from hushsum.privacy.exact_numbers import numeral

    guarantee = made.guarantee
    bound = "" if guarantee.records_per_client is None else f" (at most {guarantee.records_per_client} records)"
    delta = f", δ = {numeral(guarantee.delta, up=True)}" if guarantee.delta else ""
    return (
        f"ε = {numeral(guarantee.epsilon, up=True)}{delta} per {guarantee.unit}{bound} and "
        f"{'window' if made.privacy.cumulation is None else 'sequence'}, {guarantee.relation}"
    )


def _noise(made: "Plan") -> str:
    if made.privacy.local is not None:
        return local_text.noise_line(made)
    answer = "answer for one class" if made.classes else "answer"
    if made.family.name == "hermite":  # whose answers read the counters with weights that differ from query to query
        answer = f"{answer} at the worst query"
    return f"{_mechanism(made)}: ± {_noise_of(made):,.4g} records per {answer}"


def _count(made: "Plan") -> Iterator[tuple[str, str]]:
    """How well the number of records is known, where no counter of its own tells it."""
    from hushsum.query import count_std_error

    if made.count_counters:
        return
    each = " per client" if made.privacy.is_silo else ""
    error = count_std_error(made, draws=1 if made.privacy.is_silo else None)
    yield "count", f"no count counter: the sums of rows tell the number of records, ± {error:,.4g}{each}"


def _mechanism(made: "Plan") -> str:
    from hushsum.canonical import real_text

    mechanism, rho = made.privacy.mechanism, made.guarantee.rho
    of, whole = f"{mechanism.name},", ""
    if mechanism.factorisation is not None:
        of, whole = f"draws of {mechanism.name} of", "the whole sequence is "
    if rho is None:
        return f"{of} scale {real_text(mechanism.scale)} on every counter"
    deviation = f"{mechanism.noise_variance**0.5:,.4g}"
    return f"{of} standard deviation {deviation} on every counter ({whole}{float(rho):.4g}-zCDP)"


def _clients(made: "Plan") -> Iterator[tuple[str, str]]:
    """What is visible of who takes part, and when a window is withheld."""
    from hushsum.privacy.exact_numbers import numeral

    if made.privacy.local is not None:
        return  # which is told with the rest of its mode
    if made.privacy.cohort is not None:
        yield "public", "participation: every client submits in every window, with or without records"
    least, noise = made.window.min_clients, made.privacy.mechanism.clients_noise()
    if least:
        assert noise is not None, "a plan of mode 'central' with min_clients has it"
        epsilon = numeral(made.privacy.claim.clients_epsilon, up=True)
        by = f"a noisy count (± {noise.std:,.4g}) that uses ε = {epsilon} of the guarantee"
        yield "withheld", f"windows with fewer than {least:,} clients, by {by}"


def _sequence(made: "Plan") -> Iterator[tuple[str, str]]:
    """What releases of all windows so far cost."""
    sequence = made.privacy.cumulation
    if sequence is None:
        return
    yield (
        "releases",
        f"cumulative: one guarantee for {sequence.horizon:,} outcomes; the noise above is that of the worst one",
    )
    if text := sequence.windows_text():
        yield "clients", text


def _budget(made: "Plan") -> str:
    from hushsum.privacy.exact_numbers import numeral

    delta = f", δ = {numeral(made.privacy.total_delta, up=False)}" if made.privacy.total_delta else ""
    return f"ε = {numeral(made.privacy.total_epsilon, up=False)}{delta} in total, population {_population(made)}"


def _charge(made: "Plan") -> str:
    """What one window costs a new ledger of the population, and how many windows its limits pay for."""
    from hushsum.privacy.accountant import Account
    from hushsum.privacy.statement import cost_text
    from hushsum.releases import spend_of

    if made.privacy.cumulation is not None:
        spend = spend_of(made, kind="cumulative", window=None)
        cost = Account(made.privacy.limits).recorded(spend).cost
        assert cost is not None, "a plan whose limits do not pay for its sequence is refused"
        return f"the whole sequence is charged {cost_text(cost)}, once"
    spend = spend_of(made, kind="tumbling", window=0)
    account = Account(made.privacy.limits)
    cost = account.recorded(spend).cost
    assert cost is not None, "limits pay for one release"
    number = account.affordable(spend)
    many = "any number of windows" if number is None else f"{number:,} window{'' if number == 1 else 's'}"
    return f"one window is charged {cost_text(cost)}; the budget pays for {many}"


def _population(made: "Plan") -> str:
    return repr(made.privacy.population) if made.privacy.population else "unnamed"
