"""`hushsum plan advise`: the accuracy that a plan may be expected to have, before any budget is spent."""

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from hushsum_cli import local_advice
from hushsum_cli.output import ExactNumber, examples, print_json, print_pairs, print_table
from hushsum_cli.output import as_json as as_json_option
from hushsum_cli.plan import warn_of_delta
from hushsum_cli.secure_text import of_advice

if TYPE_CHECKING:
    from hushsum.advice import Advice, Allowance, Promise, ReportAdvice, Size
    from hushsum.plan import Plan

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
_LIMITS: Final = {"device_ms": "--device-ms", "delta_kib": "--delta-kib", "memory_mib": "--memory-mib"}
_SENT: Final = "delta: size for one record; client: size of all a client's sketch deltas."
_SUBMITTED: Final = "spool: stored size for one record; upload: bytes per client and window."
_SHOWN: Final = 4  # sizes below a quarter of all that matter are left out of the table
_KIB: Final = 2**10
_PERCENT_SHOWN: Final = 0.01
_BIAS_SHOWN: Final = 1e-3  # for each record: less is the rounding of coordinates


@click.command(
    short_help="Predict accuracy and cost without spending budget.",
    epilog=examples(
        "hushsum plan advise plan.toml --records 1e6 --density 0.1",
        "hushsum plan advise plan.toml --records 2e5 --clients 40000 --density 0.1 --plot advice.png",
        "hushsum plan advise plan.toml",
    ),
)
@click.argument("plan_file", type=_FILE)
@click.option(
    "--records",
    type=ExactNumber(),
    help="Expected number of records: per window, or of all windows so far if the plan's releases are cumulative (per "
    "class, if the plan has classes).  [default: a range]",
)
@click.option(
    "--density",
    type=ExactNumber(),
    help="Expected mean kernel at a typical query, above 0 and below 1.  [default: a range]",
)
@click.option(
    "--clients",
    type=ExactNumber(),
    help="Number of clients.  [default: --records / records_per_client, or one per record]",
)
@click.option(
    "--device-ms", type=ExactNumber(), default="10", show_default=True, help="Maximum time to hash one record, in ms."
)
@click.option(
    "--delta-kib",
    type=ExactNumber(),
    default="64",
    show_default=True,
    help="Maximum size of a one-record sketch delta, in KiB.",
)
@click.option(
    "--memory-mib",
    type=ExactNumber(),
    default="512",
    show_default=True,
    help="Maximum size of a window's counters, in MiB.",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Plot error against rows to this file (.png, .svg, .pdf).",
)
@click.option(
    "--sketches", is_flag=True, help="Compare families, numbers of buckets and orders for the plan's kernel. Slower."
)
@as_json_option
def advise(  # noqa: PLR0913  an option each, and click passes them by name
    *,
    plan_file: Path,
    records: Fraction | None,
    density: Fraction | None,
    clients: Fraction | None,
    device_ms: Fraction,
    delta_kib: Fraction,
    memory_mib: Fraction,
    plot: Path | None,
    sketches: bool,
    as_json: bool,
) -> None:
    """Predict a plan's error, its cost, and the best number of rows. Reads no records and spends no budget.

    Without --records or --density, a table shows the error over a range of them.

    The plan is tried on synthetic records with the expected mean kernel. Choose this value from public knowledge, never
    from the records that the plan protects: such a choice would reveal something about them.

    The noise error is exact. The hashing error depends on the distribution of the records: observed errors were 0.8 to
    1.3 times the prediction, with Sobol rows 0.7 to 1.7 times, for models up to 1.8 times. Times are measured on this
    machine. For randomised reports, --memory-mib is the only limit used. A plan with arrays must be compiled first:
    give its plan.json.
    """
    from hushsum.advice import Allowance
    from hushsum_simulator.plans import load

    plan = load(plan_file)
    try:
        allowance = Allowance(float(device_ms), float(delta_kib), float(memory_mib))
        if records is not None:
            warn_of_delta(plan, round(records))
        if records is None or density is None:
            if clients is not None or plot is not None or sketches:
                raise click.UsageError("--clients, --plot and --sketches need both --records and --density")
            print_range(plan, records, density, as_json=as_json)
            return
        if sketches:
            guessed = None if clients is None else round(clients)
            _print_sketches(plan, round(records), float(density), guessed, allowance, as_json=as_json)
            return
        advice = _ask(plan, round(records), float(density), None if clients is None else round(clients), allowance)
    except (ValueError, OverflowError) as error:
        raise click.UsageError(str(error)) from error
    if plot is not None:
        _draw(advice, plot)
    if as_json:
        print_json(advice.to_fields())
    else:
        _print(advice, plot)


