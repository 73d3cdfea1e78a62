"""The page as an ASGI application: its addresses, who may see them, and what forms must send back."""

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import parse_qsl

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import DEFAULT_EXCLUDED_CONTENT_TYPES, GZipMiddleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from hushsum.errors import HushsumError, MergeError, PlanError, RecordError, ReleaseError
from hushsum_page.analyst_views import AnalystViews
from hushsum_page.confirmations import Confirmations
from hushsum_page.library import Library
from hushsum_page.middleware import Guard, OnError
from hushsum_page.operations import Operations
from hushsum_page.operator_views import OperatorViews
from hushsum_page.questions import QuestionError
from hushsum_page.sessions import Holder, Session, Sessions, is_masked, is_same
from hushsum_page.settings import PROXY_HEADER, PageSettings
from hushsum_page.site import ADMIN, READ, Endpoint, NavigationEntry, Site, View, may_see
from hushsum_page.source import MissingReleaseError
from hushsum_page.workers import BusyError

#: Requests of one holder that are answered at the same time: a browser sends six. Others find a place beside them.
REQUESTS_OF_ONE_MAX: Final = 8
#: Bytes of a form.
FORM_BYTES_MAX: Final = 16_384
_QUERY_MAX: Final = 8192  # characters of an address's parameters
_FIELDS_MAX: Final = 100
_COMPRESSED_MIN: Final = 1024
#: Whose contents are compressed already.
_UNCOMPRESSED: Final = (*DEFAULT_EXCLUDED_CONTENT_TYPES, "application/octet-stream")
_UNAVAILABLE: Final = "The service cannot say it now. Load the page again in a moment."
_NAVIGATION: Final = (
    NavigationEntry("/", "Plans", READ),
    NavigationEntry("/compare", "Compare", READ),
)
_OPERATORS_NAVIGATION: Final = (
    NavigationEntry("/service", "Service", ADMIN),
    NavigationEntry("/windows", "Windows", ADMIN),
    NavigationEntry("/ledger", "Ledger", ADMIN),
    NavigationEntry("/tokens", "Tokens", ADMIN),
    NavigationEntry("/audit", "Audit log", ADMIN),
)

_logger = logging.getLogger("hushsum_page")


