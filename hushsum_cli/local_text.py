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
        yield "local", "each record is randomised on its device and sent as one report; no other party is trusted"
        yield from _report(plan)
        yield from _randomiser(plan)
    else:
        yield "local", "each device adds the full noise to its counters before sending; no other party is trusted"
        yield "sent", _submission(plan)
    yield from _learned(plan)
    if local.reports and local.memoise:
        yield "memoised", _MEMOISED
    if local.reports and local.shuffle_min:
        yield "shuffled", _shuffled(plan)
    yield "device", _account(plan)


_MEMOISED: Final = (
    "a device sends the same report whenever a record recurs, so recurrence adds no privacy loss but is visible, "
    "and shuffling does not amplify. Over several windows ε holds for replacing a record in all of them by one that "
    "its device has nowhere else; a change in a single window is visible. Devices accept this only with "
    "Policy(memoise=True)"
)


def noise_line(plan: "Plan") -> str:
    """The row `noise`, which for reports depends on how many there are."""
    from hushsum import query
    from hushsum.canonical import real_text

    mechanism, local = plan.privacy.mechanism, plan.privacy.local
    assert local is not None
    answer = "answer for one class" if plan.classes else "answer"
    if local.reports:
        each = query.noise_std_error(plan, draws=_MANY) / sqrt(_MANY)
        return (
            f"± {each:,.4g} × √n records per {answer} far from all n records, from randomisation: "
            f"± {each * sqrt(_MANY):,.0f} for {_MANY:,}"
        )
    drawn = f"{mechanism.name}, scale {real_text(mechanism.scale)} on every counter"
    if plan.guarantee.rho is not None:
        drawn = f"{mechanism.name}, standard deviation {mechanism.noise().std:,.4g} on every counter"
    one = query.noise_std_error(plan, draws=1)
    return f"{drawn} of every device: ± {one:,.4g} × √devices records per {answer}, ± {10 * one:,.4g} for 100 devices"


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
        f"{width}: one of {rows:,} {what}, chosen at random, and one of {outputs:,} randomised values",
    )
    most = plan.delta_records_max
    yield "", f"sent in sorted batches of at most {most:,} ({bytes_text(size * most)})"


def _randomiser(plan: "Plan") -> Iterator[tuple[str, str]]:
    from hushsum.canonical import real_text
    from hushsum.local.reports import bit_of, choice_of

    mechanism, m = plan.privacy.mechanism, plan.privacy.records_per_client
    if plan.family.name == "fourier":
        bit = bit_of(plan)
        least, most = (_percent(bit.probability(peak, 1)) for peak in (-bit.peak, bit.peak))
        yield (
            "randomiser",
            f"{mechanism.name}: a cosine or sine as one bit, 1 with probability {least} for −1 to {most} for 1",
        )
    else:
        choice = choice_of(plan)
        of = f"{choice.inputs:,} {'pairs of a class and a bucket' if plan.classes else 'buckets'}"
        if choice.outputs == choice.inputs:
            law = f"the true one with probability {_percent(choice.hit)}, each other with {_percent(choice.miss)}"
        else:
            law = f"{choice.outputs:,} outputs, each for a set of values; it contains the true one with probability "
            law += f"{_percent(choice.hit)}, each other with {_percent(choice.miss)}"
        yield "randomiser", f"{mechanism.name}, of {of}: {law}"
    ratio = f"likelihood ratio of any report for two records: at most {real_text(mechanism.scale)}"
    yield "", ratio + ("" if m is None or m == 1 else f"; the reports of a client's {m:,} records share ε")


def _submission(plan: "Plan") -> str:
    words = plan.words
    return (
        f"{bytes_text(plan.upload_bytes_max)} per client and window, with or without records: {words.size:,} noised "
        f"counters of {words.bits} bits (count counters {words.count_bits})"
    )


def _learned(plan: "Plan") -> Iterator[tuple[str, str]]:
    local, window = plan.privacy.local, plan.window
    assert local is not None
    if local.reports:
        yield "seen", "by the service, not stored: which client sends how many reports, and when"
        yield "public", "the exact number of reports per window"
        if window.min_reports:
            yield "withheld", f"windows with fewer than {window.min_reports:,} reports (exact number)"
        return
    yield "seen", "by the service: which client submits in which window, and its noised counters"
    yield "public", "the number of clients: every running client submits in every window, with or without records"
    if window.min_clients:
        yield "withheld", f"windows with fewer than {window.min_clients:,} clients (exact number)"


def _shuffled(plan: "Plan") -> str:
    from hushsum.privacy.exact_numbers import numeral

    privacy, epsilon = plan.privacy, amplified_of(plan)
    assert privacy.local is not None
    least, delta = f"{privacy.local.shuffle_min:,}", numeral(privacy.delta, up=True)
    if epsilon is None:
        return (
            f"a shuffler forwards batches of at least {least} reports: too few for an ε below the guarantee above at "
            f"δ = {delta}"
        )
    return (
        f"ε = {numeral(epsilon, up=True)}, δ = {delta} per window against observers after the shuffler, for batches of "
        f"at least {least} honest, independent reports (Feldman, McMillan and Talwar 2021). Windows compose. Against "
        "the shuffler and all others the guarantee above holds; the ledger is charged for that one"
    )


def _account(plan: "Plan") -> str:
    from hushsum.privacy.relations import CLIENT
    from hushsum.privacy.statement import cost_text

    privacy = plan.privacy
    more = "windows compose" if privacy.unit == CLIENT else "each record is in one window, so windows do not compose"
    return (
        f"keeps its own ledger, which is charged before a window is sent ({more}), and stops at a total of "
        f"{cost_text(privacy.limits.cost)}"
    )


def _percent(chance: "Fraction") -> str:
    return f"{float(100 * chance):.3g} %"