def _print_sketches(
    plan: "Plan", records: int, density: float, clients: int | None, allowance: "Allowance", *, as_json: bool
) -> None:
    """The sketches of the plan's kernel, the least error first.

    Raises:
        ValueError: A guess is out of range, or no sketch is within the limits.
    """
    from hushsum.advice import choose_sketch, shown

    if plan.privacy.reports is not None:
        raise click.UsageError("--sketches is for sketch deltas; for randomised reports advise compares randomisers")
    found = choose_sketch(plan, records=records, density=density, clients=clients, allowance=allowance)
    if as_json:
        print_json({"plan": plan.name, "id": plan.hex_id, "sketches": [choice.to_fields() for choice in found]})
        return
    rows = []
    for choice in found:
        keys = choice.plan.family.to_fields()
        size = [f"{keys[key]:,}" if isinstance(keys.get(key), int) else "" for key in ("rows", "buckets", "order")]
        share = f"{100 * choice.error / (records * density):.3g} %"
        rows.append([choice.plan.family.name, *size, shown(choice.std_error), shown(choice.bias), share])
    header = ["family", "rows", "buckets", "order", "error", "bias at most", "of an answer"]
    print_table(
        header, rows, title=f"sketches of the kernel of plan {plan.name}, each with its best rows, within the limits"
    )


def print_range(plan: "Plan", records: Fraction | None, density: Fraction | None, *, as_json: bool = False) -> None:
    """The error over a range of what is not known.

    Raises:
        ValueError: No such records, or no such density.
    """
    from hushsum.advice import advise_range

    known: dict[str, Any] = {} if records is None else {"records": [round(records)]}
    known |= {} if density is None else {"densities": [float(density)]}
    found = advise_range(plan, **known)
    if as_json:
        print_json(found.to_fields())
        return
    rows = [
        [f"{density:g}", *(_error(error, found.relative(row, n)) for n, error in enumerate(found.errors[row]))]
        for row, density in enumerate(found.densities)
    ]
    of = " of one class" if plan.classes else ""
    so_far = "" if plan.privacy.cumulation is None else " so far, at the release with the most noise"
    title = f"expected error of an answer (one standard error) by the number of records{of}{so_far}"
    paired = plan.family.name == "paired"
    first = "mean loss" if paired else "density"
    print_table([first, *(f"{n:,}" for n in found.records)], rows, title=title)
    what = "loss of a model" if paired else "kernel at the query: its answer over the number of records"
    click.echo(f"{first}: mean {what}. In brackets, the error as a share of the answer.")
    if (error := plan.family.kernel_error) >= _BIAS_SHOWN:
        click.echo(f"bias: up to {error:.2g} for each record beside that; each answer bounds its own, mostly far below")


def _error(error: float, share: float) -> str:
    from hushsum.advice import shown

    percent = 100 * share
    text = ">100" if percent > 100 else f"{percent:.2g}" if percent >= 1 else f"{percent:.2f}"
    return f"±{shown(error)} ({text if percent >= _PERCENT_SHOWN else f'<{_PERCENT_SHOWN}'}\u00a0%)"


def _ask(
    plan: "Plan", records: int, density: float, clients: int | None, allowance: "Allowance"
) -> "Advice | ReportAdvice":
    from time import perf_counter

    from hushsum.advice import advise, advise_reports

    if plan.privacy.reports is not None:
        return advise_reports(plan, records=records, density=density, clients=clients, allowance=allowance)
    return advise(plan, records=records, density=density, clients=clients, allowance=allowance, clock=perf_counter)


def _draw(advice: "Advice | ReportAdvice", path: Path) -> None:
    from hushsum import advice_plot
    from hushsum.advice import Advice

    try:
        draw = advice_plot.error_figure(advice) if isinstance(advice, Advice) else advice_plot.report_figure(advice)
        draw.savefig(path)
    except ValueError as error:  # a family without rows, or an ending that is no format
        raise click.BadParameter(str(error).splitlines()[0], param_hint="--plot") from error


