"""A declared name is believed of peers on this machine alone."""

import pytest

from aggregator.auth import DeclaredName, is_loopback_peer
from aggregator.errors import UnauthenticatedError
from hushsum_proto.metadata import CLIENT_ID, client_id_to_metadata

HERE = "ipv4:127.0.0.1:50123"


@pytest.mark.parametrize(
    "peer", (HERE, "ipv4:127.8.8.8:1", "ipv6:[::1]:50123", "ipv6:%5B::1%5D:50123", "unix:/run/x", "unix:")
)
def test_peers_on_this_machine_are_recognised(peer: str) -> None:
    assert is_loopback_peer(peer)


@pytest.mark.parametrize(
    "peer",
    (
        "ipv4:10.0.0.1:50123",
        "ipv4:1.127.0.0:1",
        "ipv6:[2001:db8::1]:1",
        "ipv6:%5Bfe80::1%25eth0%5D:1",
        "",
        "127.0.0.1:1",
        "ipv4:",
        "vsock:1",
    ),
)
def test_other_peers_are_not(peer: str) -> None:
    assert not is_loopback_peer(peer)
    with pytest.raises(UnauthenticatedError, match="this machine"):
        DeclaredName().client_id(peer, {CLIENT_ID: "alice"})


@pytest.mark.parametrize("client_id", ("a", "alice", "Käthe's till 17", "100%", "東京" * 64))
def test_a_name_is_given_back_as_it_was_declared(client_id: str) -> None:
    assert DeclaredName().client_id(HERE, {CLIENT_ID: client_id_to_metadata(client_id)}) == client_id


@pytest.mark.parametrize("client_id", ("", "a" * 129, "a\nb", "a\0", "e\u0301", "\u200b", "\ufeff"))
def test_what_is_no_name_is_refused(client_id: str) -> None:
    with pytest.raises(UnauthenticatedError, match="printable characters in NFC"):
        DeclaredName().client_id(HERE, {CLIENT_ID: client_id_to_metadata(client_id)})


def test_no_name_at_all_is_refused() -> None:
    with pytest.raises(UnauthenticatedError, match="got none"):
        DeclaredName().client_id(HERE, {})
