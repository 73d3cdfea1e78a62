"""`hushsum keys certificates`: files with which a service and its clients speak TLS at once."""

import json
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from aggregator.observability.http import MutualTls
from hushsum_proto.certificates import certificates_in, check_pair
from tests.hushsum_cli.calling import Hushsum


def make(hushsum: Hushsum, out: Path, *arguments: str) -> list[dict[str, str]]:
    ended = hushsum("keys", "certificates", "--out", str(out), "--json", *arguments)
    assert ended.status == 0, ended.err
    made: list[dict[str, str]] = json.loads(ended.out)
    return made


def read(path: Path) -> x509.Certificate:
    return certificates_in(path.read_bytes(), "certificate")[0]


def test_one_call_makes_an_authority_a_service_and_clients(hushsum: Hushsum, tmp_path: Path) -> None:
    out = tmp_path / "tls"
    made = make(
        hushsum, out, "--host", "gateway", "--host", "10.0.0.7", "--client", "till-3", "--client", "a:read,admin"
    )

    assert [each["name"] for each in made] == ["ca", "server", "till-3", "a"]
    for each in made:
        certificate, key = Path(each["certificate"]), Path(each["private_key_file"])
        check_pair(certificate.read_bytes(), key.read_bytes())
        assert key.stat().st_mode & 0o777 == 0o600
        read(certificate).verify_directly_issued_by(read(out / "ca.pem"))
    names = read(out / "server.pem").extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["gateway"]
    assert [str(each) for each in names.get_values_for_type(x509.IPAddress)] == ["10.0.0.7"]
    assert read(out / "till-3.pem").subject.rfc4514_string() == "CN=till-3,O=hushsum:submit"
    assert read(out / "a.pem").subject.rfc4514_string() == "CN=a,O=hushsum:admin,O=hushsum:read"


def test_an_authority_of_an_earlier_run_signs_for_more(hushsum: Hushsum, tmp_path: Path) -> None:
    make(hushsum, tmp_path / "tls", "--host", "gateway")
    more = make(hushsum, tmp_path / "more", "--authority", str(tmp_path / "tls"), "--client", "till-4", "--days", "7")

    assert [each["name"] for each in more] == ["till-4"]
    made = read(tmp_path / "more" / "till-4.pem")
    made.verify_directly_issued_by(read(tmp_path / "tls" / "ca.pem"))
    assert (made.not_valid_after_utc - made.not_valid_before_utc).days == 7


def test_nothing_is_overwritten_and_then_nothing_is_written(hushsum: Hushsum, tmp_path: Path) -> None:
    make(hushsum, tmp_path, "--host", "gateway")
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    ended = hushsum("keys", "certificates", "--out", str(tmp_path), "--client", "till-3")

    assert ended.status == 1
    assert "already exists: nothing was written" in ended.err
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_what_cannot_be_made_is_one_line(hushsum: Hushsum, tmp_path: Path) -> None:
    for arguments, status, message in (
        ((), 2, "no --host and no --client given"),
        (("--client", "ca"), 2, "neither 'ca' nor 'server'"),
        (("--client", "../x"), 2, "expected letters, digits"),
        (("--client", "x", "--client", "x:read"), 2, "given twice"),
        (("--client", "x:write"), 1, "scope: got 'write', expected submit, read, admin"),
        (("--client", "x" * 65), 1, "expected 1 to 64 characters"),
        (("--host", "gateway:7443"), 1, "host: got 'gateway:7443'"),
        (("--host", "gateway", "--authority", str(tmp_path)), 1, "ca.pem: No such file"),
    ):
        ended = hushsum("keys", "certificates", "--out", str(tmp_path / "tls"), *arguments)
        assert ended.status == status, arguments
        assert message in ended.err
    assert not (tmp_path / "tls").exists()


def test_a_service_takes_them_and_a_device_believes_them(hushsum: Hushsum, tmp_path: Path) -> None:
    """The options of both sides take these very files; the service is not there."""
    make(hushsum, tmp_path, "--host", "localhost", "--client", "till-3")
    shown = ("--ca", "ca.pem", "--cert", "till-3.pem", "--cert-key", "till-3.key")
    paths = [str(tmp_path / each) if each.endswith((".pem", ".key")) else each for each in shown]
    ended = hushsum("release", "list", "--from", "127.0.0.1:1", *paths)
    assert ended.status == 1
    assert "no service answers here" in ended.err


def test_the_certificate_that_the_help_shows_for_metrics_is_let_in_there(hushsum: Hushsum, tmp_path: Path) -> None:
    make(hushsum, tmp_path / "m", "--client", "prometheus:admin", "--client", "till-3", "--host", "localhost")
    tls = MutualTls(tmp_path / "m/server.pem", tmp_path / "m/server.key", tmp_path / "m/ca.pem", lambda: 0.0)
    shown = {name: read(tmp_path / f"m/{name}.pem").public_bytes(Encoding.DER) for name in ("prometheus", "till-3")}
    assert tls.admits(shown["prometheus"])
    assert not tls.admits(shown["till-3"])
    assert not tls.admits(b"no certificate")
