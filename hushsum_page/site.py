"""Pages of the site: templates, who may see them, and the small words that all of them share."""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any, Final, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response, StreamingResponse

from hushsum_page.sessions import Session

#: What a holder needs to see a view.
READ: Final = "read"
ADMIN: Final = "admin"

_FOLDER: Final = Path(__file__).parent
_STATIC: Final = {
    "page.css": "text/css; charset=utf-8",
    "page.js": "text/javascript; charset=utf-8",
    "htmx.min.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}
_DIGEST_DIGITS: Final = 12
_ERRORS: Final[Mapping[int, str]] = {
    400: "This request cannot be understood",
    403: "Not allowed",
    404: "Not found",
    405: "Not allowed here",
    409: "Nothing was done",
    413: "Too large",
    422: "This cannot be shown",
    503: "Busy",
}

Endpoint = Callable[[Request], Awaitable[Response]]


class View(NamedTuple):
    """One address of the site.

    Attributes:
        path: As Starlette has it.
        endpoint: What answers.
        scope: What a holder needs: :data:`READ` or :data:`ADMIN`.
        method: ``GET``, or ``POST`` for what changes something. The token of its form is checked before the endpoint is
            called; ``request.state.fields`` are its fields.
    """

    path: str
    endpoint: Endpoint
    scope: str
    method: str = "GET"


class NavigationEntry(NamedTuple):
    """A link at the top of every page, for holders of a scope."""

    address: str
    text: str
    scope: str


class Site:
    """Makes pages from templates. Names and texts of others are escaped wherever they stand.

    Args:
        navigation: The links at the top.
    """

    def __init__(self, navigation: tuple[NavigationEntry, ...]) -> None:
        self._navigation = navigation
        self._templates = Environment(
            loader=FileSystemLoader(_FOLDER / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._templates.globals["static"] = self.static_address

    def page(self, request: Request, template: str, *, status: int = 200, **shown: object) -> Response:
        """A whole page."""
        return HTMLResponse(self._rendered(request, template, shown), status)

    def part(self, request: Request, template: str, **shown: object) -> Response:
        """A piece of a page, which its script puts where it belongs."""
        return HTMLResponse(self._rendered(request, template, shown))

    def _rendered(self, request: Request, template: str, shown: Mapping[str, object]) -> str:
        session: Session | None = getattr(request.state, "session", None)
        holder = None if session is None else session.holder
        entries = [each for each in self._navigation if holder is not None and may_see(holder, each.scope)]
        about = {
            "session": session,
            "navigation": entries,
            "here": request.url.path,
            "form_value": getattr(request.state, "form_value", ""),
            "signs_out": bool(getattr(request.state, "signs_out", False)),
        }
        return self._templates.get_template(template).render(**about, **shown)

    def error(self, request: Request, status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
        """A page that says what went wrong."""
        shown = {"heading": _ERRORS.get(status, "Failed"), "text": text}
        return HTMLResponse(self._rendered(request, "error.html", shown), status, headers=headers)

    def missing(self, request: Request) -> Response:
        """The page of an address that there is not."""
        return self.error(request, 404, "There is no such page.")

    def file(self, data: bytes, kind: str, name: str) -> Response:
        """A file to be saved, never shown; ``name`` has letters, digits, dots and dashes alone."""
        return Response(data, media_type=kind, headers=_to_be_saved(name))

    def sent(self, pieces: AsyncIterator[bytes], size: int, name: str) -> Response:
        """The same of a large file, in pieces."""
        headers = {**_to_be_saved(name), "content-length": str(size)}
        return StreamingResponse(pieces, media_type="application/octet-stream", headers=headers)

    # --------------------------------------------------------------------------------------------------------- static

    @cached_property
    def _static(self) -> dict[str, tuple[bytes, str]]:
        """Files by the names that pages ask for, which have their digests, so that a browser may keep them for ever."""
        found = {}
        for name, kind in _STATIC.items():
            data = (_FOLDER / "static" / name).read_bytes()
            digest = hashlib.sha256(data).hexdigest()[:_DIGEST_DIGITS]
            found[f"{digest}-{name}"] = (data, kind)
        return found

    def static_address(self, name: str) -> str:
        """The address of a file of the page."""
        return next(f"/static/{each}" for each in self._static if each.endswith(f"-{name}"))

    async def static_file(self, request: Request) -> Response:
        """A file of the page, for everybody."""
        found = self._static.get(request.path_params["name"])
        if found is None:
            return self.missing(request)
        headers = {"cache-control": "public, max-age=31536000, immutable"}
        return Response(found[0], headers={**headers, "content-type": found[1]})


def _to_be_saved(name: str) -> dict[str, str]:
    return {"content-disposition": f'attachment; filename="{name}"'}


def utc(at_ms: int) -> str:
    """A moment, in ms since 1970, as pages write it; a question mark for one beyond the calendar."""
    try:
        return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, ValueError, OSError):
        return "?"


def may_see(holder: Any, scope: str) -> bool:
    """Whether a holder may see a view: published releases with either scope, the rest with ``admin`` alone."""
    return bool(holder.may_administer or (holder.may_read and scope == READ))
