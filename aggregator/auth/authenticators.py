"""Authentication of callers: by a name declared on this machine, by a token, or by a certificate.

A caller whose token or certificate is not valid gets one message, the same for whatever is wrong with it.
"""

import ipaddress
import urllib.parse
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.x509.oid import NameOID
from prometheus_client import CollectorRegistry

from aggregator.auth.tokens import TokenEntry, TokenFile, TokenMetrics
from aggregator.config import Config
from aggregator.errors import ForbiddenError, UnauthenticatedError
from aggregator.interfaces import Authenticator
from aggregator.model import Peer, Scope
from aggregator.runtime import Runtime, TaskSupervisor
from hushsum_proto.client_ids import CLIENT_ID_FORM, flaw_of
from hushsum_proto.errors import MalformedMessageError
from hushsum_proto.metadata import AUTHORIZATION, BEARER, CLIENT_ID, client_id_from_metadata

_SCOPE_PREFIX: Final = "hushsum:"
#: What cryptography raises for certificates that OpenSSL has verified and that it cannot read itself: TypeError for a
#: subject with a value of an unusual ASN.1 type.
_UNREADABLE: Final = (ValueError, TypeError, x509.InvalidVersion)


class CertificateHolder(NamedTuple):
    """The holder of a certificate: its common name, a client id, and until when it is valid (ms since 1970)."""

    name: str
    scopes: frozenset[Scope]
    expires_ms: int


@lru_cache(4096)  # a certificate is parsed once, not at each call
def holder_of_pem(data: bytes) -> CertificateHolder | None:
    """The holder of a verified certificate (PEM); None if it names no client, or is not a certificate."""
    return _holder_of(x509.load_pem_x509_certificate, data)


def holder_of_der(data: bytes) -> CertificateHolder | None:
    """The same of a certificate as it is in TLS."""
    return _holder_of(x509.load_der_x509_certificate, data)


def _holder_of(load: Callable[[bytes], x509.Certificate], data: bytes) -> CertificateHolder | None:
    try:
        return _holder(load(data))
    except _UNREADABLE:
        return None


def _holder(certificate: x509.Certificate) -> CertificateHolder | None:
    names = [each.value for each in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    marks = [each.value for each in certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)]
    if len(names) != 1 or not isinstance(names[0], str) or flaw_of(names[0]):
        return None
    # A misspelt scope must not become the default one, which certificates without any scope get.
    wanted = {str(mark) for mark in marks if str(mark).startswith(_SCOPE_PREFIX)}
    scopes = {scope for scope in Scope if _SCOPE_PREFIX + scope in wanted} if wanted else {Scope.SUBMIT}
    return CertificateHolder(names[0], frozenset(scopes), round(certificate.not_valid_after_utc.timestamp() * 1000))


NO_BEARER: Final = (
    "expected a valid token with every call: this one has none, or one that is unknown, revoked or expired"
)
NO_HOLDER: Final = "expected a valid client certificate, got none"


def is_loopback_peer(peer: str) -> bool:
    """Whether gRPC's name of a peer is on this machine: ``ipv4:127.…``, ``ipv6:[::1]:…``, ``unix:``."""
    kind, _, rest = urllib.parse.unquote(peer).partition(":")
    if kind == "unix":
        return True
    host = rest.rpartition(":")[0]
    if kind == "ipv6":
        host = host.removeprefix("[").removesuffix("]")
    elif kind != "ipv4":
        return False
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class DeclaredNameAuthenticator:
    """Accepts the name that a caller on this machine declares; it may submit and administer.

    Anybody who reaches the port may read published releases: they hold no secret.
    """

    reads_certificates = False

    def admit(self, peer: Peer, *scopes: Scope) -> str:
        """The declared name, 1 to 128 printable characters in NFC; empty for one that only reads, or administers.

        Raises:
            UnauthenticatedError: The peer is not on this machine, or declares no such name.
        """
        if Scope.READ in scopes:
            return ""
        if not is_loopback_peer(peer.address):
            raise UnauthenticatedError(
                "only callers on this machine are accepted, because the service has no authentication"
            )
        return "" if Scope.ADMIN in scopes else _declared(peer.metadata)


