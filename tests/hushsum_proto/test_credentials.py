"""What a client shows and whom it believes; and what gRPC's words about TLS mean."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import grpc
import grpc.aio
import pytest
from cryptography import x509

from hushsum_proto.certificates import certificates_in, check_pair
from hushsum_proto.credentials import Credentials, is_loopback
from hushsum_proto.errors import CredentialsError
from hushsum_proto.handshakes import explanation
from hushsum_proto.v1 import wire_pb2 as pb
from hushsum_proto.v1 import wire_pb2_grpc as stubs
from hushsum_simulator.console import Console
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


@pytest.mark.parametrize("target", ELSEWHERE)
def test_nothing_but_the_credentials_themselves_lets_a_token_go_in_plaintext(target: str, site: Certified) -> None:
    with pytest.raises(CredentialsError, match=r"^token: it would be sent unencrypted to"):
        Credentials(token="hushsum_x").in_plaintext(target)
    assert not Credentials().in_plaintext(target).speaks_tls(target)
    assert not Credentials(token="hushsum_x", insecure=True).in_plaintext(target).speaks_tls(target)
    assert Credentials(token="hushsum_x", ca=site.ca).in_plaintext(target).speaks_tls(target)
    with pytest.raises(CredentialsError, match="sent unencrypted"):
        Console(target, Credentials(token="hushsum_x"), insecure=True)


@pytest.mark.parametrize("target", HERE)
def test_on_this_machine_it_may(target: str) -> None:
    assert not Credentials(token="hushsum_x").in_plaintext(target).speaks_tls(target)


def options_of(credentials: Credentials, target: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """What gRPC is told of a channel."""
    told = list[dict[str, object]]()

    def channel(*_: object, options: Sequence[tuple[str, object]]) -> None:
        told.append(dict(options))

    monkeypatch.setattr(grpc.aio, "insecure_channel", channel)
    monkeypatch.setattr(grpc.aio, "secure_channel", channel)
    credentials.channel(target, [("grpc.enable_http_proxy", 1), ("grpc.keepalive_time_ms", 7)])
    (options,) = told
    assert options["grpc.keepalive_time_ms"] == 7
    return options


@pytest.mark.parametrize("target", (*HERE, *ELSEWHERE))
def test_a_proxy_sees_tls_to_another_machine_and_nothing_else(
    target: str, site: Certified, monkeypatch: pytest.MonkeyPatch
) -> None:
    for credentials in (Credentials(insecure=True), Credentials(token="hushsum_x", insecure=True)):
        assert options_of(credentials, target, monkeypatch)["grpc.enable_http_proxy"] == 0
    proxied = options_of(Credentials(ca=site.ca), target, monkeypatch)["grpc.enable_http_proxy"]
    assert proxied == (target in ELSEWHERE)


async def test_no_token_reaches_a_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real proxy that lets everything through; a token to this machine goes there in plaintext."""
    came = list[bytes]()

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(await reader.readuntil(b"\r\n\r\n"))
        writer.close()

    async with await asyncio.start_server(proxy, "127.0.0.1", 0) as listening:
        address = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        for name in ("http_proxy", "https_proxy", "grpc_proxy"):
            monkeypatch.setenv(name, address)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("no_grpc_proxy", raising=False)
        for wanted, credentials, target in (
            (False, Credentials(token="hushsum_x"), "127.0.0.1:1"),
            (False, Credentials(token="hushsum_x", insecure=True), "192.0.2.1:1"),
            (True, Credentials(token="hushsum_x"), "192.0.2.1:1"),
        ):
            channel = credentials.channel(target, [("grpc.use_local_subchannel_pool", 1)])
            with pytest.raises(grpc.aio.AioRpcError):
                await stubs.CollectionStub(channel).Hello(
                    pb.HelloRequest(), metadata=credentials.metadata(), timeout=0.3
                )
            await channel.close()
            assert [line.split()[:2] for line in came] == ([[b"CONNECT", b"192.0.2.1:1"]] * len(came))
            assert bool(came) == wanted


def test_a_token_from_a_file_is_read_each_time_and_a_fixed_one_never_changes(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("one\n")
    read, fixed = Credentials(token_file=file), Credentials(token_file=str(file)).fixed()
    file.write_text("two\n")

    assert read.metadata() == (("authorization", "Bearer two"),)
    assert fixed.metadata() == (("authorization", "Bearer one"),)
    assert (read.renewable, fixed.renewable, Credentials().renewable) == (True, False, False)


@pytest.mark.parametrize("text", ("", "\n \n", "two\nlines", "sch\u00f6n", "nul\0"), ids=ascii)
def test_what_is_no_token_is_refused_and_never_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "token").write_text(text)
    for credentials in (Credentials(token_file=tmp_path / "token"), Credentials(token=text)):
        with pytest.raises(CredentialsError, match=r"^token: expected a line of printable ASCII, got something else$"):
            credentials.metadata()


def test_a_token_and_the_file_of_one_are_never_guessed_apart(tmp_path: Path) -> None:
    with pytest.raises(
        CredentialsError, match="token: got a path, expected the token itself; use token_file for a file"
    ):
        Credentials(token=tmp_path / "token")  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(CredentialsError, match="got both token and token_file, expected one of them"):
        Credentials(token="hushsum_x", token_file=tmp_path / "token")
    (tmp_path / "token").write_text("hushsum_x")
    assert Credentials(token_file=str(tmp_path / "token")).metadata() == Credentials(token="hushsum_x").metadata()


async def test_every_path_may_be_a_string(site: Certified) -> None:
    shown = site.client("till-3")
    as_text = Credentials(ca=str(site.ca), certificate=str(shown.certificate), key=str(shown.key))
    assert as_text.renewable
    assert as_text.speaks_tls("localhost:1")
    await as_text.channel("localhost:1", []).close()


def test_a_certificate_may_be_renewed_unless_a_fixed_token_decides(site: Certified) -> None:
    shown = site.client("till-3")
    assert shown.renewable
    assert not Credentials(token="x", certificate=shown.certificate, key=shown.key).renewable
    with pytest.raises(CredentialsError, match="expected both a certificate and its private key"):
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
    pem, key = Path(shown.certificate).read_bytes(), Path(shown.key).read_bytes()
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
            "the certificate of h:1 is not signed by a trusted certificate authority",
        ),
        (
            f"{VERIFY}: self signed certificate in certificate chain: OK",
            "is not signed by a trusted certificate authority",
        ),
        (f"{VERIFY}: certificate has expired: OK", "the certificate of h:1 has expired"),
        (f"{VERIFY}: certificate is not yet valid: OK", "is not valid yet"),
        (f"{VERIFY}: unsupported certificate purpose: OK", "is not a server certificate"),
        (f"{VERIFY}: something new: OK", "is not trusted: something new"),
        (
            f"{TRIED}UNKNOWN: ipv4:1: Custom verification check failed with error: Hostname Verification Check failed.",
            "the certificate of h:1 is not valid for this host",
        ),
        (
            f"{FAILED}routines:OPENSSL_internal:WRONG_VERSION_NUMBER: x: OK",
            "h:1 does not use TLS, expected TLS",
        ),
        (f"{FAILED}routines:OPENSSL_internal:NEW_THING: x: OK", "TLS with h:1 failed: ipv4:127.0.0.1:1: Tls handshake"),
        (f"{TRIED}UNAVAILABLE: ipv4:127.0.0.1:1: Socket closed", "it may require a client certificate"),
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
    assert "it may require TLS" in str(explanation(closed, "h:1", tls=False))
