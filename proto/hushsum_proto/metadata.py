"""The keys of gRPC metadata that both sides use, and how a client id travels in one."""

import urllib.parse
from typing import Final

from hushsum_proto.errors import MalformedMessageError

# With each call: the name that the client declares (percent-encoded UTF-8, as metadata are ASCII).
CLIENT_ID: Final = "hushsum-client-id"
# With each call: what proves it.
AUTHORIZATION: Final = "authorization"
BEARER: Final = "Bearer "
# With a status other than OK, trailing: the reason's stable name, and how long to wait before a retry.
REASON: Final = "hushsum-reason"
RETRY_AFTER_MS: Final = "hushsum-retry-after-ms"

# Printable ASCII but for the escape itself stays as it is, so that common ids are readable in a trace.
_PLAIN: Final = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != "%")


def client_id_to_metadata(client_id: str) -> str:
    """The value of :data:`CLIENT_ID`."""
    return urllib.parse.quote(client_id, safe=_PLAIN)


def client_id_from_metadata(value: str) -> str:
    """The client id in a value of :data:`CLIENT_ID`.

    Raises:
        MalformedMessageError: The value is no percent-encoded UTF-8.
    """
    try:
        return urllib.parse.unquote(value, errors="strict")
    except UnicodeDecodeError as error:
        raise MalformedMessageError(f"{CLIENT_ID}: expected percent-encoded UTF-8, got {value!r}") from error
