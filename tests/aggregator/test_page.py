"""The web page of a running service: its releases, its tokens, its TLS, and an event loop of its own."""

import html
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

import hushsum as hs
from aggregator.app import Service
from aggregator.auth.tokens import IssuedToken, TokenTable, change_table, issue
from aggregator.config import Config
from aggregator.errors import ConfigError
from aggregator.model import Scope
from aggregator.page import ServiceSource, hosts_of, proxy_of
from hushsum.entropy import OsEntropy
from hushsum_page.settings import ProxySignOn
from hushsum_simulator.testbed.process import free_port
from tests.aggregator.test_check import checked
from tests.authorities import Certified
from tests.plans import small_plan
from tests.services import NOW_MS, WINDOW, Contributor, RawClient, SetRuntime, config_of, service_of

PLAN = small_plan(record={"names": ["width", "depth"]})
SECRET = "a secret of the proxy"


def token_of(*scopes: Scope, name: str = "Rita", expires_ms: int | None = None) -> IssuedToken:
    return issue(OsEntropy(), name, scopes, now_ms=NOW_MS, expires_ms=expires_ms)


def tokens_file(folder: Path, *issued: IssuedToken) -> Path:
    path = folder / "tokens.jsonl"
    change_table(path, lambda _: TokenTable(each.entry for each in issued))
    return path


def page_config(folder: Path, *issued: IssuedToken, **settings: object) -> Config:
    tokens = {"tokens": str(tokens_file(folder, *issued))} if issued else {}
    return config_of(folder, PLAN, page_listen="127.0.0.1:0", **{**tokens, **settings})


@asynccontextmanager
async def visiting(service: Service, **settings: Any) -> AsyncIterator[httpx2.AsyncClient]:
    scheme = "https" if settings.get("verify") else "http"
    base = f"{scheme}://{service.page.replace('127.0.0.1', 'localhost')}"
    async with httpx2.AsyncClient(base_url=base, timeout=60, **settings) as client:
        yield client


async def signed_in(client: httpx2.AsyncClient, token: IssuedToken) -> int:
    """The status of the sign-in."""
    form = await client.get("/sign-in")
    found = re.search(r'name="form_token" value="([^"]+)"', form.text)
    assert found is not None
    answer = await client.post("/sign-in", data={"form_token": found[1], "token": token.text})
    return int(answer.status_code)


async def test_the_page_shows_what_the_service_has_published(tmp_path: Path) -> None:
    reader = token_of(Scope.READ)
    config = page_config(tmp_path, reader)
    async with service_of(config) as service, RawClient(service.grpc) as device, visiting(service) as client:
        assert await signed_in(client, reader) == 200
        home = (await client.get("/")).text
        assert "nothing released yet" in home
        assert f"next: window {WINDOW:,}, its seal is due at" in home
        await device.submit_one(PLAN.id, Contributor(PLAN, 7).delta(30)[1])
        await device.seal()
        await device.release()

        address = re.findall(r'"(/releases/[0-9a-f]{16})"', (await client.get("/")).text)[0]
        data = (await client.get(f"{address}/release.hush")).content
        assert data == await service.catalog.release("tumbling", WINDOW)
        (tmp_path / "got.hush").write_bytes(data)
        answer = hs.load(tmp_path / "got.hush").kernel_sum([[3.0, 7.0]])
        page = await client.get(f"{address}?c0=3&c1=7")
        assert f"{answer.value[0]:,.1f}" in page.text
        assert hs.load(tmp_path / "got.hush").statement() in html.unescape(page.text)
        assert (await client.get(f"/plans/{PLAN.hex_id[:16]}/time")).status_code == 200


async def test_windows_are_read_once_in_a_second_unless_something_is_published(tmp_path: Path) -> None:
    import asyncio

    runtime, read = SetRuntime(), []
    async with service_of(config_of(tmp_path, PLAN), runtime) as service, RawClient(service.grpc) as device:
        now_s = [0.0]
        source = ServiceSource(service.catalog, asyncio.get_running_loop(), lambda: now_s[0])
        whole = service.catalog.releases

        async def counted(first_window: int | None) -> list[Any]:
            read.append(first_window)
            return await whole(first_window)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(service.catalog, "releases", counted)
            for _ in range(3):
                assert (await source.plans())[0].outcomes == ()
            assert len(read) == 1
            await device.seal()
            await device.release()
            assert len((await source.plans())[0].outcomes) == 1
            assert len(read) == 2
            now_s[0] = 1.0
            await source.plans()
            assert len(read) == 3


