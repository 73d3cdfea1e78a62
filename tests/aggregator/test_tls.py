"""What gRPC shows is read again when the files change, and a broken new file changes nothing."""

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from aggregator.callers.tls import Renewing, TlsFiles, server_credentials
from aggregator.config import Config
from aggregator.errors import ConfigError
from tests.authorities import Certified, replace

NEEDED = {"plan": "plan.toml", "data": "data"}


@pytest.fixture
def site(tmp_path: Path) -> Certified:
    return Certified(tmp_path / "tls")


def files_of(site: Certified) -> TlsFiles:
    return TlsFiles(site.certificate, site.key, site.ca)


def test_without_a_certificate_there_is_plaintext() -> None:
    assert server_credentials(Config.of(**NEEDED)) is None


def test_files_that_did_not_change_are_not_read_again(site: Certified) -> None:
    renewing = Renewing(files_of(site))

    assert [renewing() for _ in range(3)] == [None, None, None]


def test_a_new_certificate_is_shown_once_and_the_journal_says_so(site: Certified) -> None:
    renewing = Renewing(files_of(site))
    site.serve()
    with capture_logs() as lines:
        assert renewing() is not None
        assert renewing() is None

    assert [line["event"] for line in lines] == ["a new certificate is shown from now on"]


@pytest.mark.parametrize("broken", ("certificate", "key", "ca"))
@pytest.mark.parametrize("how", ("empty", "text", "gone"))
def test_a_broken_new_file_keeps_the_old_one_and_is_told_once(site: Certified, broken: str, how: str) -> None:
    renewing = Renewing(files_of(site))
    path: Path = getattr(site, broken)
    good = path.read_bytes()
    if how == "gone":
        path.unlink()
    else:
        replace(path, b"" if how == "empty" else b"-----BEGIN CERTIFICATE-----\nno\n-----END CERTIFICATE-----\n")
    with capture_logs() as lines:
        assert [renewing(), renewing()] == [None, None]
    assert [line["log_level"] for line in lines] == ["error"]
    assert path.name in lines[0]["error"]

    replace(path, good)
    assert renewing() is not None


def test_the_key_of_another_certificate_is_broken_until_its_certificate_is_there(site: Certified) -> None:
    renewing = Renewing(files_of(site))
    before = site.certificate.read_bytes()
    after = site.serve().certificate
    replace(site.certificate, before)
    with capture_logs() as lines:
        assert renewing() is None
    assert "not the private key of the certificate" in lines[0]["error"]

    replace(site.certificate, after)
    assert renewing() is not None


def test_nothing_of_a_key_is_ever_told(site: Certified) -> None:
    renewing = Renewing(files_of(site))
    secret = site.key.read_text().splitlines()[1]
    replace(site.key, site.key.read_bytes().replace(b"PRIVATE", b"PUBLIC"))
    with capture_logs() as lines:
        renewing()

    assert lines
    assert secret not in repr(lines)


def test_a_key_that_others_may_read_is_refused(site: Certified) -> None:
    site.key.chmod(0o640)
    with pytest.raises(ConfigError, match=r"^tls_key: .*mode 640, others may use this key: chmod 600"):
        server_credentials(Config.of(**NEEDED, **site.settings))


@pytest.mark.parametrize(
    ("setting", "file"), (("tls_cert", "certificate"), ("tls_key", "key"), ("tls_client_ca", "ca"))
)
def test_a_start_without_a_file_names_the_setting(site: Certified, setting: str, file: str) -> None:
    getattr(site, file).unlink()
    with pytest.raises(ConfigError, match=rf"^{setting}: .*No such file"):
        server_credentials(Config.of(**NEEDED, **site.settings, tls_client_ca=str(site.ca)))
