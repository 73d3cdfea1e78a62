"""Devices, analysts and shufflers reach a real service over TLS, with and without certificates of their own."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from aggregator.app import Service
from aggregator.auth.tokens import TokenTable, issue
from aggregator.config import Config as ServiceConfig
from aggregator.errors import ConfigError
from aggregator.model import Scope
from aggregator.shuffler.app import credentials_of
from aggregator.shuffler.app import running as shuffling
from aggregator.shuffler.forwarder import Upstream, UpstreamError
from aggregator.store.store import read_sealed
from edge_client import Config, Credentials, EdgeClient, FlushTimeoutError, SystemRuntime, UnreachableError
from hushsum import Sketch
from hushsum.entropy import OsEntropy
from hushsum.signing import DirectoryKey, Role, toml_of
from hushsum_proto.messages import Welcome
from hushsum_simulator.console import Console
from hushsum_simulator.errors import ServiceError
from tests.aggregator.shuffler.shuffled import KEY, shuffled_plan
from tests.authorities import Certified, expired, replace
from tests.plans import small_plan
from tests.services import NOW_MS, WINDOW, SetRuntime, config_of, service_of

PLAN = small_plan(window={"length": "3650d"})  # it does not end meanwhile
CONFIG = Config(backoff_first_s=0.02, backoff_longest_s=0.1, first_contact_s=0.05, close_flush_s=0.0)
RECORDS = np.linspace(0, 10, 20).reshape(10, 2)


@pytest.fixture
def site(tmp_path: Path) -> Certified:
    return Certified(tmp_path / "tls")


@asynccontextmanager
async def served(folder: Path, site: Certified, **settings: object) -> AsyncIterator[Service]:
    """A service that speaks TLS with a site's files."""
    async with service_of(
        config_of(folder, PLAN, **site.settings, **settings), SetRuntime(SystemRuntime().now_ms())
    ) as service:
        yield service


def target_of(service: Service, host: str = "localhost") -> str:
    return f"{host}:{service.grpc.rpartition(':')[2]}"


def device(service: Service, folder: Path, credentials: Credentials | None, name: str = "till-3") -> EdgeClient:
    return EdgeClient(
        target_of(service),
        spool=folder / f"{name}.db",
        client_id=name,
        config=CONFIG,
        credentials=credentials,
    )


async def contribute(service: Service, folder: Path, credentials: Credentials, name: str = "till-3") -> None:
    async with device(service, folder, credentials, name) as client:
        await client.add(RECORDS)
        await client.flush(120)
        assert client.status().acknowledged == 1


async def told(service: Service, folder: Path, credentials: Credentials | None) -> str:
    """What keeps a device from its first contact."""
    with pytest.raises(UnreachableError) as caught:
        await device(service, folder, credentials).__aenter__()
    return str(caught.value)


async def welcome_of(service: Service, credentials: Credentials) -> Welcome:
    async with Console(target_of(service), credentials) as console:
        return await console.welcome()


async def assert_counted(service: Service, folder: Path, operator: Credentials, batches: int) -> None:
    async with Console(target_of(service), operator) as console:
        window = await console.seal(early=True)
    sealed = read_sealed(folder / "data" / "store.db", PLAN, window)
    expected = Sketch(PLAN)
    for _ in range(batches):
        expected.add(RECORDS)
    assert sealed is not None
    assert np.array_equal(sealed.counters, expected.counters)


async def test_what_a_device_contributes_over_tls_is_counted(tmp_path: Path, site: Certified) -> None:
    async with served(tmp_path, site) as service:
        await contribute(service, tmp_path, site.believed)
        assert (await welcome_of(service, site.believed)).plan_id == PLAN.id
        await assert_counted(service, tmp_path, site.believed, 1)


