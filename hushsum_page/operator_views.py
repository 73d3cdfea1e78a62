"""The operator's views: the service, its windows, ledger and tokens, the audit log, and actions with a confirmation."""

import math
from typing import Final, NamedTuple

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from hushsum_page.confirmations import Confirmations
from hushsum_page.operations import (
    ISSUE,
    RELEASE,
    REVOKE,
    SCOPES,
    SEAL,
    Action,
    ActionError,
    Certificates,
    LedgerHistory,
    Operations,
    WindowEntry,
)
from hushsum_page.pictures import spending
from hushsum_page.site import ADMIN, Site, View, utc

_DAYS_MAX: Final = 36_500
_DAY_MS: Final = 86_400_000
_SOON_DAYS: Final = 14
_WINDOW_MAX: Final = 2**53
#: What an action is called on its button.
_VERBS: Final = {SEAL: "Seal", RELEASE: "Release", ISSUE: "Issue the token", REVOKE: "Revoke the token"}
#: What an action is called in an address.
_ACTIONS: Final = {"seal": SEAL, "release": RELEASE, "issue": ISSUE, "revoke": REVOKE}
#: The view that an action belongs to.
_BACK: Final = {SEAL: "/windows", RELEASE: "/windows", ISSUE: "/tokens", REVOKE: "/tokens"}


class OperatorViews:
    """The operator's views over a service."""

    def __init__(self, operations: Operations, confirmations: Confirmations, site: Site) -> None:
        self._operations, self._confirmations, self._site = operations, confirmations, site

    def views(self) -> list[View]:
        """Every address of them."""
        return [
            View("/service", self.service, ADMIN),
            View("/windows", self.windows, ADMIN),
            View("/ledger", self.ledger, ADMIN),
            View("/tokens", self.tokens, ADMIN),
            View("/audit", self.audit, ADMIN),
            View("/confirm", self.confirm, ADMIN),
            View("/act", self.act, ADMIN, "POST"),
        ]

    # ----------------------------------------------------------------------------------------------------------- views

    async def service(self, request: Request) -> Response:
        shown = await self._operations.overview()
        status = shown.status
        behind = [each.lag for each in status.folds if each.lag]
        return self._site.page(
            request,
            "service.html",
            about=status,
            plans=shown.plans,
            now=utc(shown.now_ms),
            lease_left="" if shown.lease_left_s is None else f"{max(shown.lease_left_s, 0.0):.0f} s",
            addresses=shown.addresses,
            refusals=shown.refusals,
            answers=shown.answers,
            is_by_minutes=shown.is_by_minutes,
            behind=sum(behind),
            has_stopped=any(each.stopped for each in status.folds),
            certificates=[_certificate(each, shown.now_ms) for each in shown.certificates],
        )

    async def windows(self, request: Request) -> Response:
        before = _window_of(request.query_params.get("before", ""))
        shown = await self._operations.windows(before)
        rows = [_Window.of(each) for each in shown.windows]
        oldest = shown.windows[-1].window if shown.has_more else None
        return self._site.page(request, "windows.html", shown=shown, rows=rows, oldest=oldest, before=before)

    async def ledger(self, request: Request) -> Response:
        shown = await self._operations.ledger()
        known = [each for each in shown.entries if each.at_ms is not None and math.isfinite(each.epsilon)]
        picture = None
        if known:
            times = [each.at_ms for each in known if each.at_ms is not None]
            ends_ms = shown.ends_ms if utc(shown.ends_ms or 0) != "?" else None
            picture = spending(times, [each.epsilon for each in known], shown.epsilon_total, ends_ms)
        rows = [
            {"entry": each, "at": "" if each.at_ms is None else utc(each.at_ms), "window": _number(each.window)}
            for each in reversed(shown.entries)
        ]
        return self._site.page(request, "ledger.html", shown=shown, picture=picture, rows=rows, ends=_ends(shown))

    async def tokens(self, request: Request) -> Response:
        shown = await self._operations.tokens()
        rows = [
            {
                "token": each,
                "made": utc(each.made_ms),
                "expires": "never" if each.expires_ms is None else utc(each.expires_ms),
                "is_own": each.id == request.state.session.holder.proof,
            }
            for each in shown.tokens
        ]
        return self._site.page(request, "tokens.html", shown=shown, rows=rows, scopes=SCOPES, days_max=_DAYS_MAX)

    async def audit(self, request: Request) -> Response:
        file, entries = await self._operations.audit()
        rows = [
            {
                "entry": each,
                "at": utc(each.at_ms),
                "about": ", ".join(f"{key} {value}" for key, value in each.about.items()),
                "outcome": "not known" if each.outcome == "begun" else each.outcome,
            }
            for each in entries
        ]
        return self._site.page(request, "audit.html", file=file, rows=rows)

    # --------------------------------------------------------------------------------------------------------- actions

    async def confirm(self, request: Request) -> Response:
        """What an action would do, with the form that does it; it changes nothing."""
        what = _ACTIONS.get(request.query_params.get("action", ""), "action")
        try:
            action = _action_of(what, request.query_params)
            text = await self._operations.check(action)
        except ActionError as error:
            return self._failed(request, what, str(error))
        own = action.what == REVOKE and action.id == request.state.session.holder.proof
        id = self._confirmations.ask(action, request.state.session.form_token)
        return self._site.page(
            request,
            "confirm.html",
            what=action.what,
            text=text,
            own=own,
            id=id,
            verb=_VERBS[action.what],
            back=_BACK[action.what],
            warns=ADMIN in action.scopes,
        )

    async def act(self, request: Request) -> Response:
        session = request.state.session
        action = self._confirmations.take(request.state.fields.get("id", ""), session.form_token)
        if action is None:
            text = "This form was sent before, or it is more than 10 minutes old. The audit log says what was done."
            return self._site.error(request, 409, text)
        try:
            done = await self._operations.act(action, session.holder)
        except ActionError as error:
            return self._failed(request, action.what, str(error))
        return self._site.page(request, "done.html", done=done, what=action.what, back=_BACK[action.what])

    def _failed(self, request: Request, what: str, text: str) -> Response:
        back = _BACK.get(what, "/service")
        return self._site.page(request, "failed.html", status=422, text=text, what=what, back=back)


