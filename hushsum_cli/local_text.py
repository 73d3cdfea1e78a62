"""What `hushsum plan` tells of mode local: the form, what a device sends, who learns what, and its own account."""

from collections.abc import Iterator
from math import sqrt
from typing import TYPE_CHECKING, Final

from hushsum_cli.output import bytes_text

if TYPE_CHECKING:
    from fractions import Fraction

    from hushsum.plan import Plan

_MANY: Final = 10**6  # reports, for an example


def of_plan(plan: "Plan") -> Iterator[tuple[str, str]]:
    """Rows of `hushsum plan show`; none for other modes."""
    local = plan.privacy.local
    if local is None:
        return
    if local.reports:
        yield "local", "each record leaves its device as one randomised report: nobody else is trusted with it"
        yield from _report(plan)
        yield from _randomiser(plan)
    else:
        yield "local", "each device adds all of the noise to its own counters before they leave it: nobody is trusted"
        yield "sent", _submission(plan)
    yield from _learned(plan)
    if local.reports and local.memoise:
        yield "memoised", _MEMOISED
    if local.reports and local.shuffle_min:
        yield "shuffled", _shuffled(plan)
    yield "device", _account(plan)


_MEMOISED: Final = (
    "a device keeps the report of each record and sends the same one whenever that record comes again: repeats "
    "tell nothing new of it, but equal ones can be seen to be equal, and no shuffler amplifies. Over several windows ε "
    "is for a record that is replaced wherever it occurs, by one that its device has nowhere else: a change in one "
    "window alone can be seen for certain. Devices refuse that unless they say Policy(memoise=True)"
)


def noise_line(plan: "Plan") -> str:
    """The row `noise`, which for reports depends on how many there are."""
    from hushsum import query
    from hushsum.canonical import real_text

    mechanism, local = plan.privacy.mechanism, plan.privacy.local
    assert local is not None
    answer = "an answer of one class" if plan.classes else "an answer"
    if local.reports:
        each = query.noise_std_error(plan, submissions=_MANY) / sqrt(_MANY)
        return (
            f"± {each:,.4g} × √n records on {answer} far from all n records, by chance in reports alone: "
            f"± {each * sqrt(_MANY):,.0f} of {_MANY:,}"
        )
    drawn = f"{mechanism.name}, scale {real_text(mechanism.scale)} on every counter"
    if plan.guarantee.rho is not None:
        drawn = f"{mechanism.name}, standard deviation {mechanism.noise().std:,.4g} on every counter"
    one = query.noise_std_error(plan, submissions=1)
    return f"{drawn} of every device: ± {one:,.4g} × √devices records on {answer}, ± {10 * one:,.4g} with 100 of them"


def numbers(plan: "Plan") -> dict[str, object]:
    """For `--json`: what a device sends, and what a shuffler adds; nothing for other modes."""
    local = plan.privacy.local
    if local is None:
        return {}
    if not local.reports:
        return {"submission_bytes": plan.upload_bytes_max}
    found: dict[str, object] = {"report_bytes": _width(plan), "batch_bytes_max": plan.delta_bytes_max}
    if local.shuffle_min:
        from hushsum.canonical import real_text

        epsilon = amplified_of(plan)
        amplified = None if epsilon is None else {"epsilon": real_text(epsilon), "delta": real_text(plan.privacy.delta)}
        found |= {"shuffle_min": local.shuffle_min, "amplified": amplified}
    return found


def amplified_of(plan: "Plan") -> "Fraction | None":
    """The ε of a unit at the plan's δ in batches of exactly ``shuffle_min`` reports; None where none is better."""
    from hushsum.privacy.shuffle_amplification import amplified

    privacy = plan.privacy
    if privacy.local is None or not privacy.local.shuffle_min:
        return None
    reports_per_unit = privacy.records_per_client or 1
    return amplified(privacy.mechanism.scale, privacy.local.shuffle_min, privacy.delta, reports_per_unit)


def _width(plan: "Plan") -> int:
    sizes = plan.report_sizes
    assert sizes is not None, "a plan of reports"
    return sizes.width


