"""Who is at the other end of a call: here a declared name, believed only of a peer on this machine."""

import ipaddress
import urllib.parse
from collections.abc import Mapping

from aggregator.errors import UnauthenticatedError
from aggregator.ports import Peer, Scope
from hushsum_proto.client_ids import CLIENT_ID_FORM, flaw_of
from hushsum_proto.errors import MalformedMessageError
from hushsum_proto.metadata import CLIENT_ID, client_id_from_metadata


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
    try:
        client_id = client_id_from_metadata(value)
    except MalformedMessageError as error:
        raise UnauthenticatedError(str(error)) from error
    if flaw := flaw_of(client_id):
        raise UnauthenticatedError(f"expected {CLIENT_ID_FORM}, got {flaw}")
    return client_id