async def test_only_tokens_that_may_read_or_administer_open_it(tmp_path: Path) -> None:
    reader, admin, device = token_of(Scope.READ), token_of(Scope.ADMIN, name="Ann"), token_of(Scope.SUBMIT, name="d")
    expired = token_of(Scope.READ, expires_ms=NOW_MS - 1000)
    config = page_config(tmp_path, reader, admin, device, expired, authentication="token")
    async with service_of(config) as service:
        for token, status in ((reader, 200), (admin, 200), (device, 403), (expired, 403), (token_of(Scope.READ), 403)):
            async with visiting(service) as client:
                assert await signed_in(client, token) == status
                assert (await client.get("/")).status_code == (200 if status == 200 else 303)


async def test_a_token_that_is_revoked_ends_its_sessions(tmp_path: Path) -> None:
    reader = token_of(Scope.READ)
    config = page_config(tmp_path, reader)
    async with service_of(config) as service, visiting(service) as client:
        assert await signed_in(client, reader) == 200
        assert (await client.get("/")).status_code == 200
        tokens_file(tmp_path, token_of(Scope.READ, name="other"))
        assert service.tokens is not None
        await service.tokens.look()
        assert (await client.get("/")).status_code == 303


async def test_a_session_ends_by_the_clock_of_the_service(tmp_path: Path) -> None:
    class Later(SetRuntime):
        ahead_s = 0.0

        def monotonic(self) -> float:
            return super().monotonic() + self.ahead_s

    runtime, reader = Later(), token_of(Scope.READ)
    config = page_config(tmp_path, reader)
    async with service_of(config, runtime) as service, visiting(service) as client:
        assert await signed_in(client, reader) == 200
        assert (await client.get("/")).status_code == 200
        runtime.ahead_s = 31 * 60
        async with visiting(service, cookies=dict(client.cookies)) as later:
            assert (await later.get("/")).status_code == 303


async def test_the_page_speaks_tls_and_takes_renewed_certificates(tmp_path: Path) -> None:
    certified, reader = Certified(tmp_path / "certificates"), token_of(Scope.READ)
    context = ssl.create_default_context(cafile=certified.ca)
    config = page_config(tmp_path, reader, **certified.settings)
    async with service_of(config) as service:
        async with visiting(service, verify=context) as client:
            assert await signed_in(client, reader) == 200
            assert "__Host-hushsum" in dict(client.cookies)
            assert (await client.get("/")).status_code == 200
        certified.serve("elsewhere.example")
        async with visiting(service, verify=context) as client:
            with pytest.raises(httpx2.ConnectError, match="not valid for 'localhost'"):
                await client.get("/sign-in")


