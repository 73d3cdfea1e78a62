"""What `hushsum plan advise` tells of mode local: silos, and all of randomised reports."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from hushsum_cli.output import bytes_text, print_pairs, print_table

if TYPE_CHECKING:
    from hushsum.advice import Advice, ReportAdvice, ReportSize

_ALIKE: Final = 0.02  # two errors that are closer than this are no reason to choose


def of_advice(advice: "Advice") -> Iterator[tuple[str, str]]:
    """Rows of `hushsum plan advise` for form silo: how noise grows with clients, and what each sends."""
    from hushsum.advice import shown

    if advice.plan.privacy.local is None:
        return
    clients, noise = advice.guesses.clients, advice.own.noises[advice.own_promise]
    one = noise / clients**0.5
    text = f"each of {clients:,} clients adds the full noise: {shown(one)} × √{clients:,} = {shown(noise)} records"
    yield "silo", f"{text}; fewer clients with more records each reduce the error"
    upload = advice.own.costs.upload_bytes or 0.0
    yield "sent", f"{bytes_text(int(upload))} per client and window, with or without records"


def print_reports(advice: "ReportAdvice", plot: Path | None) -> None:
    """All that is said of reports."""
    pairs = [*_expected(advice), *_choice(advice), *_rows(advice), *_more(advice)]
    print_pairs([*pairs, ("plot", f"written to {plot}")] if plot else pairs, title=f"advice for {advice.plan.name}")
    own = advice.own
    rows = "pairs" if own.buckets is None else "rows"
    sizes = [size for size in advice.rows if 64 * size.rows >= own.rows]
    enough = None if advice.enough_rows is None else advice.enough_rows.rows
    marks = {own.rows: ["the plan"]}
    marks.setdefault(enough or own.rows, []).append("enough" if enough else "")
    _table(advice, rows, [(f"{size.rows:,}", size, marks.get(size.rows, [])) for size in sizes])
    for name, widths in advice.widths.items():
        best = advice.best.get(name)
        shown_ = [
            (f"{size.buckets:,}", size, ["the plan"] * (size == own) + ["best"] * (size is best))
            for size in widths
            if best is None or _near(size, best) or size == own
        ]
        _table(advice, f"buckets, {name}", shown_)
    click.echo(
        "hashing: error shared by all reports; response: error of each report's randomiser and row.\n"
        "share: error relative to n·k̄; report: size for one record; window: exact counts."
    )


def _expected(advice: "ReportAdvice") -> Iterator[tuple[str, str]]:
    from hushsum.advice import shown

    guesses, own, privacy = advice.guesses, advice.own, advice.plan.privacy
    yield "guesses", f"{guesses.records:,} records from {guesses.clients:,} clients; mean kernel {guesses.density:g}"
    yield "answer", f"about n·k̄ = {shown(guesses.kernel_sum)} records"
    share = f"{100 * advice.std_error / guesses.kernel_sum:.3g} %"
    m = privacy.records_per_client
    unit = "a record" if m is None else f"a client of at most {m:,} reports (ε/{m:,} each)"
    yield (
        "error",
        f"± {shown(advice.std_error)} records ({share}) with the plan's ε = {float(privacy.epsilon):g} for {unit}",
    )
    yield "", f"of which hashing {shown(own.hashing)}, randomised response {shown(own.response)}"
    yield "report", f"{own.report_bytes} bytes per record ({own.randomiser}, {own.rows:,} × {own.outputs:,} outputs)"
    if advice.plan.classes:
        several = len(advice.plan.classes)
        yield "classes", f"values are per class, assuming {several} classes of equal size"
    text = f"randomisation error is at most 10 % of an answer from {advice.useful_records:,} records"
    yield "useful", text


def _choice(advice: "ReportAdvice") -> Iterator[tuple[str, str]]:
    """Which W, and which randomiser, by how much."""
    from hushsum.advice import shown

    for name, size in advice.best.items():
        text = (
            f"W = {size.buckets:,}: ± {shown(size.error)} with {size.rows:,} rows, {size.report_bytes} bytes per record"
        )
        gain = advice.std_error / size.error
        if size.randomiser == advice.own.randomiser and gain > 1 + _ALIKE:
            text += f"; the plan's W = {advice.own.buckets:,} has {gain:.3g} times this error"
        yield f"best, {name}", text
    if len(advice.best) == 2:
        k_rr, projective = advice.best["k-rr"], advice.best["projective"]
        ratio = k_rr.error / projective.error
        if abs(ratio - 1) <= _ALIKE:
            yield "randomiser", f"k-rr: projective has {1 / ratio:.3f} times this error at its best W"
        else:
            better, other = (projective, k_rr) if ratio > 1 else (k_rr, projective)
            by = f"{other.error / better.error:.3g} times smaller error than {other.randomiser} at its best W"
            yield "randomiser", f"{better.randomiser} with W = {better.buckets:,}: {by}"
        same = {name: _at(advice, name) for name in advice.best}
        if all(same.values()):
            errors = " and ".join(f"{name} ± {shown(size.error)}" for name, size in same.items() if size)
            yield "", f"at the plan's W = {advice.own.buckets:,}: {errors}"


def _at(advice: "ReportAdvice", name: str) -> "ReportSize | None":
    return next((size for size in advice.widths[name] if size.buckets == advice.own.buckets), None)


def _rows(advice: "ReportAdvice") -> Iterator[tuple[str, str]]:
    from hushsum.advice import shown

    letter, enough = ("P" if advice.own.buckets is None else "R"), advice.enough_rows
    if enough is None:
        yield "rows", "no size within the limits: raise --memory-mib"
    elif enough.rows > advice.own.rows:
        text = f"± {shown(enough.error)}: more rows cost only memory, because each report has one row"
        yield "rows", f"{letter} = {enough.rows:,} gives {text}"
    else:
        yield "rows", f"{letter} = {enough.rows:,} is sufficient (within 5 % of the smallest error)"


def _more(advice: "ReportAdvice") -> Iterator[tuple[str, str]]:
    from hushsum.privacy.exact_numbers import numeral

    local, privacy = advice.plan.privacy.local, advice.plan.privacy
    if local is not None and local.shuffle_min:
        least = f"{local.shuffle_min:,} honest, independent reports or more"
        if advice.amplified is None:
            text = f"batches of {least} are too small for a smaller ε"
        else:
            text = f"ε = {numeral(advice.amplified, up=True)}, δ = {numeral(privacy.delta, up=True)} of {least}"
        yield "shuffled", text
        if advice.guesses.records < local.shuffle_min:
            yield "withheld", f"{advice.guesses.records:,} reports are fewer than shuffle_min: no batch is forwarded"
    least_reports = advice.plan.window.min_reports
    if least_reports > advice.guesses.records:
        yield "withheld", f"{advice.guesses.records:,} reports are fewer than window.min_reports = {least_reports:,}"


def _near(size: "ReportSize", best: "ReportSize") -> bool:
    """Whether it is worth a line."""
    return (
        size.buckets is not None and best.buckets is not None and best.buckets / 16 <= size.buckets <= 16 * best.buckets
    )


def _table(advice: "ReportAdvice", first: str, lines: "Sequence[tuple[str, ReportSize, list[str]]]") -> None:
    from hushsum.advice import shown

    header = [first, "hashing", "response", "±", "share", "report", "window", ""]
    rows = [
        [
            name,
            *(shown(part) for part in (size.hashing, size.response, size.error)),
            f"{100 * size.error / advice.guesses.kernel_sum:.3g} %",
            f"{size.report_bytes} B",
            bytes_text(int(size.window_bytes)),
            ", ".join([*filter(None, marks), *(["over a limit"] if size.exceeds else [])]),
        ]
        for name, size, marks in lines
    ]
    print_table(header, rows, title=f"standard error of an answer, in records, by {first}")
