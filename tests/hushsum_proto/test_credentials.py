"""What a client shows and whom it believes; and what gRPC's words about TLS mean."""

from pathlib import Path

import pytest
from cryptography import x509

from hushsum_proto.certificates import certificates_in, check_pair
from hushsum_proto.credentials import Credentials, is_loopback
from hushsum_proto.errors import CredentialsError
from hushsum_proto.handshakes import explanation
from tests.authorities import Certified

HERE = ("localhost:7443", "127.0.0.1:7443", "[::1]:7443", "ipv4:127.0.0.2:1", "unix:/tmp/socket", "dns:///localhost:1")
ELSEWHERE = ("sensors.example:7443", "10.0.0.7:7443", "localhost.example:7443", "dns:///example:80", "0.0.0.0:1", "")
TRIED = "failed to connect to all addresses; last error: "
FAILED = f"{TRIED}UNKNOWN: ipv4:127.0.0.1:1: Tls handshake failed (TSI_PROTOCOL_FAILURE): SSL_ERROR_SSL: error:1:SSL "
VERIFY = f"{FAILED}routines:OPENSSL_internal:CERTIFICATE_VERIFY_FAILED"


@pytest.fixture
def site(tmp_path: Path) -> Certified:
    return Certified(tmp_path / "tls")


@pytest.mark.parametrize("target", HERE)
def test_to_this_machine_plaintext_is_spoken_unless_something_asks_for_tls(target: str, site: Certified) -> None:
    assert is_loopback(target)
    assert not Credentials().speaks_tls(target)
    assert not Credentials(token="hushsum_x").speaks_tls(target)
    for asking in (Credentials(tls=True), site.believed, site.client("till-3"), Credentials(tls=True, insecure=True)):
        assert asking.speaks_tls(target)


@pytest.mark.parametrize("target", ELSEWHERE)
def test_to_another_machine_tls_is_spoken_unless_it_is_said_not_to(target: str, site: Certified) -> None:
    assert not is_loopback(target)
    assert Credentials().speaks_tls(target)
    assert Credentials(ca=site.ca, insecure=True).speaks_tls(target)
    assert not Credentials(insecure=True).speaks_tls(target)


def test_a_token_from_a_file_is_read_each_time_and_a_fixed_one_never_changes(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one\n")
    read, fixed = Credentials(token=file), Credentials(token=file).fixed()
    file.write_text("two\n")

    assert read.metadata() == (("authorization", "Bearer two"),)
    assert fixed.metadata() == (("authorization", "Bearer one"),)
    assert (read.renewable, fixed.renewable, Credentials().renewable) == (True, False, False)


@pytest.mark.parametrize("text", ("", "\n \n", "two\nlines", "sch\u00f6n", "nul\0"), ids=ascii)
def test_what_is_no_token_is_refused_and_never_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "token").write_text(text)
    for token in (tmp_path / "token", text):
        with pytest.raises(CredentialsError, match=r"^token: expected a line of printable ASCII, got something else$"):
            Credentials(token=token).metadata()


def test_a_certificate_may_be_renewed_unless_a_fixed_token_decides(site: Certified) -> None:
    shown = site.client("till-3")
    assert shown.renewable
    assert not Credentials(token="x", certificate=shown.certificate, key=shown.key).renewable
    with pytest.raises(CredentialsError, match="belong together"):
        Credentials(certificate=shown.certificate)


async def test_files_that_cannot_be_used_are_told_by_name(site: Certified, tmp_path: Path) -> None:
    shown, other = site.client("till-3"), site.client("till-4")
    (text := tmp_path / "text.pem").write_text("text")
    for wrong, message in (
        (Credentials(ca=tmp_path / "none.pem"), "ca: .*none.pem cannot be read: No such file"),
        (Credentials(ca=text), "ca: .*text.pem: expected certificates in PEM"),
        (Credentials(certificate=text, key=shown.key), "certificate: expected certificates in PEM"),
        (Credentials(certificate=shown.certificate, key=text), "key: expected a private key in PEM"),
        (Credentials(certificate=shown.certificate, key=other.key), "key: this is not the private key"),
    ):
        with pytest.raises(CredentialsError, match=message):
            wrong.channel("localhost:1", ())


def test_a_secret_is_in_no_repr() -> None:
    assert "secret" not in repr(Credentials(token="secret"))


def test_certificates_say_who_may_do_what_and_belong_to_their_keys(site: Certified, tmp_path: Path) -> None:
    shown = site.client("analyst", "read", "admin")
    assert shown.certificate is not None
    assert shown.key is not None
    pem, key = shown.certificate.read_bytes(), shown.key.read_bytes()
    (found,) = certificates_in(pem, "certificate")
    (authority,) = certificates_in(site.ca.read_bytes(), "ca")
    found.verify_directly_issued_by(authority)
    assert found.subject.rfc4514_string() == "CN=analyst,O=hushsum:admin,O=hushsum:read"
    constraints = found.extensions.get_extension_for_class(x509.BasicConstraints)
    assert not constraints.value.ca
    assert constraints.critical
    usage = found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]
    check_pair(pem, key)
    with pytest.raises(CredentialsError, match="not the private key"):
        check_pair(pem, site.key.read_bytes())


@pytest.mark.parametrize("host", ("", "a b", "host:7443", "*.example", "schön"))
def test_what_is_no_host_gets_no_certificate(site: Certified, host: str) -> None:
    with pytest.raises(CredentialsError, match=r"^host: "):
        site.serve("good.example", host)


@pytest.mark.parametrize(
    ("details", "meaning"),
    (
        (
            f"{VERIFY}: unable to get local issuer certificate: OK",
            "the certificate of h:1 is not signed by an authority",
        ),
        (f"{VERIFY}: self signed certificate in certificate chain: OK", "is not signed by an authority"),
        (f"{VERIFY}: certificate has expired: OK", "the certificate of h:1 has expired"),
        (f"{VERIFY}: certificate is not yet valid: OK", "is not valid yet"),
        (f"{VERIFY}: unsupported certificate purpose: OK", "is not one for servers"),
        (f"{VERIFY}: something new: OK", "is not believed here: something new"),
        (
            f"{TRIED}UNKNOWN: ipv4:1: Custom verification check failed with error: Hostname Verification Check failed.",
            "the certificate of h:1 is not one for this host",
        ),
        (
            f"{FAILED}routines:OPENSSL_internal:WRONG_VERSION_NUMBER: x: OK",
            "h:1 does not speak TLS, and this side does",
        ),
        (f"{FAILED}routines:OPENSSL_internal:NEW_THING: x: OK", "TLS with h:1 failed: ipv4:127.0.0.1:1: Tls handshake"),
        (f"{TRIED}UNAVAILABLE: ipv4:127.0.0.1:1: Socket closed", "it may ask for a certificate of this side"),
    ),
    ids=range(10),
)
def test_what_grpc_says_of_tls_has_plain_words(details: str, meaning: str) -> None:
    told = explanation(details, "h:1", tls=True)
    assert told is not None
    assert meaning in told


def test_what_is_not_about_tls_stays_as_it_is() -> None:
    refused = f"{TRIED}UNKNOWN: ipv4:127.0.0.1:1: Failed to connect to remote host: Connection refused"
    for details in (refused, "Socket closed", "this service is shutting down", ""):
        assert explanation(details, "h:1", tls=True) is None
        assert explanation(details, "h:1", tls=False) is None
    closed = f"{TRIED}UNAVAILABLE: ipv4:127.0.0.1:1: Socket closed"
    assert "it may speak TLS" in str(explanation(closed, "h:1", tls=False))
