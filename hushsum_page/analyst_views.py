"""The analyst's views: plans and windows, a release, two of them compared, a series over time, and their files."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from hushsum import query
from hushsum.drift import Drift
from hushsum.errors import PlanError
from hushsum.panels import Panels, over_time_panels
from hushsum.plan import Plan
from hushsum.releases import Release
from hushsum_page.figures import (
    KIND_NAMES,
    Choice,
    Drawn,
    choice_of,
    code_of_figure,
    code_of_question,
    column_names,
    csv_of,
    difference_of,
    drawn_difference,
    drawn_release,
    drawn_series,
    is_drawable,
    kinds_of,
    panels_of,
    png_of,
    safe_name,
)
from hushsum_page.library import Found, Library, newest_windows
from hushsum_page.promises import facts_of, promise_of
from hushsum_page.questions import QuestionError, Reply, ask, fields_of, is_asked, label_of, point_of
from hushsum_page.sessions import Holder
from hushsum_page.site import READ, Site, View
from hushsum_page.source import RELEASED, OutcomeEntry, PlanEntry

_PAGE_ROWS: Final = 50
_OFFERED_MAX: Final = 500
_DRIFT_WINDOWS_MAX: Final = 100
_OF_FIGURES: Final = ("kind", "x", "y")


class Shown(NamedTuple):
    """What the page shows of a release for one choice.

    Attributes:
        drawn: Its figure; None of sets and models, or where it cannot be drawn.
        why_not: Why it cannot be drawn.
        kinds: The kinds of figures that it has.
        records: The number of its records with its standard error, in words.
        statement: Its guarantee.
        code: The lines of Python that draw the figure.
    """

    drawn: Drawn | None
    why_not: str
    kinds: tuple[str, ...]
    records: str
    statement: str
    code: str

    @property
    def size(self) -> int:
        return 4000 + (self.drawn.size if self.drawn else 0)


@dataclass(frozen=True)
class Option:
    """One entry of a list to choose from."""

    value: str
    text: str
    is_chosen: bool = False


class AnalystViews:
    """The analyst's views over a library."""

    def __init__(self, library: Library, site: Site) -> None:
        self._library, self._site = library, site

    def views(self) -> list[View]:
        """Every address of them."""
        return [
            View("/", self.plans, READ),
            View("/plans/{plan}", self.plan, READ),
            View("/plans/{plan}/time", self.time, READ),
            View("/plans/{plan}/time.{ending:str}", self.time_file, READ),
            View("/releases/{release}", self.release, READ),
            View("/releases/{release}/at", self.at, READ),
            View("/releases/{release}/figure.{ending:str}", self.release_file, READ),
            View("/releases/{release}/release.hush", self.hush_file, READ),
            View("/compare", self.compare, READ),
            View("/compare.{ending:str}", self.compare_file, READ),
        ]

    # ------------------------------------------------------------------------------------------------ plans and windows

    async def plans(self, request: Request) -> Response:
        entries = await self._library.source.plans()
        shown = [{**_about(entry), "newest": _rows(entry.plan, entry.outcomes[:5])} for entry in entries]
        return self._site.page(request, "plans.html", plans=shown, title=self._library.source.title)

    async def plan(self, request: Request) -> Response:
        entry = await self._library.plan(request.path_params["plan"])
        text = request.query_params.get("page", "1")
        pages = max(1, -(-len(entry.outcomes) // _PAGE_ROWS))
        number = min(max(int(text), 1), pages) if text.isascii() and text.isdecimal() and len(text) < 9 else 1
        rows = _rows(entry.plan, entry.outcomes[(number - 1) * _PAGE_ROWS : number * _PAGE_ROWS])
        about = _about(entry)
        return self._site.page(request, "plan.html", **about, rows=rows, number=number, pages=pages)

    # ------------------------------------------------------------------------------------------------------- a release

    async def release(self, request: Request) -> Response:
        found = await self._library.find(request.path_params["release"])
        plan, parameters = found.entry.plan, _parameters(request)
        release = await self._library.load(found)
        asks = f"/releases/{found.outcome.id}/at"
        choice, wrong = Choice(), ""
        try:
            choice = choice_of(plan, parameters)
        except QuestionError as error:
            wrong = str(error)
        shown = await self._library.computed(
            ("release", found.outcome.id, choice), _shown, release, choice, asks, _file_of(found)
        )
        reply, refused, code = await self._answer(found, release, parameters)
        status = 422 if wrong or refused else 200
        return self._site.page(
            request,
            "release.html",
            status=status,
            **_about(found.entry),
            **_chosen(plan, shown, choice),
            outcome=_row(plan, found.outcome),
            when=_when(release),
            shown=shown,
            wrong=wrong,
            reply=reply,
            refused=refused,
            question_code=code,
            fields=fields_of(plan),
            values=parameters,
            classes=[Option(label, label, label == parameters.get("label")) for label in plan.classes],
            address=f"/releases/{found.outcome.id}",
            query=_query(parameters),
            hidden=[(key, value) for key, value in parameters.items() if _is_of_figure(key)],
            asked=[(key, value) for key, value in parameters.items() if not _is_of_figure(key)],
        )

    async def _answer(
        self, found: Found, release: Release, parameters: Mapping[str, str]
    ) -> tuple[Reply | None, str, str]:
        """The answer to the question of an address, why it is refused, and the code that gives the same."""
        plan = found.entry.plan
        if not is_asked(plan, parameters):
            return None, "", ""
        try:
            reply = await self._library.workers.run(ask, release, parameters)
            label = label_of(plan, parameters.get("label", ""))
            return reply, "", code_of_question(_file_of(found), plan, point_of(plan, parameters), label)
        except QuestionError as error:
            return None, str(error), ""

    async def at(self, request: Request) -> Response:
        """The answer alone: what stands under the pointer."""
        found = await self._library.find(request.path_params["release"])
        release = await self._library.load(found)
        reply, refused, _ = await self._answer(found, release, _parameters(request))
        return self._site.part(request, "reading.html", reply=reply, refused=refused)

    async def release_file(self, request: Request) -> Response:
        found = await self._library.find(request.path_params["release"])
        choice = choice_of(found.entry.plan, _parameters(request))
        release = await self._library.load(found)
        panels = (await self._library.workers.run(panels_of, release, choice))[0]
        return await self._file(request, panels, ("release", found.outcome.id, choice), _name_of(found))

    async def hush_file(self, request: Request) -> Response:
        found = await self._library.find(request.path_params["release"])
        pieces = self._library.sent(found, _holder(request))
        await anext(pieces)  # whatever is wrong is found before the answer begins
        return self._site.sent(pieces, found.outcome.size_bytes, f"{_name_of(found)}.hush")

    async def _file(self, request: Request, panels: Panels, key: Any, name: str) -> Response:
        """A figure as CSV or PNG, by the ending of the address."""
        ending, dark = request.path_params["ending"], request.query_params.get("theme") == "dark"
        if ending == "csv":
            text = await self._library.workers.run(csv_of, panels)
            return self._site.file(text.encode(), "text/csv; charset=utf-8", f"{name}.csv")
        if ending == "png":
            picture = await self._library.computed(("png", key, dark), _png, panels, dark)
            return self._site.file(picture.data, "image/png", f"{name}.png")
        return self._site.missing(request)

    # ------------------------------------------------------------------------------------------------- two and many

    async def compare(self, request: Request) -> Response:
        parameters = _parameters(request)
        entries = await self._library.source.plans()
        offered = _offered(entries)
        first, second = parameters.get("first", ""), parameters.get("second", "")
        drawn, wrong, details = None, "", []
        choice = Choice()
        found: list[Found] = []
        if first or second:
            try:
                found, drawn, choice = await self._compared(parameters)
                details = [(each, _row(each.entry.plan, each.outcome)) for each in found]
            except (QuestionError, PlanError, ValueError) as error:
                wrong = str(error)
        plan = found[0].entry.plan if found else None
        return self._site.page(
            request,
            "compare.html",
            status=422 if wrong else 200,
            firsts=[Option(value, text, value == first) for value, text in offered],
            seconds=[Option(value, text, value == second) for value, text in offered],
            drawn=drawn,
            details=details,
            wrong=wrong,
            chosen=_columns_chosen(plan, drawn, choice) if plan and drawn else {},
            query=_query(parameters),
            hidden=[(key, parameters.get(key, "")) for key in ("first", "second")],
        )

    async def _compared(self, parameters: Mapping[str, str]) -> tuple[list[Found], Drawn, Choice]:
        found, releases = await self._pair(parameters)
        choice = choice_of(found[0].entry.plan, parameters)
        key = ("difference", *(each.outcome.id for each in found), choice)
        drawn = await self._library.computed(key, _difference, releases, choice)
        return found, drawn, choice

    async def _pair(self, parameters: Mapping[str, str]) -> tuple[list[Found], list[Release]]:
        found = [await self._library.find(parameters.get(key, "")) for key in ("first", "second")]
        return found, [await self._library.load(each) for each in found]

    async def compare_file(self, request: Request) -> Response:
        parameters = _parameters(request)
        found, releases = await self._pair(parameters)
        choice = choice_of(found[0].entry.plan, parameters)
        panels = await self._library.workers.run(_difference_panels, releases, choice)
        ids = [each.outcome.id for each in found]
        return await self._file(request, panels, ("difference", *ids, choice), f"{_name_of(found[0])}-difference")

    async def time(self, request: Request) -> Response:
        entry = await self._library.plan(request.path_params["plan"])
        asked = request.query_params.get("changes") == "yes"
        drawn, wrong, is_looking = None, "", False
        newest, left_out = newest_windows(entry)
        many = 1 < len(newest) <= _DRIFT_WINDOWS_MAX
        if not is_drawable(entry.plan):
            wrong = "There are no densities over time of sets and models."
        elif newest:
            drift = None
            if asked and many:
                try:
                    drift = await self._library.begun(
                        _series_key(entry, newest, "drift"), _holder(request), partial(self._finding, entry, newest)
                    )
                except (PlanError, ValueError) as error:
                    wrong = str(error)
                is_looking = drift is None and not wrong
            if is_looking and "hx-request" in request.headers:  # the page asks again
                return Response(status_code=204)
            key = _series_key(entry, newest, "plain" if drift is None else "marked")
            drawn = await self._library.made(key, partial(self._drawn_series, entry, newest, drift))
        else:
            wrong = "There is no release of a window yet."
        return self._site.page(
            request,
            "time.html",
            **_about(entry),
            drawn=drawn,
            wrong=wrong,
            left_out=left_out,
            asked=asked,
            many=many,
            is_looking=is_looking,
        )

    async def _finding(self, entry: PlanEntry, outcomes: Sequence[OutcomeEntry]) -> Callable[[], Drift]:
        """The work that finds when the records of some windows changed."""
        return (await self._library.series(entry, outcomes)).drift

    async def _drawn_series(self, entry: PlanEntry, outcomes: Sequence[OutcomeEntry], drift: Drift | None) -> Drawn:
        series = await self._library.series(entry, outcomes)
        return await self._library.workers.run(drawn_series, series, drift)

    async def time_file(self, request: Request) -> Response:
        entry = await self._library.plan(request.path_params["plan"])
        newest, _ = newest_windows(entry)
        panels = await self._library.workers.run(over_time_panels, await self._library.series(entry, newest))
        key = _series_key(entry, newest, "plain")
        return await self._file(request, panels, key, f"{safe_name(entry.plan.name)}-over-time")


class _Png(NamedTuple):
    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)


def _png(panels: Panels, dark: bool) -> _Png:  # noqa: FBT001  it is passed on by a worker, by its place
    return _Png(png_of(panels, dark=dark))


def _shown(release: Release, choice: Choice, asks: str, file: str) -> Shown:
    drawn, why_not, code = None, "", ""
    if is_drawable(release.plan):
        try:
            drawn = drawn_release(release, choice, asks=asks)
            code = code_of_figure(file, drawn)
        except (PlanError, ValueError) as error:
            why_not = str(error)
    else:
        why_not = "There is no picture of sets and of models; ask below."
    std_error = query.count_std_error(release.plan, draws=release.draws, counters=release.counters)
    records = f"{release.count:,.0f}" + (f" ± {std_error:,.3g}" if std_error else " (exact)")
    return Shown(drawn, why_not, kinds_of(release), records, release.statement(), code)


def _difference(releases: Sequence[Release], choice: Choice) -> Drawn:
    return drawn_difference(releases[0].compare(releases[1]), choice)


def _difference_panels(releases: Sequence[Release], choice: Choice) -> Panels:
    return difference_of(releases[0].compare(releases[1]), choice)[0]


def _series_key(entry: PlanEntry, outcomes: Sequence[OutcomeEntry], what: str) -> tuple[object, ...]:
    return ("time", entry.plan.hex_id, what, *(each.id for each in outcomes))


# --------------------------------------------------------------------------------------------------------------- texts


def _holder(request: Request) -> str:
    """Whose share a request takes."""
    holder: Holder = request.state.session.holder
    return holder.key


def _parameters(request: Request) -> dict[str, str]:
    """Each parameter once, the last one."""
    return {key: value for key, value in request.query_params.items() if value}


def _is_of_figure(key: str) -> bool:
    return key in _OF_FIGURES or key.startswith("hold")


def _query(parameters: Mapping[str, str]) -> str:
    """The part of an address that asks for the same figure, in a file."""
    from urllib.parse import urlencode

    kept = {key: value for key, value in parameters.items() if _is_of_figure(key) or key in {"first", "second"}}
    return urlencode(kept)


def _about(entry: PlanEntry) -> dict[str, Any]:
    """What templates show of a plan."""
    plan = entry.plan
    counts = {
        state: sum(each.state == state for each in entry.outcomes) for state in ("released", "withheld", "removed")
    }
    return {
        "plan": plan,
        "plan_address": f"/plans/{plan.hex_id[:16]}",
        "promise": promise_of(plan),
        "facts": [pair for pair in facts_of(plan) if pair[0] not in {"guarantee", "id"}],
        "counts": {state: number for state, number in counts.items() if number},
        "next_outcome": _next_outcome(entry),
        "has_windows": any(each.state == RELEASED and each.window is not None for each in entry.outcomes),
        "is_drawable": is_drawable(plan),
    }


def _next_outcome(entry: PlanEntry) -> str:
    if entry.next_outcome is None:
        return ""
    window, due_ms, is_sealed = entry.next_outcome
    when = "sealed and not published yet" if is_sealed else f"its seal is due at {_utc(due_ms)}"
    return f"window {window:,}, {when}"


def _utc(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M} UTC"


def _period(plan: Plan, window: int | None) -> str:
    if window is None:
        return ""
    try:
        start, end = plan.window.start_ms(window), plan.window.end_ms(window)
        return f"{_utc(start).removesuffix(' UTC')} to {_utc(end)}"
    except (OverflowError, ValueError, OSError):  # a window of a file that nobody can date
        return ""


class Row(NamedTuple):
    """An outcome as a line of a table."""

    name: str
    period: str
    state: str
    size: str
    address: str
    kind: str


def _rows(plan: Plan, outcomes: Sequence[OutcomeEntry]) -> list[Row]:
    return [_row(plan, each) for each in outcomes]


def _row(plan: Plan, outcome: OutcomeEntry) -> Row:
    name = outcome.file or ("release" if outcome.window is None else f"window {outcome.window:,}")
    size = f"{outcome.size_bytes / 1000:,.1f} kB" if outcome.size_bytes else ""
    address = f"/releases/{outcome.id}" if outcome.state == RELEASED else ""
    return Row(name, _period(plan, outcome.window), outcome.state, size, address, outcome.kind)


def _when(release: Release) -> str:
    if release.span is None:
        return "released in process, of no window"
    first, last = release.span
    windows = f"window {last:,}" if first == last else f"windows {first:,} to {last:,}"
    period = release.period_ms
    assert period is not None, "it has a span"
    try:
        return f"{windows}: {_utc(period[0]).removesuffix(' UTC')} to {_utc(period[1])}"
    except (OverflowError, ValueError, OSError):  # a window of a file that nobody can date
        return windows


def _file_of(found: Found) -> str:
    return found.outcome.file or f"{_name_of(found)}.hush"


def _name_of(found: Found) -> str:
    window = found.outcome.window
    return f"{safe_name(found.entry.plan.name)}-{found.outcome.id[:8] if window is None else window}"


def _offered(entries: Sequence[PlanEntry]) -> list[tuple[str, str]]:
    """Releases to choose from: the newest of each plan."""
    several = len(entries) > 1
    offered = []
    for entry in entries:
        for outcome in entry.outcomes[:_OFFERED_MAX]:
            if outcome.state == RELEASED and is_drawable(entry.plan):
                name = _row(entry.plan, outcome).name
                period = _period(entry.plan, outcome.window)
                text = " · ".join(part for part in ((entry.plan.name if several else ""), name, period) if part)
                offered.append((outcome.id, text))
    return offered[:_OFFERED_MAX]


def _chosen(plan: Plan, shown: Shown, choice: Choice) -> dict[str, Any]:
    kind = shown.drawn.kind if shown.drawn else choice.kind
    kinds = [Option(each, KIND_NAMES[each], each == kind) for each in shown.kinds]
    return {"kinds": kinds, "chosen": _columns_chosen(plan, shown.drawn, choice) if shown.drawn else {}}


def _columns_chosen(plan: Plan, drawn: Drawn, choice: Choice) -> dict[str, Any]:
    """The form of a figure: which columns vary, and where the others are held."""
    names = column_names(plan)
    if drawn.kind not in {"density", "difference", "classes"}:
        return {}
    columns = drawn.columns or choice.columns or (0,)
    lists = []
    axes = ("x", "y") if drawn.kind != "classes" else ("x",)
    for axis, key in zip(axes, ("along the line", "second column"), strict=False):
        at = axes.index(axis)
        if at < len(columns) or drawn.kind == "classes":
            picked = columns[at] if at < len(columns) else 0
            options = [Option(str(number), name, number == picked) for number, name in enumerate(names)]
            lists.append((axis, key, options))
    held = []
    if drawn.kind != "classes" and len(names) <= 12:
        held = [
            (f"hold{column}", names[column], f"{value:.6g}")
            for column, value in drawn.held
            if column != columns[0] and column < len(names)
        ]
    return {"columns": lists if plan.vectors.dim > 1 else [], "held": held}