class Page:
    """The application. Made by :func:`page_app`.

    Args:
        library: What it shows.
        sessions: Who is signed in.
        settings: How it is reached.
        clock: Seconds that never go back.
        signs_in_by_address: Whether the token may be in the address of the sign-in, as of ``hushsum view``, whose
            token is used up by the first request.
        operations: What operators see and do; None: there is no service, and so none of their views.
    """

    def __init__(
        self,
        library: Library,
        sessions: Sessions,
        settings: PageSettings,
        clock: Callable[[], float],
        *,
        signs_in_by_address: bool,
        operations: Operations | None = None,
    ) -> None:
        self._sessions, self._settings = sessions, settings
        self._answering: Counter[str] = Counter()
        self._by_address = signs_in_by_address
        self._site = Site(_NAVIGATION if operations is None else _NAVIGATION + _OPERATORS_NAVIGATION)
        self._views = AnalystViews(library, self._site).views()
        if operations is not None:
            confirmations = Confirmations(sessions.secret, clock)
            self._views += OperatorViews(operations, confirmations, self._site).views()

    def app(self, on_error: OnError) -> ASGIApp:
        """With everything around it."""
        routes = [Route(each.path, self._seen(each), methods=[each.method]) for each in self._views]
        routes += [
            Route("/sign-in", self._guarded(self.sign_in_form), methods=["GET"]),
            Route("/sign-in", self._guarded(self.sign_in), methods=["POST"]),
            Route("/sign-out", self._guarded(self.sign_out), methods=["POST"]),
            Route("/static/{name}", self._site.static_file, methods=["GET"]),
        ]
        app = Starlette(
            routes=routes,
            middleware=[
                Middleware(
                    GZipMiddleware,
                    minimum_size=_COMPRESSED_MIN,
                    compresslevel=5,
                    exclude_content_types=_UNCOMPRESSED,
                )
            ],
            exception_handlers={HTTPException: self._http_error},
        )
        app.router.redirect_slashes = False  # its redirects name the scheme and the host that it believes in
        return Guard(app, self._settings.hosts, on_error)

    # ------------------------------------------------------------------------------------------------------- who may

    def _seen(self, view: View) -> Endpoint:
        """A view for those who may see it; a change needs the token of the session's form, too."""

        async def answer(request: Request) -> Response:
            session = self._session(request)
            if session is None:
                return RedirectResponse("/sign-in", 303)
            request.state.session = session
            request.state.form_value = self._sessions.masked(session.form_token)
            request.state.signs_out = self._cookie(request) != ""
            if not may_see(session.holder, view.scope):
                return self._site.error(request, 403, f"Your token does not have the scope {view.scope}.")
            if _is_embedded_elsewhere(request):
                return self._site.error(request, 403, "The request was sent by another site.")
            if view.method == "POST":
                request.state.fields = await self._check_form(request, session.form_token)
                if self._session(request) is not session:  # it has ended while the form was on its way
                    return RedirectResponse("/sign-in", 303)
            return await self._in_turn(request, session.holder, view.endpoint)

        return self._guarded(answer)

    async def _in_turn(self, request: Request, holder: Holder, endpoint: Endpoint) -> Response:
        """The answer, unless as many requests of the same holder are being answered as one may have."""
        whose = holder.key
        if self._answering[whose] >= REQUESTS_OF_ONE_MAX:
            raise BusyError
        self._answering[whose] += 1
        try:
            return await endpoint(request)
        finally:
            self._answering[whose] -= 1
            if not self._answering[whose]:
                del self._answering[whose]

    def _guarded(self, endpoint: Endpoint) -> Endpoint:
        """An endpoint whose refusals become pages; addresses that are too long are refused first."""

        async def answer(request: Request) -> Response:
            try:
                if len(request.url.query) > _QUERY_MAX or len(request.query_params) > _FIELDS_MAX:
                    return self._site.error(request, 400, "The address is too long.")
                return await endpoint(request)
            except MissingReleaseError as error:
                return self._site.error(request, 404, _sentence(error))
            except (QuestionError, PlanError, RecordError, MergeError, ReleaseError, ValueError) as error:
                return self._site.error(request, 422, _sentence(error))
            except HushsumError as error:
                # It may name files and addresses of the service.
                return self._site.error(request, 503, _sentence(error) if _is_operators(request) else _UNAVAILABLE)
            except BusyError as error:
                text = str(error) or "More is asked for at once than is computed. Load the page again in a moment."
                return self._site.error(request, 503, text, {"retry-after": "2"})

        return answer

    def _session(self, request: Request) -> Session | None:
        """The session of a request: of its cookie, or of the proxy that vouches for it."""
        if (value := self._cookie(request)) and (session := self._sessions.find(value)) is not None:
            return session
        proxy = self._settings.proxy
        if proxy is None or not is_same(_only(request, PROXY_HEADER), proxy.secret):
            return None
        name = _only(request, proxy.header)
        return Session(Holder(name, may_read=True, may_administer=False), "", 0.0, 0.0) if name else None

    def _cookie(self, request: Request) -> str:
        return request.cookies.get(self._settings.cookie, "")

    async def _check_form(self, request: Request, token: str) -> Mapping[str, str]:
        """The fields of a form that this page made: HTTPException if another site, or nobody, made it."""
        origin, host = request.headers.get("origin", ""), request.headers.get("host", "")
        own = {f"https://{host}"} if self._settings.is_secure else {f"https://{host}", f"http://{host}"}
        if (origin and origin not in own) or request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
            raise HTTPException(403, "The form was sent by another site.")
        fields = await _form(request)
        given = fields.get("form_token", "")
        if not (is_same(given, token) or is_masked(given, token)):
            raise HTTPException(403, "The form has expired: load the page again, and send it once more.")
        return fields

    async def _http_error(self, request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException), "what this handler is for"
        text = error.detail if error.status_code in {403, 413} else "There is no such page."
        return self._site.error(request, error.status_code, text, error.headers)

    # ------------------------------------------------------------------------------------------------ signing in, out

    async def sign_in_form(self, request: Request) -> Response:
        token = request.query_params.get("token", "") if self._by_address else ""
        if token:
            holder = self._sessions.accounts.holder_of(token)
            return self._refused(request) if holder is None else self._begun(request, holder)
        return self._form_page(request, "")

    def _form_page(self, request: Request, wrong: str, status: int = 200) -> Response:
        """The form, with a token that stands in a cookie, too: no other site can send both."""
        form_token = self._sessions.secret()
        asks_for = self._sessions.accounts.asks_for
        page = self._site.page(
            request, "sign_in.html", status=status, wrong=wrong, form_token=form_token, asks_for=asks_for
        )
        self._set_cookie(page, self._settings.form_cookie, form_token)
        return page

    def _refused(self, request: Request) -> Response:
        return self._form_page(request, "This token is not valid, or may not read.", 403)

    async def sign_in(self, request: Request) -> Response:
        fields = await self._check_form(request, request.cookies.get(self._settings.form_cookie, ""))
        holder = self._sessions.accounts.holder_of(fields.get("token", "").strip())
        return self._refused(request) if holder is None else self._begun(request, holder)

    def _begun(self, request: Request, holder: Holder) -> Response:
        """A page that goes on by itself: a redirect would lack the new cookie where another site led here."""
        self._sessions.end(self._cookie(request))  # of whoever was signed in before
        value = self._sessions.begin(holder)
        page = self._site.page(request, "signed_in.html", name=holder.name)
        self._set_cookie(page, self._settings.cookie, value)
        return page

    async def sign_out(self, request: Request) -> Response:
        value = self._cookie(request)
        session = self._sessions.find(value)
        if session is not None:
            await self._check_form(request, session.form_token)
            self._sessions.end(value)
        response = RedirectResponse("/sign-in", 303)
        response.delete_cookie(self._settings.cookie, secure=self._settings.is_secure, httponly=True, samesite="strict")
        return response

    def _set_cookie(self, response: Response, name: str, value: str) -> None:
        response.set_cookie(name, value, secure=self._settings.is_secure, httponly=True, samesite="strict", path="/")