def _print(advice: "Advice | ReportAdvice", plot: Path | None) -> None:
    from hushsum.advice import ReportAdvice

    if isinstance(advice, ReportAdvice):
        local_advice.print_reports(advice, plot)
        return
    pairs = [
        *_expected(advice),
        *_counts(advice),
        *of_advice(advice),
        *local_advice.of_advice(advice),
        *_best(advice),
        *_useful(advice),
        *_sequence(advice),
        *_caveats(advice),
    ]
    print_pairs([*pairs, ("plot", f"written to {plot}")] if plot else pairs, title=f"advice for {advice.plan.name}")
    sizes, first = _shown(advice), "pairs" if advice.plan.family.name == "fourier" else "rows"
    titles = [_title(promise) for promise in advice.promises]
    errors = [
        first,
        "hashing",
        *(f"noise, {title}" for title in titles),
        *(f"± {title}" for title in titles),
        "share",
        "",
    ]
    print_table(errors, [_errors(advice, size) for size in sizes], title="standard error of an answer, in records")
    submits = advice.own.costs.upload_bytes is not None
    sent = ["spool", "upload"] if submits else ["delta", "client"]
    costs = [first, *sent, "device", "window", "release", "µs per record"]
    print_table(costs, [_costs(size) for size in sizes], title="sizes and time")
    click.echo(
        f"share: error relative to n·k̄, for the plan's guarantee. {_SUBMITTED if submits else _SENT}\n"
        "device: hash parameters; window: exact counters; release: maximum file size; time: on this machine."
    )


def _title(promise: "Promise") -> str:
    return promise.name if not promise.delta else f"δ={float(promise.delta):.0e}".replace("e-0", "e-")


def _expected(advice: "Advice") -> Iterator[tuple[str, str]]:
    from hushsum.advice import shown

    guesses, own, promise = advice.guesses, advice.own, advice.promises[advice.own_promise]
    records = "records" if advice.plan.privacy.cumulation is None else "records so far"
    yield "guesses", f"{guesses.records:,} {records} from {guesses.clients:,} clients; mean kernel {guesses.density:g}"
    if advice.plan.privacy.cumulation is not None:
        yield "", "errors are those at the release with the most noise"
    yield "answer", f"about n·k̄ = {shown(guesses.kernel_sum)} records"
    error, noise = advice.std_error, own.noises[advice.own_promise]
    share = f"{100 * error / guesses.kernel_sum:.3g} %"
    yield (
        "error",
        f"± {shown(error)} records ({share}) with the plan's ε = {float(promise.epsilon):g}, {_delta(promise)}",
    )
    yield "", f"of which hashing {shown(own.hashing)}, noise {shown(noise)}"
    if advice.kernel_error:
        share = f"{100 * advice.bias / guesses.kernel_sum:.2g} %"
        text = f"up to {shown(advice.bias)} records ({share}): {advice.kernel_error:.2g} per record"
        if advice.plan.family.name == "hermite":
            text += " at the worst query; each answer has its own bound, usually far smaller"
        yield "bias", text


def _delta(promise: "Promise") -> str:
    from hushsum.privacy.exact_numbers import numeral
    from hushsum.privacy.mechanisms import DISCRETE_GAUSSIAN

    if not promise.delta:
        return "δ = 0 (pure)"
    how = "zCDP" if promise.mechanism == DISCRETE_GAUSSIAN else "Laplace noise, which has the smaller error here"
    return f"δ = {numeral(promise.delta, up=True)} ({how})"


def _counts(advice: "Advice") -> Iterator[tuple[str, str]]:
    """The error of n̂, where the multiplier of its counter decides how many windows the limits pay for."""
    from hushsum.advice import shown
    from hushsum.canonical import real_text

    counts, adds = advice.counts, advice.plan.privacy.budget.adds
    if len(counts) < 2:
        return
    own = [count for count in counts if count.mechanism == advice.plan.privacy.mechanism]
    for count in (*own, *(count for count in counts if count not in own)):
        windows = f", {count.releases:,} window{'' if count.releases == 1 else 's'} within the limits" if adds else ""
        which = "the plan's" if count in own else "instead of it"
        scales = f"count_scale {count.mechanism.count_scale}, scale {real_text(count.mechanism.scale)}"
        yield (
            ("n̂" if count in own or not own else ""),
            f"± {shown(count.std_error)} records{windows} ({scales}, {which})",
        )