class _Window(NamedTuple):
    """A window as a line of a table."""

    name: str
    period: str
    state: str
    waits_for: str
    action: str
    address: str

    @classmethod
    def of(cls, entry: WindowEntry) -> "_Window":
        verb = {"seal": "Seal early…" if entry.is_early else "Seal…", "release": "Release…"}.get(entry.action, "")
        early = "&early=yes" if entry.is_early else ""
        address = f"/confirm?action={entry.action}&window={entry.window}{early}" if entry.action else ""
        period = f"{utc(entry.start_ms).removesuffix(' UTC')} to {utc(entry.end_ms)}"
        return cls(f"{entry.window:,}", period, entry.state, entry.waits_for, verb, address)


def _window_of(text: str) -> int | None:
    """The window that an address names; None for none."""
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= 16):
        return None
    return int(text) if abs(int(text)) <= _WINDOW_MAX else None


def _action_of(what: str, given: QueryParams) -> Action:
    """The action that an address asks for; ActionError: none can be read of it."""
    if what in {SEAL, RELEASE}:
        window = _window_of(given.get("window", ""))
        if window is None:
            raise ActionError("window: expected the number of a window")
        return Action(what, window, early=what == SEAL and given.get("early") == "yes")
    if what == ISSUE:
        scopes = tuple(each for each in SCOPES if each in given.getlist("scope"))
        if not scopes:
            raise ActionError("scope: choose at least one")
        return Action(ISSUE, name=given.get("name", "").strip(), scopes=scopes, days=_days_of(given.get("days", "")))
    if what == REVOKE:
        return Action(REVOKE, id=given.get("id", "").strip())
    raise ActionError("action: expected seal, release, issue or revoke")


def _days_of(text: str) -> int | None:
    text = text.strip()
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 5 and 1 <= int(text) <= _DAYS_MAX):
        raise ActionError(f"valid for days: expected 1 to {_DAYS_MAX:,}, or nothing for a token that does not expire")
    return int(text)


def _number(window: int | None) -> str:
    return "" if window is None else f"{window:,}"


def _certificate(found: Certificates, now_ms: int) -> dict[str, str]:
    """A line of the table of certificates."""
    ends_ms = found.ends_ms
    if ends_ms is None:
        return {"setting": found.setting, "ends": "not known", "left": found.problem, "state": "wrong"}
    days = (ends_ms - now_ms) // _DAY_MS
    left = "expired" if ends_ms <= now_ms else "today" if days == 0 else f"in {days:,} day{'' if days == 1 else 's'}"
    state = "wrong" if days < _SOON_DAYS else ""
    return {"setting": found.setting, "ends": utc(ends_ms), "left": left, "state": state}


def _ends(shown: LedgerHistory) -> str:
    """When the ledger ends at this pace, in words."""
    if shown.windows_left is None:
        return ""
    if shown.windows_left == 0:
        return "It pays for no more outcome of this plan: releasing stops, and sealed windows stay sealed."
    if shown.last_paid is None:
        return ""
    alone = " and other plans spend nothing" if shown.is_shared else ""
    when = "" if shown.ends_ms is None else f", which ends at {utc(shown.ends_ms)}"
    last = f"the last one that it pays for is window {shown.last_paid:,}{when}"
    return f"If each window from now on is charged{alone}, {last}."