async def test_what_goes_wrong_with_the_servers_certificate_is_told_in_plain_words(
    tmp_path: Path, site: Certified
) -> None:
    foreign, late = Certified(tmp_path / "foreign"), expired(tmp_path / "late")
    async with served(tmp_path, site) as service:
        for credentials in (foreign.believed, Credentials(tls=True)):
            said = await told(service, tmp_path, credentials)
            assert f"the certificate of {target_of(service)} is not signed by a trusted certificate authority" in said
            with pytest.raises(ServiceError, match="is not signed by a trusted certificate authority"):
                await welcome_of(service, credentials)
        other = Credentials(ca=site.ca, server_name="elsewhere.example")
        assert "is not valid for elsewhere.example" in await told(service, tmp_path, other)
        assert "it may require TLS, and this connection is unencrypted" in await told(service, tmp_path, None)
        (broken := tmp_path / "broken.pem").write_text("no certificate")
        assert "expected certificates in PEM" in await told(service, tmp_path, Credentials(ca=broken))
    async with served(tmp_path, late) as service:
        assert "has expired, by this machine's clock" in await told(service, tmp_path, late.believed)
    async with service_of(config_of(tmp_path, PLAN), SetRuntime(SystemRuntime().now_ms())) as service:
        assert "does not use TLS, expected TLS" in await told(service, tmp_path, site.believed)


async def test_with_mutual_tls_who_shows_no_certificate_of_the_authority_is_not_let_in(
    tmp_path: Path, site: Certified
) -> None:
    foreign = Certified(tmp_path / "foreign")
    asked = {"tls_client_ca": str(site.ca), "authentication": "certificate"}
    async with served(tmp_path, site, **asked) as service:
        for credentials in (site.believed, foreign.client("till-3", ca=site.ca)):
            assert "it may require a client certificate" in await told(service, tmp_path, credentials)
        with pytest.raises(ServiceError, match="may require a client certificate"):
            await welcome_of(service, site.believed)
        stranger = site.client("reader", "read")
        with pytest.raises(ServiceError, match="scope"):
            await welcome_of(service, stranger)

        await contribute(service, tmp_path, site.client("till-3"))
        await assert_counted(service, tmp_path, site.client("operator", "admin"), 1)


async def test_a_certificate_is_rotated_while_a_client_runs(tmp_path: Path, site: Certified) -> None:
    """The old connection goes on; a new one sees the new certificate, here of another authority."""
    new = Certified(tmp_path / "new")
    async with served(tmp_path, site) as service:
        believed = tmp_path / "believed.pem"
        believed.write_bytes(site.ca.read_bytes())
        async with device(service, tmp_path, Credentials(ca=believed)) as client:
            await client.add(RECORDS)
            await client.flush(120)
            replace(site.certificate, new.certificate.read_bytes())
            with pytest.raises(ServiceError, match="is not signed"):  # half rotated: the old one is still shown
                await welcome_of(service, new.believed)
            replace(site.key, new.key.read_bytes())
            assert (await welcome_of(service, new.believed)).plan_id == PLAN.id
            with pytest.raises(ServiceError, match="is not signed"):
                await welcome_of(service, site.believed)

            await client.add(RECORDS)
            await client.flush(120)  # on the connection that stands
        async with device(service, tmp_path, Credentials(ca=believed)) as client:
            await client.add(RECORDS)
            with pytest.raises(FlushTimeoutError, match="is not signed by a trusted certificate authority"):
                await client.flush(0.3)
            believed.write_bytes(new.ca.read_bytes())
            await client.flush(120)  # the file was read again
        await assert_counted(service, tmp_path, new.believed, 3)


async def add_until_it_is_refused(client: EdgeClient) -> None:
    """It takes the service a moment to see that its file has changed."""
    for _ in range(1000):
        await client.add(RECORDS)
        await client.flush(0.5)


async def test_tokens_are_shown_over_tls_and_a_rotated_one_is_found(tmp_path: Path, site: Certified) -> None:
    old, new = (issue(OsEntropy(), "till-3", [Scope.SUBMIT], now_ms=NOW_MS) for _ in range(2))
    operator = issue(OsEntropy(), "operator", [Scope.ADMIN], now_ms=NOW_MS)
    tokens, token = tmp_path / "tokens.jsonl", tmp_path / "token"
    replace(tokens, TokenTable([old.entry, operator.entry]).to_bytes())
    token.write_text(old.text)
    asked = {"authentication": "token", "tokens": str(tokens)}
    async with served(tmp_path, site, **asked) as service:
        shown = Credentials(token_file=token, ca=site.ca)
        await contribute(service, tmp_path, shown)
        replace(tokens, TokenTable([new.entry, operator.entry]).to_bytes())
        async with device(service, tmp_path, shown) as client:
            with pytest.raises(FlushTimeoutError, match="rejected the credentials of this client"):
                await add_until_it_is_refused(client)
            replace(token, new.text.encode())
            await client.flush(120)
            counted = client.status().acknowledged
        await assert_counted(service, tmp_path, Credentials(token=operator.text, ca=site.ca), counted)