def _best(advice: "Advice") -> Iterator[tuple[str, str]]:
    from hushsum.advice import shown

    for index, promise in enumerate(advice.promises):
        if promise.best is None:
            error = advice.own.errors[index]
            text = f"± {shown(error)}; the number of rows is fixed"
            if any(size.rows for size in advice.sizes) and len(advice.sizes) > 1:
                text = "no size within the limits: raise " + ", ".join(
                    _LIMITS[name] for name in advice.sizes[0].exceeds
                )
        else:
            error = advice.at(promise.best).errors[index]
            text = f"R = {promise.best:,}: ± {shown(error)}"
            if promise.enough != promise.best:
                text += f" (R = {promise.enough:,} is within 5 % of that)"
            if promise.delta:
                text += f"; {_more(advice, promise.best)}"
        yield f"best, {_title(promise)}", text
    if advice.optimal_rows is not None:
        yield "R*", f"{advice.optimal_rows:,}: rows with the least predicted error for pure ε, without limits"
    if advice.missing is not None:
        yield "δ > 0", f"not available: {advice.missing}"


def _more(advice: "Advice", best: int) -> str:
    """Why no more rows than these are advised where noise does not grow with them."""
    if not any(size.hashing for size in advice.sizes):
        return "no hashing error, so more rows do not help"
    bounds = advice.bound_by.split(" and ")
    # Sizes are looked at by powers of two: what is best of those that are allowed may be nearly half of the largest.
    largest = max(size.rows for size in advice.sizes if size.rows and not size.exceeds)
    if 2 * best > largest and _LIMITS.keys() >= set(bounds):
        limits = " and ".join(_LIMITS[name] for name in bounds)
        return f"noise does not grow with R: the largest R within {limits}"
    if 2 * best > largest and advice.bound_by.startswith("the format"):
        return "noise does not grow with R: the largest R of a plan or sketch delta"
    return "more rows do not help"


def _useful(advice: "Advice") -> Iterator[tuple[str, str]]:
    unit, most = advice.plan.privacy.unit, advice.plan.privacy.records_per_client
    for promise in advice.promises:
        text = f"noise is at most 10 % of an answer from {promise.useful_records:,} records"
        if unit == "client":
            text += f": {promise.useful_clients:,} clients of {advice.guesses.records / advice.guesses.clients:.3g}"
        yield f"useful, {_title(promise)}", text
    if unit == "client":
        yield (
            "",
            (
                f"unit client protects all {most:,} records of a client: the noise is {most:,} times that of unit "
                "record, so choose records_per_client no larger than needed"
            ),
        )


def _sequence(advice: "Advice") -> Iterator[tuple[str, str]]:
    """What a bound on the windows of a client costs in a cumulative sequence."""
    sequence = advice.plan.privacy.cumulation
    if sequence is not None and (text := sequence.windows_text()):
        yield "clients", text


def _caveats(advice: "Advice") -> Iterator[tuple[str, str]]:
    if advice.plan.classes:
        several = len(advice.plan.classes)
        yield (
            "classes",
            f"values are per class; over all {several} classes noise is √{several} times larger",
        )
    least = advice.plan.window.min_clients
    if least > advice.guesses.clients:
        yield "withheld", f"{advice.guesses.clients:,} clients are fewer than window.min_clients = {least:,}"


def _shown(advice: "Advice") -> list["Size"]:
    matter = [size.rows for size in advice.sizes if size.rows in _marks(advice) and size.rows]
    return [size for size in advice.sizes if not matter or (size.rows or 0) * _SHOWN >= min(matter)]


def _marks(advice: "Advice") -> dict[int | None, list[str]]:
    marks: dict[int | None, list[str]] = {advice.own.rows: ["the plan"]}
    for promise in advice.promises:
        if promise.best is not None:
            marks.setdefault(promise.best, []).append(f"best {_title(promise)}")
    if advice.optimal_rows is not None:
        marks.setdefault(advice.optimal_rows, []).append("R*")
    return marks


def _errors(advice: "Advice", size: "Size") -> list[str]:
    from hushsum.advice import shown

    return [
        "" if size.rows is None else f"{size.rows:,}",
        *(shown(part) for part in (size.hashing, *size.noises, *size.errors)),
        f"{100 * size.errors[advice.own_promise] / advice.guesses.kernel_sum:.3g} %",
        ", ".join(_marks(advice).get(size.rows, []) + ["over a limit"] * bool(size.exceeds)),
    ]


def _costs(size: "Size") -> list[str]:
    costs = size.costs
    return [
        "" if size.rows is None else f"{size.rows:,}",
        *(_bytes(value) for value in (costs.delta_bytes, costs.upload_bytes or costs.client_delta_bytes)),
        _bytes(costs.device_bytes),
        *(_bytes(value) for value in (costs.aggregator_bytes, costs.release_bytes)),
        "" if costs.record_seconds is None else f"{1e6 * costs.record_seconds:,.3g}",
    ]


def _bytes(number: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= _KIB
    return f"{number:.3g} GiB"
