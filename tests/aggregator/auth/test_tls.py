"""What gRPC shows is read again when the files change, and a broken new file changes nothing."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import pytest
from structlog.testing import capture_logs

from aggregator.auth import tls
from aggregator.auth.tls import RenewingTls, connection_options, server_credentials
from aggregator.config import Config
from aggregator.errors import ConfigError
from hushsum_proto.v1 import wire_pb2 as pb
from hushsum_proto.v1 import wire_pb2_grpc as stubs
from tests.authorities import Certified, replace
from tests.plans import small_plan
from tests.services import config_of, service_of

NEEDED = {"plan": "plan.toml", "data": "data"}


@pytest.fixture
def site(tmp_path: Path) -> Certified:
    return Certified(tmp_path / "tls")


def renewing_of(site: Certified) -> RenewingTls:
    return RenewingTls(site.certificate, site.key, site.ca, lambda: 0.0)


def test_without_a_certificate_there_is_plaintext() -> None:
    assert server_credentials(Config.of(**NEEDED), lambda: 0.0) is None


def test_files_that_did_not_change_are_not_read_again(site: Certified) -> None:
    renewing = renewing_of(site)

    assert [renewing() for _ in range(3)] == [None, None, None]


def test_a_new_certificate_is_shown_once_and_the_journal_says_so(site: Certified) -> None:
    renewing = renewing_of(site)
    site.serve()
    with capture_logs() as lines:
        assert renewing() is not None
        assert renewing() is None

    assert [line["event"] for line in lines] == ["TLS certificate reloaded"]


@pytest.mark.parametrize("broken", ("certificate", "key", "ca"))
@pytest.mark.parametrize("how", ("empty", "text", "gone"))
def test_a_broken_new_file_keeps_the_old_one_and_is_told_once(site: Certified, broken: str, how: str) -> None:
    renewing = renewing_of(site)
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
    renewing = renewing_of(site)
    before = site.certificate.read_bytes()
    after = site.serve().certificate
    replace(site.certificate, before)
    with capture_logs() as lines:
        assert renewing() is None
    assert "not the private key of the certificate" in lines[0]["error"]

    replace(site.certificate, after)
    assert renewing() is not None


def test_a_passing_failure_at_a_renewal_is_tried_again_and_told_once(
    site: Certified, monkeypatch: pytest.MonkeyPatch
) -> None:
    renewing = renewing_of(site)
    site.serve()

    def busy(*_: object) -> None:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patch, capture_logs() as lines:
        patch.setattr(Path, "open", busy)
        assert [renewing(), renewing()] == [None, None]
    assert [line["log_level"] for line in lines] == ["error"]
    assert renewing() is not None, "nothing has changed since, and it is shown"
    assert renewing() is None


def test_a_bundle_of_authorities_is_taken_whole_or_not_at_all(site: Certified) -> None:
    """Cut off, it would be one of fewer authorities, and their clients would be strangers."""
    one = site.ca.read_bytes()
    most = 2**20 // len(one)
    replace(site.ca, one * most)
    renewing = renewing_of(site)
    replace(site.ca, one * (most + 1))
    with capture_logs() as lines:
        assert renewing() is None
    assert "ca.pem: larger than 1048576 bytes" in lines[0]["error"]
    with pytest.raises(ConfigError, match=r"^tls_client_ca: .*ca.pem: larger than 1048576 bytes"):
        renewing_of(site)


async def for_ever(ask: Callable[[], Awaitable[object]]) -> None:
    while True:
        await ask()


async def test_a_connection_of_an_authority_that_was_replaced_ends(
    site: Certified, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "CONNECTION_S_MAX", 0.2)
    settings = {**site.settings, "authentication": "certificate", "tls_client_ca": str(site.ca)}
    shown = site.client("till-3", ca=tmp_path / "believed.pem")
    (tmp_path / "believed.pem").write_bytes(site.ca.read_bytes())
    async with service_of(config_of(tmp_path, small_plan(), **settings)) as service:
        target = f"localhost:{service.grpc.rpartition(':')[2]}"
        async with shown.channel(target, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            stub = stubs.CollectionStub(channel)
            request = pb.HelloRequest(protocol_versions=[1])
            for _ in range(3):
                await stub.Hello(request, timeout=60, wait_for_ready=True)
            replace(site.ca, Certified(tmp_path / "another").ca.read_bytes())
            # Without an end of connections this goes on for ever.
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await asyncio.wait_for(for_ever(lambda: stub.Hello(request, timeout=60)), 120)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


def test_only_where_certificates_are_asked_for_do_connections_end(site: Certified) -> None:
    assert connection_options(Config.of(**NEEDED)) == []
    assert connection_options(Config.of(**NEEDED, **site.settings)) == []
    options = dict(connection_options(Config.of(**NEEDED, **site.settings, tls_client_ca=str(site.ca))))
    assert options == {"grpc.max_connection_age_ms": 3_600_000, "grpc.max_connection_age_grace_ms": 600_000}


def test_nothing_of_a_key_is_ever_told(site: Certified) -> None:
    renewing = renewing_of(site)
    secret = site.key.read_text().splitlines()[1]
    replace(site.key, site.key.read_bytes().replace(b"PRIVATE", b"PUBLIC"))
    with capture_logs() as lines:
        renewing()

    assert lines
    assert secret not in repr(lines)


def test_a_key_that_others_may_read_is_refused(site: Certified) -> None:
    site.key.chmod(0o640)
    with pytest.raises(
        ConfigError, match=r"^tls_key: .*mode 640, the private key is accessible to other users: chmod 600"
    ):
        server_credentials(Config.of(**NEEDED, **site.settings), lambda: 0.0)


@pytest.mark.parametrize(
    ("setting", "file"), (("tls_cert", "certificate"), ("tls_key", "key"), ("tls_client_ca", "ca"))
)
def test_a_start_without_a_file_names_the_setting(site: Certified, setting: str, file: str) -> None:
    getattr(site, file).unlink()
    with pytest.raises(ConfigError, match=rf"^{setting}: .*No such file"):
        server_credentials(Config.of(**NEEDED, **site.settings, tls_client_ca=str(site.ca)), lambda: 0.0)
