"""What holds for every request and response: the Host header, headers of safety, errors that say nothing of inside."""

import ipaddress
import re
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, Final

from starlette.requests import ClientDisconnect
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Nothing but this page's own files, no exception; it stands in no frame, and its forms go nowhere else.
POLICY: Final = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'"
HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with no-referrer browsers send forms with the origin "null"
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-embedder-policy": "require-corp",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
_HOST: Final = re.compile(r"(?P<name>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::[0-9]{1,5})?")
NO_STORE: Final = "no-store"

OnError = Callable[[Exception], None]


def host_name(host: str) -> str:
    """The name of a Host header, without its port, in lower case; empty for none that can be read."""
    match = _HOST.fullmatch(host)
    if match is None:
        return ""
    name = match["name"].strip("[]")
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return name.rstrip(".").lower()


class Guard:
    """Refuses requests to other hosts, adds headers to all responses, and answers for what fails.

    Args:
        app: What answers.
        hosts: See :class:`hushsum_page.settings.PageSettings`.
        on_error: Hears of errors that nobody foresaw.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str], on_error: OnError) -> None:
        self._app, self._hosts, self._on_error = app, hosts, on_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        has_begun = False

        async def send_safely(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start":
                has_begun = True
                _add_headers(message)
            await send(message)

        headers = dict(scope["headers"])
        if sum(name == b"host" for name, _ in scope["headers"]) != 1 or (
            host_name(headers[b"host"].decode("latin-1")) not in self._hosts
        ):
            text = "The Host header names another machine than this page's.\n"
            await PlainTextResponse(text, 421)(scope, receive, send_safely)
            return
        try:
            await self._app(scope, receive, send_safely)
        except ClientDisconnect:
            pass  # in the middle of a form: nobody waits for an answer
        except Exception as error:  # noqa: BLE001  whatever it is: the caller learns nothing of it
            self._on_error(error)
            if not has_begun:
                text = "The page has failed; the log of its process names the kind of error.\n"
                await PlainTextResponse(text, 500)(scope, receive, send_safely)


def _add_headers(message: MutableMapping[str, Any]) -> None:  # Any: as ASGI has it
    present = {name.lower() for name, _ in message.get("headers", ())}
    added = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
    if b"cache-control" not in present:
        added.append((b"cache-control", NO_STORE.encode()))
    message["headers"] = [*message.get("headers", ()), *added]