def _report(plan: "Plan") -> Iterator[tuple[str, str]]:
    _, rows, outputs = plan.counters_shape
    size, width = _width(plan), "1 byte" if _width(plan) == 1 else f"{_width(plan)} bytes"
    what = "pairs" if plan.family.name == "fourier" else "rows"
    yield (
        "report",
        f"{width}: one of {rows:,} {what}, whatever the record is, and one of {outputs:,} randomised values",
    )
    most = plan.delta_records_max
    yield "", f"in batches of at most {most:,} ({bytes_text(size * most)}), sorted: none tells the order of its records"


def _randomiser(plan: "Plan") -> Iterator[tuple[str, str]]:
    from hushsum.canonical import real_text
    from hushsum.local.reports import bit_of, choice_of

    mechanism, m = plan.privacy.mechanism, plan.privacy.records_per_client
    if plan.family.name == "fourier":
        bit = bit_of(plan)
        least, most = (_percent(bit.probability(peak, 1)) for peak in (-bit.peak, bit.peak))
        yield (
            "randomiser",
            f"{mechanism.name}: a cosine or sine as one bit, 1 with {least} for −1 to {most} for 1",
        )
    else:
        choice = choice_of(plan)
        of = f"{choice.inputs:,} {'pairs of a class and a bucket' if plan.classes else 'buckets'}"
        if choice.outputs == choice.inputs:
            law = f"the true one with {_percent(choice.hit)}, any other with {_percent(choice.miss)} each"
        else:
            law = f"its {choice.outputs:,} outputs each speak for many values: for the true one with "
            law += f"{_percent(choice.hit)}, for any other with {_percent(choice.miss)}"
        yield "randomiser", f"{mechanism.name}, of {of}: {law}"
    ratio = f"no report is more than {real_text(mechanism.scale)} times as likely for one record as for another"
    yield "", ratio + ("" if m is None or m == 1 else f"; those of one client's {m:,} records together make up its ε")


def _submission(plan: "Plan") -> str:
    words = plan.words
    return (
        f"{bytes_text(plan.upload_bytes_max)} a client and window, with records or without: {words.size:,} noised "
        f"counters of {words.bits} bits (count counters {words.count_bits})"
    )


def _learned(plan: "Plan") -> Iterator[tuple[str, str]]:
    local, window = plan.privacy.local, plan.window
    assert local is not None
    if local.reports:
        yield "seen", "by the service, while it happens: who sends how many reports and when; it keeps none of that"
        yield "public", "the exact number of reports of a window; how they are counted tells of a record no more than ε"
        if window.min_reports:
            yield "withheld", f"a window of fewer than {window.min_reports:,} reports, by their exact number"
        return
    yield "seen", "by the service: who sends a submission in which window, and its noised counters"
    yield "public", "how many clients take part, which each running one does in every window, with records or without"
    if window.min_clients:
        yield "withheld", f"a window of fewer than {window.min_clients:,} clients, by its exact number"


def _shuffled(plan: "Plan") -> str:
    from hushsum.privacy.exact_numbers import numeral
    from hushsum.privacy.shuffle_amplification import reports_needed

    privacy, epsilon = plan.privacy, amplified_of(plan)
    assert privacy.local is not None
    least, delta = f"{privacy.local.shuffle_min:,}", numeral(privacy.delta, up=True)
    if epsilon is None:
        needed = reports_needed(privacy.mechanism.scale, privacy.delta)
        return (
            f"a shuffler forwards {least} reports or more together, which is too few to promise more: at this ε and a "
            f"δ of {delta} nothing is amplified below {needed:,}"
        )
    return (
        f"ε = {numeral(epsilon, up=True)}, δ = {delta} a window against whoever sees only what a shuffler forwards: at "
        f"least {least} honest, independent reports together (Feldman, McMillan and Talwar 2021). Windows add. Against "
        "the shuffler, and all who see more, the promise above holds, which is what is charged"
    )


def _account(plan: "Plan") -> str:
    from hushsum.privacy.exact_numbers import numeral
    from hushsum.privacy.relations import CLIENT

    privacy = plan.privacy
    epsilon, total = numeral(privacy.epsilon, up=True), numeral(privacy.total_epsilon, up=False)
    more = "each window adds" if privacy.unit == CLIENT else "a record is in one window, so that windows do not add"
    return (
        f"charges ε = {epsilon} a window to an account of its own before anything leaves it ({more}), and refuses "
        f"what would pass ε = {total}, whatever the service says"
    )


def _percent(chance: "Fraction") -> str:
    return f"{float(100 * chance):.3g} %"
