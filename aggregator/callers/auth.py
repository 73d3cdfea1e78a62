"""Who is at the other end of a call: a name that is declared on this machine, a token's, or a certificate's.

Who shows a token or a certificate that is not good is told one sentence, the same for whatever is wrong with it.
"""

import ipaddress
import urllib.parse
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Final

from aggregator.callers.tokens.metrics import TokenMetrics
from aggregator.callers.tokens.watcher import TokenFile
from aggregator.certificates import holder_of_pem
from aggregator.config import Config
from aggregator.errors import ForbiddenError, UnauthenticatedError
from aggregator.ports import Authenticator, Peer, Runtime, Scope
from aggregator.supervision import Supervision
from aggregator.watching.metrics import Metrics
from hushsum_proto.client_ids import CLIENT_ID_FORM, flaw_of
from hushsum_proto.errors import MalformedMessageError
from hushsum_proto.metadata import AUTHORIZATION, BEARER, CLIENT_ID, client_id_from_metadata

NO_BEARER: Final = "a token of this service is expected with every call, and none that is good came"
NO_HOLDER: Final = "a client certificate of this service is expected, and none that is good came"

_holder_of: Final = lru_cache(4096)(holder_of_pem)  # read once, and not at each call


def is_loopback_peer(peer: str) -> bool:
    """Whether gRPC's name of a peer says that it is on this machine: ``ipv4:127.…``, ``ipv6:[::1]:…``, ``unix:``."""
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


class DeclaredName:
    """Believes the name that a caller declares, if it calls from this machine; whoever does may submit and administer.

    Published releases are for whoever reaches the port: nothing in them needs to be kept from anybody.
    """

    def admit(self, peer: Peer, *scopes: Scope) -> str:
        """The declared name, 1 to 128 printable characters in NFC; empty for who only reads, or administers.

        Raises:
            UnauthenticatedError: A peer that is not on this machine, or no such name.
        """
        if Scope.READ in scopes:
            return ""
        if not is_loopback_peer(peer.address):
            raise UnauthenticatedError("a caller is believed from this machine alone: no tokens are set up here")
        return "" if Scope.ADMIN in scopes else _declared(peer.metadata)


def _declared(metadata: Mapping[str, str]) -> str:
    value = metadata.get(CLIENT_ID)
    if value is None:
        raise UnauthenticatedError(f"expected a client id in the metadata {CLIENT_ID}, got none")
    client_id = _decoded(value)
    if flaw := flaw_of(client_id):
        raise UnauthenticatedError(f"expected {CLIENT_ID_FORM}, got {flaw}")
    return client_id


class Tokens:
    """Knows callers by their bearer tokens, on this machine, too; who declares another name than that is refused.

    Args:
        file: The table that counts now.
        runtime: Time.
    """

    def __init__(self, file: TokenFile, runtime: Runtime) -> None:
        self._file = file
        self._runtime = runtime

    def admit(self, peer: Peer, *scopes: Scope) -> str:
        """The token's name.

        Raises:
            UnauthenticatedError: No token that is good.
            ForbiddenError: One that is good for something else, or for somebody else.
        """
        entry = self._file.table.find(_bearer(peer.metadata), self._runtime.now_ms())
        if entry is None:
            raise UnauthenticatedError(NO_BEARER)
        _check_scopes(entry.scopes, scopes)
        _check_name(entry.name, "token", peer.metadata)
        return entry.name


class Certificates:
    """Knows callers by the client certificates that the transport has verified.

    The common name is the client id. Each organisation ``hushsum:submit``, ``hushsum:read`` or ``hushsum:admin`` is a
    scope; a certificate with no organisation of that kind may submit, and nothing else.

    Args:
        runtime: Time: a connection may outlive its certificate.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def admit(self, peer: Peer, *scopes: Scope) -> str:
        """The certificate's common name.

        Raises:
            UnauthenticatedError: None that is good.
            ForbiddenError: One that is good for something else, or for somebody else.
        """
        holder = _holder_of(peer.certificate)
        if holder is None or self._runtime.now_ms() >= holder.expires_ms:
            raise UnauthenticatedError(NO_HOLDER)
        _check_scopes(holder.scopes, scopes)
        _check_name(holder.name, "certificate", peer.metadata)
        return holder.name


async def authenticator_of(
    config: Config, runtime: Runtime, metrics: Metrics, supervision: Supervision
) -> Authenticator:
    """What a service is set to believe; a file of tokens is watched from now on.

    Raises:
        ConfigError: The file of tokens cannot be read.
    """
    if config.authentication == "certificate":
        return Certificates(runtime)
    if config.authentication == "declared":
        return DeclaredName()
    assert config.tokens is not None, "required with tokens"
    file = await TokenFile.open(config.tokens, runtime, TokenMetrics(metrics.registry))
    supervision.forever("tokens", file.run)
    return Tokens(file, runtime)


def _check_scopes(held: Collection[Scope], wanted: Collection[Scope]) -> None:
    if not any(scope in held for scope in wanted):
        raise ForbiddenError(f"this needs the scope {' or '.join(wanted)}, which this caller does not have")


def _decoded(value: str) -> str:
    try:
        return client_id_from_metadata(value)
    except MalformedMessageError as error:
        raise UnauthenticatedError(str(error)) from error


def _check_name(name: str, proof: str, metadata: Mapping[str, str]) -> None:
    """Refuses who declares another name beside its own: it would be counted as somebody that it does not mean."""
    if CLIENT_ID in metadata and _decoded(metadata[CLIENT_ID]) != name:
        raise ForbiddenError(
            f"this {proof} is of {name!r}, and the caller declares another name: take that as client id"
        )


def _bearer(metadata: Mapping[str, str]) -> str:
    """What stands behind the scheme, whose letters may be of any case; empty for another scheme."""
    value = metadata.get(AUTHORIZATION, "")
    scheme, token = value[: len(BEARER)], value[len(BEARER) :]
    return token.strip(" ") if scheme.lower() == BEARER.lower() else ""
