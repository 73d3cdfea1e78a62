"""A figure of advice: predicted error against rows, for each promise (extra ``analyst``)."""

from functools import partial
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from hushsum.advice import Advice, Promise, ReportAdvice, shown
from hushsum.plots import new_figure
from hushsum.privacy.exact_numbers import numeral

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's, told apart without colour vision.
_COLOURS: Final = {"pure": "#d55e00", "zCDP": "#0072b2"}
_HASHING: Final = "0.15"
_SHADED: Final = "0.93"


def error_figure(advice: Advice) -> "Figure":
    """The predicted standard error of an answer against rows, both axes logarithmic.

    A line for each promise with its noise dashed, the hashing part they share, the plan's own rows, the best of each
    promise, the best rows without limits (R*), and what is not allowed shaded.

    Returns:
        A matplotlib figure; ``figure.savefig(path)`` writes it.

    Raises:
        ValueError: There is but one size: nothing to draw.
    """
    if len(advice.sizes) < 2:
        raise ValueError("the number of rows of this plan is fixed: there is no error against rows to plot")
    figure = new_figure((9.0, 5.6))
    axis = figure.add_subplot()
    rows = [size.rows or 1 for size in advice.sizes]
    if any(size.hashing for size in advice.sizes):
        hashing = [size.hashing for size in advice.sizes]
        axis.plot(rows, hashing, color=_HASHING, linewidth=1.2, linestyle=":", zorder=4, label="hashing error")
    for index, promise in enumerate(advice.promises):
        _draw_promise(axis, advice, index, promise)
    _mark_rows(axis, advice)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axis.set_xlim(rows[0], rows[-1])
    axis.set_xlabel("frequency pairs P" if advice.plan.family.name == "fourier" else "rows R")
    axis.set_ylabel("standard error of an answer, in records")
    total = advice.guesses.kernel_sum
    share = axis.secondary_yaxis("right", functions=(partial(_times, 100 / total), partial(_times, total / 100)))
    share.yaxis.set_major_formatter(lambda value, _: f"{value:g} %")
    share.set_ylabel(f"of n·k̄ = {shown(total)} records")
    axis.grid(visible=True, which="major", color="0.9", linewidth=0.7, zorder=0)
    axis.set_title(_title(advice), fontsize=11)
    axis.legend(loc="upper center", bbox_to_anchor=(0.5, -0.13), ncols=3, frameon=False, fontsize=9)
    return figure


def report_figure(advice: ReportAdvice) -> "Figure":
    """The predicted standard error of an answer from randomised reports: against rows, and against buckets.

    Args:
        advice: On a plan of reports. Of the fourier family, which has no buckets, against pairs alone.

    Returns:
        A matplotlib figure; ``figure.savefig(path)`` writes it.
    """
    panels = 2 if advice.widths else 1
    figure = new_figure((4.8 * panels + 0.6, 4.6))
    axes = figure.subplots(1, panels, squeeze=False)[0]
    rows = [size.rows for size in advice.rows]
    own = advice.own
    drawn = (
        ([size.error for size in advice.rows], _COLOURS["pure"], "-", f"error, {own.randomiser}"),
        ([size.response for size in advice.rows], _COLOURS["pure"], "--", "randomisation error"),
        ([size.hashing for size in advice.rows], _HASHING, ":", "hashing error"),
    )
    for values, colour, style, label in drawn:
        axes[0].plot(rows, values, style, color=colour, linewidth=1.6, label=label)
    axes[0].plot([own.rows], [own.error], "D", color="black", markersize=6, label=f"the plan: ± {shown(own.error)}")
    axes[0].set_xlabel("frequency pairs P" if own.buckets is None else f"rows R (W = {own.buckets:,} buckets)")
    for (name, sizes), colour in zip(advice.widths.items(), _COLOURS.values(), strict=False):
        widths = [size.buckets or 1 for size in sizes]
        axes[1].plot(widths, [size.error for size in sizes], color=colour, linewidth=1.6, label=f"error, {name}")
        if name in advice.best:
            best = advice.best[name]
            label = f"best {name}: W = {best.buckets:,}, ± {shown(best.error)}"
            axes[1].plot([best.buckets or 1], [best.error], "o", color=colour, markersize=7, label=label)
    if panels == 2:
        axes[1].set_xlabel(f"buckets W (R = {own.rows:,} rows)")
    for axis in axes:
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axis.grid(visible=True, which="major", color="0.9", linewidth=0.7, zorder=0)
        axis.tick_params(axis="x", labelsize=8)
        axis.legend(loc="best", frameon=False, fontsize=9)
    axes[0].set_ylabel("standard error of an answer, in records")
    guesses, epsilon = advice.guesses, float(advice.plan.privacy.epsilon)
    guessed = f"n = {guesses.records:,} reports  ·  mean kernel {guesses.density:g}  ·  ε = {epsilon:g}"
    figure.suptitle(f"{advice.plan.name}: predicted error of an answer\n{guessed}", fontsize=11)
    return figure


def _draw_promise(axis: "Axes", advice: Advice, index: int, promise: Promise) -> None:
    rows, colour = [size.rows or 1 for size in advice.sizes], _COLOURS[promise.name]
    name = f"δ = {numeral(promise.delta, up=True)} (zCDP)" if promise.delta else "δ = 0 (pure)"
    axis.plot(rows, [size.errors[index] for size in advice.sizes], color=colour, linewidth=2.0, label=f"error, {name}")
    noises = [size.noises[index] for size in advice.sizes]
    axis.plot(rows, noises, color=colour, linewidth=1.1, linestyle=(0, (4, 3)), label=f"noise, {name}")
    if promise.best is not None:
        error = advice.at(promise.best).errors[index]
        label = f"best: R = {promise.best:,}, ± {shown(error)}"
        axis.plot([promise.best], [error], "o", color=colour, markersize=8, zorder=5, label=label)


def _mark_rows(axis: "Axes", advice: Advice) -> None:
    own = advice.own.rows
    if own is not None:
        label = f"the plan: R = {own:,}, ± {shown(advice.std_error)}"
        axis.axvline(own, color="black", linewidth=1.0, zorder=1)
        axis.plot([own], [advice.std_error], "D", color="black", markersize=6, zorder=6, label=label)
    if advice.optimal_rows is not None:
        sizes = [size for size in advice.sizes if size.rows == advice.optimal_rows]
        if sizes:
            label = f"R* = {advice.optimal_rows:,}, without limits"
            axis.plot(
                [advice.optimal_rows],
                [sizes[0].errors[0]],
                "*",
                color=_COLOURS["pure"],
                markersize=13,
                clip_on=False,
                label=label,
            )
    beyond = [size.rows for size in advice.sizes if size.exceeds and size.rows]
    within = [size.rows for size in advice.sizes if not size.exceeds and size.rows]
    if beyond and within:
        axis.axvspan(max(within), max(beyond), color=_SHADED, zorder=0, label="over a limit")


def _title(advice: Advice) -> str:
    guesses, privacy = advice.guesses, advice.plan.privacy
    most = privacy.records_per_client
    unit = privacy.unit if most is None else f"client (at most {most} records)"
    guessed = f"n = {guesses.records:,} records  ·  mean kernel {guesses.density:g}"
    return f"{advice.plan.name}: predicted error of an answer\n{guessed}  ·  ε = {float(privacy.epsilon):g} per {unit}"


def _times(factor: float, values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    return np.asarray(values, np.float64) * factor
