"""The operator's views of a service whose log is Kafka and whose store is PostgreSQL, with each role in its process."""

import asyncio
import re
import signal
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import httpx2
import pytest

from aggregator.auth.tokens import TokenTable, change_table, issue
from aggregator.model import Scope
from hushsum.entropy import OsEntropy
from hushsum_proto.answers import Status
from hushsum_simulator.testbed.kafka import KafkaBroker
from hushsum_simulator.testbed.postgres import Postgres
from hushsum_simulator.testbed.process import free_port
from tests.brokers import fresh_prefix
from tests.hushsum_page.test_in_browser import ARGUMENTS, CHROMIUM, WAIT_MS, Seen
from tests.integration.test_cluster import PLAN, WINDOW, seal
from tests.processes import Aggregator
from tests.services import Contributor, RawClient

PARTITIONS: Final = 3
VIEWS: Final = {
    "/service": "Service",
    "/windows": "Windows",
    "/ledger": "Ledger",
    "/tokens": "Tokens",
    "/audit": "Audit log",
}
LOOK_S: Final = 0.2


@asynccontextmanager
async def signed_in(base: str, token: str) -> AsyncIterator[httpx2.AsyncClient]:
    """Somebody who has signed in to the page at an address."""
    async with httpx2.AsyncClient(base_url=base, follow_redirects=True, timeout=120) as reader:
        (form_token,) = re.findall(r'name="form_token" value="([^"]+)"', (await reader.get("/sign-in")).text)
        sent = {"form_token": form_token, "token": token}
        assert (await reader.post("/sign-in", data=sent, headers={"origin": base})).status_code == 200
        yield reader


async def seen(reader: httpx2.AsyncClient, address: str) -> str:
    """The text of a view, without its markup."""
    found = await reader.get(address)
    assert found.status_code == 200, found.text
    return " ".join(re.sub(r"<[^>]+>", " ", found.text).split())


async def lags(reader: httpx2.AsyncClient) -> dict[int, int]:
    """The lag of each partition whose lag is known, as the view of the service shows it."""
    found = (await reader.get("/service")).text
    rows = re.findall(r'<th scope="row">([0-9]+)</th><td class="number">([0-9,]+)</td>', found)
    return {int(number): int(lag.replace(",", "")) for number, lag in rows}


async def until_lags_are(reader: httpx2.AsyncClient, total: int) -> None:
    """Returns once every partition has a lag, and all together this one."""
    async with asyncio.timeout(180):
        while True:
            found = await lags(reader)
            if len(found) == PARTITIONS and sum(found.values()) == total:
                return
            await asyncio.sleep(LOOK_S)


async def send(address: str, contributors: list[Contributor], first: int) -> None:
    """A delta of each, one after another, so that each is a message of its own."""
    for number, contributor in enumerate(contributors, first):
        async with RawClient(address, f"client-{number}") as client:
            answer = await client.submit_one(PLAN.id, contributor.delta()[1])
        assert answer.status is Status.ACKNOWLEDGED


def look_in_a_browser(base: str, token: str) -> None:
    """Every view is there, and nothing is written on the console."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS, timeout=WAIT_MS)
        found = Seen(browser.new_page(), base)
        found.go("/sign-in")
        found.page.fill("#token", token)
        found.page.press("#token", "Enter")
        found.page.wait_for_url(f"{base}/")
        for address, heading in VIEWS.items():
            found.go(address)
            assert found.page.inner_text("h1").lower() == heading.lower()
            found.assert_accessible()
        found.assert_silent()
        browser.close()


@pytest.mark.long
async def test_operators_see_a_service_of_three_processes_as_it_is(
    tmp_path: Path, kafka: KafkaBroker, postgres: Postgres
) -> None:
    (tmp_path / "plan.json").write_bytes(PLAN.bundle)
    admin = issue(OsEntropy(), "Ann", [Scope.ADMIN], now_ms=round(1000 * time.time()), expires_ms=None)
    device = issue(OsEntropy(), "till-7", [Scope.SUBMIT], now_ms=round(1000 * time.time()), expires_ms=None)
    change_table(tmp_path / "tokens.jsonl", lambda _: TokenTable([admin.entry, device.entry]))
    shared: dict[str, object] = {
        "plan": str(tmp_path / "plan.json"),
        "log": "kafka",
        "store": "postgresql",
        "partitions": PARTITIONS,
        "manual": True,
        "kafka_bootstrap": kafka.bootstrap,
        "kafka_prefix": fresh_prefix(),
        "checkpoint_s": 0.5,
    }
    bases = {role: f"127.0.0.1:{free_port()}" for role in ("gateway", "releaser")}
    dsn = postgres.fresh_database()
    made = {"worker": Aggregator(tmp_path, "worker", {**shared, "role": "worker"}, dsn)}
    for role, address in bases.items():
        paged = {"role": role, "page_listen": address, "tokens": str(tmp_path / "tokens.jsonl")}
        made[role] = Aggregator(tmp_path, role, {**shared, **paged}, dsn)
    async with AsyncExitStack() as stack, asyncio.timeout(420):
        for each in made.values():
            await each.start()
            stack.push_async_callback(each.stop, signal.SIGKILL)
        gateway, releaser = await made["gateway"].address(), await made["releaser"].address()
        await made["worker"].listening()
        contributors = [Contributor(PLAN, stream + 1, window=WINDOW) for stream in range(10)]
        pages = [await stack.enter_async_context(signed_in(f"http://{each}", admin.text)) for each in bases.values()]
        for page, role in zip(pages, bases, strict=True):
            for address, heading in VIEWS.items():
                assert heading in await seen(page, address)
            assert f"role of this process {role}" in await seen(page, "/service")
            assert "Nothing is spent yet" in await seen(page, "/ledger")
            tokens = await seen(page, "/tokens")
            assert ("Ann" in tokens, "till-7" in tokens) == (True, True)

        await send(gateway, contributors[:4], 0)
        for page in pages:
            await until_lags_are(page, 0)
            assert "every entry is in a checkpoint" in await seen(page, "/service")
        assert "acknowledged 4" in await seen(pages[0], "/service")
        assert "This process has answered no delta" in await seen(pages[1], "/service")

        # Without a worker nothing is read: each message is one more that is in no checkpoint.
        assert await made["worker"].stop() == 0
        await send(gateway, contributors[4:], 4)
        for page in pages:
            await until_lags_are(page, len(contributors) - 4)
            assert f"{len(contributors) - 4} entries are not in a checkpoint yet" in await seen(page, "/service")
        await made["worker"].start()
        await made["worker"].listening()
        for page in pages:
            await until_lags_are(page, 0)

        await seal(releaser)
        for page in pages:
            assert re.search(rf"{WINDOW:,} .*? sealed an operator", await seen(page, "/windows"))
        async with RawClient(releaser) as client:
            await client.release()
        for page in pages:
            assert re.search(rf"{WINDOW:,} .*? released", await seen(page, "/windows"))
            assert re.search(rf"{PLAN.name} {WINDOW:,} ", await seen(page, "/ledger"))
            if CHROMIUM:
                await asyncio.to_thread(look_in_a_browser, str(page.base_url).rstrip("/"), admin.text)
        assert [await each.stop() for each in made.values()] == [0, 0, 0]
    for each in made.values():
        assert "Traceback" not in each.output.read_text(), each.name