def _only(request: Request, header: str) -> str:
    """The one value of a header; empty where it came twice: then nobody knows which one the proxy has set."""
    values = request.headers.getlist(header)
    return values[0] if len(values) == 1 else ""


def _is_embedded_elsewhere(request: Request) -> bool:
    """Whether a page of another origin asks, and not a person who followed a link of it."""
    of_others = request.headers.get("sec-fetch-site", "") in {"cross-site", "same-site"}
    return of_others and request.headers.get("sec-fetch-mode") != "navigate"


def _is_operators(request: Request) -> bool:
    session: Session | None = getattr(request.state, "session", None)
    return session is not None and session.holder.may_administer


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split())[:500]
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith(('.', '?')) else '.'}"


async def _form(request: Request) -> dict[str, str]:
    """The fields of a form, read up to its limit."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > FORM_BYTES_MAX:
            raise HTTPException(413, f"A form has at most {FORM_BYTES_MAX:,} bytes.")
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=_FIELDS_MAX)
    except ValueError as error:
        raise HTTPException(403, "The form cannot be read.") from error
    return dict(pairs)


def log_error(error: Exception) -> None:
    """One line with the kind of an error, and where it was raised: its words may hold anything."""
    place: Any = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = "" if place is None else f" at {place.tb_frame.f_code.co_name}:{place.tb_lineno}"
    _logger.error("page failed: %s%s", type(error).__name__, where)


def page_app(
    library: Library,
    sessions: Sessions,
    settings: PageSettings,
    clock: Callable[[], float],
    *,
    signs_in_by_address: bool = False,
    operations: Operations | None = None,
    on_error: OnError = log_error,
) -> ASGIApp:
    """The page.

    Args:
        library: What it shows.
        sessions: Who is signed in.
        settings: How it is reached.
        clock: Seconds that never go back.
        signs_in_by_address: Whether the token may be in the address of the sign-in.
        operations: What operators see and do; None: their views are left out.
        on_error: Hears of errors that nobody foresaw.
    """
    page = Page(library, sessions, settings, clock, signs_in_by_address=signs_in_by_address, operations=operations)
    return page.app(on_error)