async def test_a_shuffler_believes_its_gateway_by_certificate_and_shows_its_token(
    tmp_path: Path, site: Certified
) -> None:
    plan = shuffled_plan(window={"length": "1h", "lateness": "10m"})
    token = issue(OsEntropy(), "sh-1", [Scope.SUBMIT], now_ms=NOW_MS)
    replace(tmp_path / "tokens.jsonl", TokenTable([token.entry]).to_bytes())
    replace(tmp_path / "token", token.text.encode())
    KEY.save(tmp_path / "shuffler.pem")
    directory = tmp_path / "shufflers.toml"
    directory.write_text(toml_of(DirectoryKey("sh-1", Role.SHUFFLER, KEY.verify_key)))
    runtime = SetRuntime(NOW_MS)
    asked = {"authentication": "token", "tokens": str(tmp_path / "tokens.jsonl"), "shufflers": str(directory)}
    (tmp_path / "aggregator").mkdir()
    async with service_of(config_of(tmp_path / "aggregator", plan, **site.settings, **asked), runtime) as service:
        foreign = Upstream(target_of(service), "sh-1", Credentials(ca=Certified(tmp_path / "foreign").ca))
        with pytest.raises(UpstreamError, match="is not signed by a trusted certificate authority"):
            await foreign.fetch_plan()
        await foreign.close()

        settings = {
            "role": "shuffler",
            "data": str(tmp_path / "shuffler"),
            "listen": "127.0.0.1:0",
            "metrics_listen": "",
            "upstream": target_of(service),
            "upstream_ca": str(site.ca),
            "upstream_token": str(tmp_path / "token"),
            "shufflers": str(directory),
            "shuffler_key": str(tmp_path / "shuffler.pem"),
        }
        async with shuffling(ServiceConfig.of(**settings, **site.settings), runtime) as shuffler:
            assert shuffler.plan.id == plan.id
            believing = Credentials(ca=site.ca)
            async with Console(f"localhost:{shuffler.grpc.rpartition(':')[2]}", believing) as console:
                assert (await console.welcome()).window == WINDOW


async def test_a_shuffler_shows_a_certificate_where_its_gateway_asks_for_one(tmp_path: Path, site: Certified) -> None:
    plan = shuffled_plan(window={"length": "1h", "lateness": "10m"})
    KEY.save(tmp_path / "shuffler.pem")
    directory = tmp_path / "shufflers.toml"
    directory.write_text(toml_of(DirectoryKey("sh-1", Role.SHUFFLER, KEY.verify_key)))
    runtime = SetRuntime(NOW_MS)
    asked = {"authentication": "certificate", "tls_client_ca": str(site.ca), "shufflers": str(directory)}
    shown = site.client("sh-1")
    (tmp_path / "aggregator").mkdir()
    async with service_of(config_of(tmp_path / "aggregator", plan, **site.settings, **asked), runtime) as service:
        settings = {
            "role": "shuffler",
            "data": str(tmp_path / "shuffler"),
            "listen": "127.0.0.1:0",
            "metrics_listen": "",
            "start_s": 0.2,
            "upstream": target_of(service),
            "upstream_ca": str(site.ca),
            "shufflers": str(directory),
            "shuffler_key": str(tmp_path / "shuffler.pem"),
        }
        with pytest.raises(ConfigError, match=r"UNAVAILABLE: .*the plan is required at the first start"):
            async with shuffling(ServiceConfig.of(**settings), runtime):
                pass
        proof = {"upstream_cert": str(shown.certificate), "upstream_key": str(shown.key)}
        async with shuffling(ServiceConfig.of(**settings, **proof), runtime) as shuffler:
            assert shuffler.plan.id == plan.id


@pytest.mark.parametrize("settings", ({"upstream_token": "t"}, {"upstream_ca": "c"}, {}), ids="-".join)
def test_a_shufflers_token_never_goes_in_plaintext_to_another_machine(settings: dict[str, str]) -> None:
    needed = {"role": "shuffler", "data": "d", "shuffler_key": "k", "shufflers": "s", "insecure": True}
    shown = credentials_of(ServiceConfig.of(**needed, **settings, upstream="gateway.example:7443"))
    assert shown.speaks_tls("gateway.example:7443") == bool(settings)