def _declared(metadata: Mapping[str, str]) -> str:
    value = metadata.get(CLIENT_ID)
    if value is None:
        raise UnauthenticatedError(f"expected a client id in the metadata {CLIENT_ID}, got none")
    client_id = _decoded(value)
    if flaw := flaw_of(client_id):
        raise UnauthenticatedError(f"expected {CLIENT_ID_FORM}, got {flaw}")
    return client_id


class TokenAuthenticator:
    """Authenticates callers by their bearer tokens, on this machine, too."""

    reads_certificates = False

    def __init__(self, file: TokenFile, runtime: Runtime) -> None:
        self._file = file
        self._runtime = runtime

    def admit(self, peer: Peer, *scopes: Scope) -> str:
        entry = self._file.table.find(_bearer(peer.metadata), self._runtime.now_ms())
        if entry is None:
            raise UnauthenticatedError(NO_BEARER)
        return _admitted(entry, "token", peer, scopes)


class CertificateAuthenticator:
    """Authenticates callers by the client certificates that the transport has verified.

    The common name is the client id. Each organisation ``hushsum:submit``, ``hushsum:read`` or ``hushsum:admin`` is a
    scope; a certificate with no organisation of that kind may submit, and nothing else.
    """

    reads_certificates = True

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime  # a connection may outlive its certificate

    def admit(self, peer: Peer, *scopes: Scope) -> str:
        holder = holder_of_pem(peer.certificate)
        if holder is None or self._runtime.now_ms() >= holder.expires_ms:
            raise UnauthenticatedError(NO_HOLDER)
        return _admitted(holder, "certificate", peer, scopes)


async def token_file_of(
    config: Config, runtime: Runtime, registry: CollectorRegistry, supervisor: TaskSupervisor
) -> TokenFile | None:
    """The configured file of tokens, which is watched from now on; None without one.

    Raises:
        ConfigError: It cannot be read.
    """
    if config.tokens is None:
        return None
    file = await TokenFile.open(config.tokens, runtime, TokenMetrics(registry))
    supervisor.forever("tokens", file.run)
    return file


def authenticator_of(config: Config, runtime: Runtime, tokens: TokenFile | None) -> Authenticator:
    """The configured authenticator; ``tokens`` are required where callers show them."""
    if config.authentication == "certificate":
        return CertificateAuthenticator(runtime)
    if config.authentication == "declared":
        return DeclaredNameAuthenticator()
    assert tokens is not None, "the settings demand them"
    return TokenAuthenticator(tokens, runtime)


def _admitted(holder: TokenEntry | CertificateHolder, proof: str, peer: Peer, wanted: Collection[Scope]) -> str:
    """The name of a holder that has one of the scopes.

    One that declares another name is refused, not corrected: its deltas would count for a client that it does not mean.
    """
    if not any(scope in holder.scopes for scope in wanted):
        raise ForbiddenError(f"permission denied: this call requires the scope {' or '.join(wanted)}")
    if CLIENT_ID in peer.metadata and _decoded(peer.metadata[CLIENT_ID]) != holder.name:
        raise ForbiddenError(
            f"the {proof} belongs to {holder.name!r}, but the caller declares another client id: use {holder.name!r}"
        )
    return holder.name


def _decoded(value: str) -> str:
    try:
        return client_id_from_metadata(value)
    except MalformedMessageError as error:
        raise UnauthenticatedError(str(error)) from error


def _bearer(metadata: Mapping[str, str]) -> str:
    """The token after the scheme, whose letters may be of any case; empty for another scheme."""
    value = metadata.get(AUTHORIZATION, "")
    scheme, token = value[: len(BEARER)], value[len(BEARER) :]
    return token.strip(" ") if scheme.lower() == BEARER.lower() else ""
