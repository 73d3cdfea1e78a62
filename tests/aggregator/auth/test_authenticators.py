"""Who is believed: a declared name of peers on this machine alone, a token's, a certificate's."""

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.x509.oid import NameOID

from aggregator.auth.authenticators import (
    NO_HOLDER,
    CertificateAuthenticator,
    DeclaredNameAuthenticator,
    is_loopback_peer,
)
from aggregator.errors import ForbiddenError, UnauthenticatedError
from aggregator.model import Peer, Scope
from hushsum_proto.metadata import CLIENT_ID, client_id_to_metadata
from tests.doubles import ManualRuntime

HERE = "ipv4:127.0.0.1:50123"


def declared(peer: str, client_id: str | None) -> str:
    sent = {} if client_id is None else {CLIENT_ID: client_id_to_metadata(client_id)}
    return DeclaredNameAuthenticator().admit(Peer(peer, sent), Scope.SUBMIT)


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
        declared(peer, "alice")


@pytest.mark.parametrize("client_id", ("a", "alice", "Käthe's till 17", "100%", "東京" * 64))
def test_a_name_is_given_back_as_it_was_declared(client_id: str) -> None:
    assert declared(HERE, client_id) == client_id


@pytest.mark.parametrize("client_id", ("", "a" * 129, "a\nb", "a\0", "e\u0301", "\u200b", "\ufeff"))
def test_what_is_no_name_is_refused(client_id: str) -> None:
    with pytest.raises(UnauthenticatedError, match="printable characters in NFC"):
        declared(HERE, client_id)


def test_no_name_at_all_is_refused() -> None:
    with pytest.raises(UnauthenticatedError, match="got none"):
        declared(HERE, None)


def test_where_names_are_declared_reading_is_for_all_and_the_administration_for_this_machine() -> None:
    elsewhere = Peer("ipv4:192.0.2.7:1", {})
    assert DeclaredNameAuthenticator().admit(elsewhere, Scope.READ) == ""
    assert DeclaredNameAuthenticator().admit(Peer(HERE, {}), Scope.ADMIN) == ""
    with pytest.raises(UnauthenticatedError, match="this machine"):
        DeclaredNameAuthenticator().admit(elsewhere, Scope.ADMIN)


# -------------------------------------------------------------------------------------------------------- certificates

NOW_MS = 1_700_000_000_000
UNTIL = datetime.fromtimestamp(NOW_MS / 1000, UTC) + timedelta(hours=1)
KEY = Ed25519PrivateKey.generate()


def certificate(*names: str, marks: tuple[str, ...] = ()) -> bytes:
    subject = x509.Name(
        [
            *(x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names),
            *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, mark) for mark in marks),
        ]
    )
    made = x509.CertificateBuilder(subject, subject, KEY.public_key(), 1, UNTIL - timedelta(days=1), UNTIL).sign(
        KEY, None
    )
    return made.public_bytes(serialization.Encoding.PEM)


def shown(pem: bytes, *scopes: Scope, at_ms: int = NOW_MS, declares: str | None = None) -> str:
    metadata = {} if declares is None else {CLIENT_ID: client_id_to_metadata(declares)}
    return CertificateAuthenticator(ManualRuntime(at_ms)).admit(Peer("ipv4:192.0.2.7:1", metadata, pem), *scopes)


def scopes_of(*marks: str) -> set[Scope]:
    """What a certificate with these organisations is good for."""
    held = set()
    for scope in Scope:
        try:
            name = shown(certificate("alice", marks=marks), scope)
        except ForbiddenError:
            continue
        assert name == "alice"
        held.add(scope)
    return held


@pytest.mark.parametrize(
    ("marks", "scopes"),
    (
        ((), {Scope.SUBMIT}),
        (("Example Ltd", "hushsum"), {Scope.SUBMIT}),
        (("hushsum:read",), {Scope.READ}),
        (("hushsum:admin", "Example Ltd", "hushsum:submit"), {Scope.ADMIN, Scope.SUBMIT}),
        (("hushsum:submit", "hushsum:read", "hushsum:admin"), set(Scope)),
        (("hushsum:reed",), set()),
        (("hushsum:admin:read",), set()),
        (("HUSHSUM:ADMIN",), {Scope.SUBMIT}),
    ),
    ids=range(8),
)
def test_a_certificates_organisations_are_its_scopes(marks: tuple[str, ...], scopes: set[Scope]) -> None:
    assert scopes_of(*marks) == scopes


def test_a_certificates_common_name_is_the_client_id() -> None:
    name = "Käthe's till 17"
    assert shown(certificate(name), Scope.SUBMIT) == name
    assert shown(certificate(name), Scope.SUBMIT, declares=name) == name


def test_who_declares_another_name_than_its_certificates_is_refused_and_told_its_own() -> None:
    with pytest.raises(ForbiddenError, match="belongs to 'alice'") as caught:
        shown(certificate("alice"), Scope.SUBMIT, declares="mallory")
    assert "mallory" not in str(caught.value)


@pytest.mark.parametrize(
    "pem",
    (
        b"",
        b"hush-hush",
        certificate(),
        certificate("alice", "bob"),
        certificate("a\u200bb"),
        certificate("e\u0301"),
        certificate(marks=("hushsum:admin",)),
    ),
    ids=("none", "no PEM", "no name", "two names", "not printable", "not NFC", "a scope alone"),
)
def test_who_shows_no_certificate_that_is_good_is_told_one_sentence(pem: bytes) -> None:
    with pytest.raises(UnauthenticatedError) as caught:
        shown(pem, *Scope)
    assert str(caught.value) == NO_HOLDER


def test_a_certificate_is_good_until_it_expires_however_old_its_connection_is() -> None:
    until_ms = round(UNTIL.timestamp() * 1000)
    assert shown(certificate("alice"), Scope.SUBMIT, at_ms=until_ms - 1) == "alice"
    with pytest.raises(UnauthenticatedError, match="got none"):
        shown(certificate("alice"), Scope.SUBMIT, at_ms=until_ms)


def test_who_is_known_and_may_not_is_told_the_scope_that_is_missing() -> None:
    with pytest.raises(ForbiddenError, match="permission denied: this call requires the scope admin"):
        shown(certificate("alice"), Scope.ADMIN)