async def test_a_proxy_signs_callers_on(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.touch(mode=0o600)
    path.write_text(f"{SECRET}\n")
    config = page_config(tmp_path, page_proxy_header="X-User", page_proxy_secret=str(path))
    async with service_of(config) as service, visiting(service) as client:
        good = {"X-User": "Pat", "X-Hushsum-Proxy-Secret": SECRET}
        assert "Pat" in (await client.get("/", headers=good)).text
        assert (await client.get("/", headers={"X-User": "Pat"})).status_code == 303


async def test_what_the_page_computes_does_not_hold_up_the_service(tmp_path: Path) -> None:
    """Every thread of the page is busy for as long as the test says; devices get their answers."""
    import asyncio
    import threading

    from hushsum_page import analyst_views

    reader, free = token_of(Scope.READ), threading.Event()
    config = page_config(tmp_path, reader)
    async with service_of(config) as service, RawClient(service.grpc) as device, visiting(service) as client:
        assert await signed_in(client, reader) == 200
        await device.seal()
        await device.release()
        address = re.findall(r'"(/releases/[0-9a-f]{16})"', (await client.get("/")).text)[0]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(analyst_views, "panels_of", lambda *_: free.wait())
            waiting = [asyncio.create_task(client.get(f"{address}/figure.csv?hold1={at}")) for at in range(4)]
            try:
                await device.hello(PLAN.id)
                assert (await client.get("/")).status_code == 200  # nor its own pages that need no thread
            finally:
                free.set()
            await asyncio.gather(*waiting)


async def test_the_page_is_off_unless_it_has_an_address(tmp_path: Path) -> None:
    async with service_of(config_of(tmp_path, PLAN)) as service:
        assert service.page == ""


async def test_a_check_tries_what_the_page_needs(tmp_path: Path) -> None:
    reader = token_of(Scope.READ)
    config = page_config(tmp_path, reader)
    assert (await checked(config))["page_listen 127.0.0.1:0"] == ""
    busy = config.model_copy(update={"page_listen": f"127.0.0.1:{free_port()}"})
    async with service_of(busy):
        found = (await checked(busy.model_copy(update={"data": tmp_path / "other"})))[f"page_listen {busy.page_listen}"]
        assert "cannot be used: Address already in use" in found


async def test_an_address_that_is_in_use_stops_the_start(tmp_path: Path) -> None:
    reader = token_of(Scope.READ)
    busy = page_config(tmp_path, reader).model_copy(update={"page_listen": f"127.0.0.1:{free_port()}"})
    async with service_of(busy):
        with pytest.raises(ConfigError, match=r"^page_listen: 127.0.0.1:\d+ cannot be used: Address already in use"):
            async with service_of(busy.model_copy(update={"data": tmp_path / "other"})):
                raise AssertionError("it has started")


@pytest.mark.parametrize(
    ("listen", "hosts", "expected"),
    [
        ("127.0.0.1:7445", "", {"127.0.0.1", "::1", "localhost"}),
        ("127.0.0.1:7445", "Stats.example", {"127.0.0.1", "::1", "localhost", "stats.example"}),
        ("0.0.0.0:7445", "a.example, b.example", {"a.example", "b.example"}),
        ("[::1]:7445", "", {"127.0.0.1", "::1", "localhost"}),
    ],
)
def test_the_names_that_browsers_may_ask_for(listen: str, hosts: str, expected: set[str], tmp_path: Path) -> None:
    config = page_config(tmp_path, token_of(Scope.READ), page_hosts=hosts, insecure=True)
    assert hosts_of(config.model_copy(update={"page_listen": listen})) == expected


@pytest.mark.parametrize(
    ("text", "mode", "message"),
    [(SECRET, 0o644, "accessible to other users"), ("short", 0o600, "at least 16"),
     ("two\nlines" * 3, 0o600, "one line"), ("é" * 20, 0o600, "one line")],
)  # fmt: skip
def test_a_secret_of_a_proxy_that_protects_nothing_is_refused(
    text: str, mode: int, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "secret"
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    config = page_config(tmp_path, page_proxy_header="X-User", page_proxy_secret=str(path))
    with pytest.raises(ConfigError, match=message):
        proxy_of(config)
    path.chmod(0o600)
    path.write_text(SECRET)
    assert proxy_of(config) == ProxySignOn("x-user", SECRET)
    assert SECRET not in repr(proxy_of(config))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"page_listen": "127.0.0.1:1"}, "page_listen: requires tokens"),
        ({"page_hosts": "a.example"}, "page_hosts: allowed only with page_listen"),
        ({"page_listen": "7445"}, "page_listen: got '7445': expected host:port"),
        (
            {"page_listen": "127.0.0.1:1", "page_proxy_header": "X-User"},
            "page_proxy_header: requires page_proxy_secret",
        ),
        ({"page_listen": "127.0.0.1:1", "page_proxy_header": "X User"}, "page_proxy_header: got 'X User'"),
        ({"page_listen": "10.0.0.1:1", "tokens": "t"}, "page_listen: unencrypted connections are allowed only on"),
        (
            {"page_listen": "0.0.0.0:1", "tokens": "t", "tls_cert": "c", "tls_key": "k"},
            "page_hosts: required with page_listen = 0.0.0.0:1",
        ),
    ],
)
def test_settings_of_the_page_that_do_not_fit_are_refused_by_name(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        Config.of(plan="plan.json", data="data", **settings)
    assert str(error.value).startswith(message)
