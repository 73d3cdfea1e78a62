"""Whose a client certificate is, and what it may do: its common name, and its organisations ``hushsum:…``."""

from typing import Final, NamedTuple

from cryptography import x509
from cryptography.x509.oid import NameOID

from aggregator.ports import Scope
from hushsum_proto.client_ids import flaw_of

_SCOPE_PREFIX: Final = "hushsum:"
#: What cryptography raises of a certificate that OpenSSL has verified and that it does not read: TypeError comes of a
#: subject with a value of an odd ASN.1 type.
_NO_HOLDER: Final = (ValueError, TypeError, x509.InvalidVersion)


class Holder(NamedTuple):
    """Who holds a certificate.

    Attributes:
        name: Its common name, a client id.
        scopes: What it is good for.
        expires_ms: From when on it is good for nothing, ms since 1970.
    """

    name: str
    scopes: frozenset[Scope]
    expires_ms: int


def holder_of_pem(data: bytes) -> Holder | None:
    """Whose a certificate is that somebody has verified; None where it names no client, or is none."""
    try:
        return _holder_of(x509.load_pem_x509_certificate(data))
    except _NO_HOLDER:
        return None


def holder_of_der(data: bytes) -> Holder | None:
    """The same of its bytes as they are in TLS."""
    try:
        return _holder_of(x509.load_der_x509_certificate(data))
    except _NO_HOLDER:
        return None


def _holder_of(certificate: x509.Certificate) -> Holder | None:
    names = [each.value for each in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    marks = [each.value for each in certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)]
    if len(names) != 1 or not isinstance(names[0], str) or flaw_of(names[0]):
        return None
    # A scope that is written wrong must not become the one that is given to those who name none.
    wanted = {str(mark) for mark in marks if str(mark).startswith(_SCOPE_PREFIX)}
    scopes = {scope for scope in Scope if _SCOPE_PREFIX + scope in wanted} if wanted else {Scope.SUBMIT}
    return Holder(names[0], frozenset(scopes), round(certificate.not_valid_after_utc.timestamp() * 1000))
