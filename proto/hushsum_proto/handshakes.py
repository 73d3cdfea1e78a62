"""Why a connection did not come about, in plain words: gRPC's own are for those who know its insides."""

import re
from typing import Final

_TRIED: Final = re.compile(r"last error: (?:[A-Z_]+: )?(.*)", re.DOTALL)
_VERIFYING: Final = re.compile(r"CERTIFICATE_VERIFY_FAILED: ([^:\n]+)")
_UNTRUSTED: Final = ("unable to get", "self signed", "self-signed", "unable to verify")
_FLAWS: Final = {
    "certificate has expired": "has expired, by this machine's clock",
    "certificate is not yet valid": "is not valid yet, by this machine's clock",
    "unsupported certificate purpose": "is not a server certificate",
}
_MEANINGS: Final = {
    "Hostname Verification": "the certificate of {target} is not valid for {expected}",
    "is not in peer certificate": "the certificate of {target} is not valid for {expected}",
    "WRONG_VERSION_NUMBER": "{target} does not use TLS, expected TLS",
    "andshake failed": "TLS with {target} failed: {cause}",
}
_CLOSED_TLS: Final = (
    "{target} closed the connection during the TLS handshake: it may require a client certificate that its own "
    "certificate authority has signed"
)
_CLOSED: Final = ("Socket closed", "Connection reset", "Broken pipe", "End of TCP stream")


def explanation(details: str, target: str, *, tls: bool, expected: str | None = None) -> str | None:
    """What gRPC's details mean where a connection could not be secured; None where they are about something else.

    Args:
        details: Of a call that ended with UNAVAILABLE.
        target: Where it went.
        tls: Whether this side spoke TLS.
        expected: Whose certificate was expected, where that is not the target's host.
    """
    if (tried := _TRIED.search(details)) is None:
        return None  # of a connection that stood
    cause = tried[1]
    closed = any(sign in cause for sign in _CLOSED)
    if not tls:
        plain = f"{target} closed the connection immediately: it may require TLS, and this connection is unencrypted"
        return plain if closed else None
    if verifying := _VERIFYING.search(cause):
        flaw = verifying[1].strip()
        untrusted = "is not signed by a trusted certificate authority"
        what = untrusted if flaw.startswith(_UNTRUSTED) else _FLAWS.get(flaw, f"is not trusted: {flaw}")
        return f"the certificate of {target} {what}"
    host = "this host" if expected is None else expected
    for sign, meaning in _MEANINGS.items():
        if sign in cause:
            return meaning.format(target=target, expected=host, cause=cause)
    return _CLOSED_TLS.format(target=target) if closed else None
