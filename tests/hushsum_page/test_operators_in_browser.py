"""The operator's views of real services in headless Chromium: silent, accessible, in both themes and on a phone.

Pictures are saved as those of ``test_in_browser.py``: with ``HUSHSUM_SCREENSHOTS=DIR``, and those of
docs/how-to/page.md with ``HUSHSUM_SCREENSHOTS=docs/page`` and ``-k documentation``.
"""

import asyncio
import html
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from aggregator.app import Service
from aggregator.auth.tokens import IssuedToken, TokenTable, change_table, issue
from aggregator.model import Scope
from hushsum.entropy import OsEntropy
from hushsum.plan import Plan
from tests.authorities import Certified
from tests.hushsum.local_plans import report_plan
from tests.hushsum_page.test_in_browser import ARGUMENTS, CHROMIUM, DOCS, SCHEMES, WAIT_MS, Seen, save
from tests.plans import secure_plan, small_plan
from tests.services import NOW_MS, WINDOW, Contributor, RawClient, SetRuntime, config_of, service_of

T = TypeVar("T")

pytestmark = pytest.mark.skipif(not CHROMIUM, reason="Chromium is not installed: build_tools/browser.sh installs it")

DAY_MS = 86_400_000
TELEMETRY = Plan.from_fields(
    {
        **{
            key: value
            for key, value in small_plan(privacy={"unit": "client", "records_per_client": 3, "total_epsilon": 40})
            .to_fields()
            .items()
            if key != "format"
        },
        "name": "telemetry",
    }
)
SHORT = small_plan(privacy={"unit": "client", "records_per_client": 3, "total_epsilon": 3})
VIEWS = {"service": "/service", "windows": "/windows", "ledger": "/ledger", "tokens": "/tokens", "audit": "/audit"}
#: Of docs/how-to/page.md: a view, its theme, and the size of the window.
DOCUMENTED = {"ledger": ("light", (1000, 760)), "confirm": ("dark", (1000, 420))}


def tokens_of(folder: Path, *issued: IssuedToken) -> str:
    path = folder / "tokens.jsonl"
    change_table(path, lambda _: TokenTable(each.entry for each in issued))
    return str(path)


def token_of(name: str, *scopes: Scope, days: int | None = None) -> IssuedToken:
    expires_ms = None if days is None else NOW_MS + days * DAY_MS
    return issue(OsEntropy(), name, scopes, now_ms=NOW_MS, expires_ms=expires_ms)


async def _released(service: Service, windows: int) -> None:
    """Windows with a delta each, sealed and released; the one after them stays open."""
    plan = service.plan
    await service.store.open_windows(plan.id, WINDOW, WINDOW + windows)
    async with RawClient(service.grpc) as device:
        for _ in range(windows):
            await device.seal()
            await device.release()


async def _empty(_: Service) -> None:
    """A service as it starts."""


async def _exhausted(service: Service) -> None:
    await _released(service, 3)
    async with RawClient(service.grpc) as device:
        await device.seal()
        with pytest.raises(Exception, match="window"):
            await device.release()


async def _busy(service: Service) -> None:
    """Released windows, one that is sealed, one that is open; deltas that were taken and refused."""
    await _released(service, 24)
    async with RawClient(service.grpc) as device:
        contributor = Contributor(service.plan, 7)
        for _ in range(9):
            await device.submit_one(service.plan.id, contributor.delta(1, window=WINDOW + 9000)[1])
        await device.submit_one(service.plan.id, contributor.delta(1, window=WINDOW - 9)[1])
        await device.seal()
    await service.store.open_windows(service.plan.id, WINDOW + 25, WINDOW + 26)


async def _many(service: Service) -> None:
    await service.store.open_windows(service.plan.id, WINDOW, WINDOW + 99)
    async with RawClient(service.grpc) as device:
        for _ in range(3):
            await device.seal()


SERVICES: dict[str, tuple[Plan, Callable[[Service], Awaitable[None]]]] = {
    "central": (TELEMETRY, _busy),
    "empty": (small_plan(), _empty),
    "exhausted": (SHORT, _exhausted),
    "many windows": (small_plan(), _many),
    "secure": (secure_plan(), _empty),
    "local": (report_plan(), _empty),
}


class Services:
    """Running services in a thread with an event loop of their own, and a browser."""

    def __init__(self, folder: Path, browser: Any) -> None:
        self.browser, self.bases, self.states = browser, dict[str, str](), dict[str, Any]()
        self.admin = token_of("Ann", Scope.ADMIN, days=90)
        self._folder, self._loop = folder, asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._stack = AsyncExitStack()
        self._run(self._start())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(300)

    async def _start(self) -> None:
        for name, (plan, prepare) in SERVICES.items():
            folder = self._folder / name.replace(" ", "-")
            folder.mkdir()
            service = await self._stack.enter_async_context(self._service(folder, plan, name))
            await prepare(service)
            self.bases[name] = f"{'https' if name == 'empty' else 'http'}://{service.page}"

    @asynccontextmanager
    async def _service(self, folder: Path, plan: Plan, name: str) -> AsyncIterator[Service]:
        tokens = [self.admin]
        more: dict[str, object] = {}
        if name == "central":
            tokens += [
                token_of("grafana", Scope.READ),
                token_of("till-7", Scope.SUBMIT, days=30),
                token_of("till-8", Scope.SUBMIT, days=-1),
            ]
        if name == "empty":
            certified = Certified(folder / "certificates")
            more = {"tls_cert": str(certified.certificate), "tls_key": str(certified.key)}
        path = tokens_of(folder, *tokens)
        config = config_of(folder, plan, page_listen="127.0.0.1:0", tokens=path, **more)
        async with service_of(config, SetRuntime()) as service:
            yield service

    def open(self, name: str, **settings: Any) -> Seen:
        """A browser that is signed in to a service."""
        if name not in self.states:
            context = self.browser.new_context(ignore_https_errors=True)
            page = context.new_page()
            page.set_default_timeout(WAIT_MS)
            page.goto(f"{self.bases[name]}/sign-in")
            page.fill("#token", self.admin.text)
            page.press("#token", "Enter")
            page.wait_for_url(f"{self.bases[name]}/", timeout=WAIT_MS)
            self.states[name] = context.storage_state()
            context.close()
        shared = {"viewport": {"width": 1180, "height": 900}, "ignore_https_errors": True}
        settings = {**shared, "storage_state": self.states[name], **settings}
        return Seen(self.browser.new_context(**settings).new_page(), self.bases[name])

    def close(self) -> None:
        self._run(self._stack.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Services]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS, timeout=WAIT_MS)
        running = Services(tmp_path_factory.mktemp("services"), browser)
        try:
            yield running
        finally:
            running.close()
            browser.close()


@pytest.mark.long
@pytest.mark.parametrize("name", SERVICES)
def test_operators_views_are_silent_and_accessible_in_both_themes(services: Services, name: str) -> None:
    seen = services.open(name)
    for view, address in VIEWS.items():
        for scheme in SCHEMES:
            seen.page.emulate_media(color_scheme=scheme)
            seen.go(address)
            assert seen.page.inner_text("h1").lower() in {view, "audit log"}
            seen.page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
            if scheme == "dark" or name == "central":
                seen.assert_accessible()
            seen.assert_no_wider_than_its_window()
            seen.page.evaluate("document.querySelectorAll('details').forEach(each => each.open = false)")
            save(seen.page, f"operators-{name.replace(' ', '-')}-{view}-{scheme}")
    seen.assert_silent()
    seen.page.context.close()


@pytest.mark.parametrize("name", ["central", "exhausted"])
def test_operators_views_fit_a_phone(services: Services, name: str) -> None:
    phone = {"viewport": {"width": 390, "height": 800}, "color_scheme": "dark", "device_scale_factor": 2}
    seen = services.open(name, **phone)
    for view, address in VIEWS.items():
        seen.go(address)
        seen.assert_no_wider_than_its_window()
        save(seen.page, f"operators-{name}-{view}-phone")
    seen.assert_silent()
    seen.page.context.close()


@pytest.mark.parametrize("has_scripts", [True, False], ids=["scripts", "no scripts"])
def test_a_token_is_issued_by_the_form_and_revoked_by_its_link(services: Services, *, has_scripts: bool) -> None:
    seen = services.open("empty", java_script_enabled=has_scripts)
    name = f"Ben-{has_scripts}"
    for scheme in SCHEMES:
        seen.page.emulate_media(color_scheme=scheme)
        seen.go("/tokens")
        seen.page.fill("[name=name]", name)
        seen.page.check("[value=admin]")
        seen.page.click("text=Issue…")
        assert name in seen.page.inner_text("main")
        if has_scripts:
            seen.assert_accessible()
        seen.assert_no_wider_than_its_window()
        save(seen.page, f"operators-confirm-{scheme}")
        seen.page.click("text=Cancel")
        assert seen.page.url.endswith("/tokens")
        seen.page.go_back()
    seen.page.click("button:text-is('Issue the token')")
    token = seen.page.inner_text(".secret")
    assert re.fullmatch(r"hushsum_[0-9a-f]{16}_[A-Za-z0-9_-]{43}\s*", token)
    if has_scripts:
        seen.assert_accessible()
        save(seen.page, "operators-done-dark")
    seen.go("/tokens")
    seen.page.click(f"[aria-label='Revoke token {token[8:24]}']")
    seen.page.click("button:text-is('Revoke the token')")
    assert "is revoked" in seen.page.inner_text("[role=status]")
    seen.go("/audit")
    text = seen.page.inner_text("tbody")
    assert "issue token" in text
    assert "revoke token" in text
    assert token.strip().split("_", 2)[2] not in seen.page.content()
    if has_scripts:
        seen.assert_accessible()
        save(seen.page, "operators-audit-dark")
    seen.assert_silent()
    seen.page.context.close()


def test_a_window_is_sealed_and_released_by_the_keyboard(services: Services) -> None:
    seen = services.open("many windows")
    seen.go("/windows")
    for link, button, said in (
        ("Seal early", "Seal", f"Window {WINDOW + 3} is sealed."),
        ("Release", "Release", f"Window {WINDOW} is released"),
    ):
        seen.go("/windows")
        seen.page.focus(f"a.act:has-text('{link}')")
        seen.page.keyboard.press("Enter")
        seen.page.wait_for_url("**/confirm?*")
        seen.page.focus(f"button:text-is('{button}')")
        seen.page.keyboard.press("Enter")
        seen.page.wait_for_selector("[role=status]")
        assert said in html.unescape(seen.page.inner_text("[role=status]"))
    seen.assert_silent()
    seen.page.context.close()


def test_a_failure_is_a_page_that_says_why(services: Services) -> None:
    seen = services.open("exhausted")
    seen.go(f"/confirm?action=release&window={WINDOW + 3}")
    seen.page.click("button:text-is('Release')")
    assert "stays sealed" in seen.page.inner_text("[role=alert]")
    seen.assert_accessible()
    assert seen.messages == [
        "Failed to load resource: the server responded with a status of 422 (Unprocessable Entity)"
    ]
    seen.page.reload()  # which sends the form once more
    assert "was sent before" in seen.page.inner_text("[role=alert]")
    seen.page.context.close()


@pytest.mark.parametrize("name", DOCUMENTED)
def test_the_documentation_shows_this_operators_view(services: Services, name: str) -> None:
    scheme, (width, height) = DOCUMENTED[name]
    seen = services.open("central", viewport={"width": width, "height": height}, color_scheme=scheme)
    seen.go("/ledger" if name == "ledger" else f"/confirm?action=release&window={WINDOW + 24}")
    save(seen.page, name, full=False)
    assert f"](../page/{name}.png)" in (DOCS / "how-to" / "page.md").read_text(encoding="utf-8")
    assert (DOCS / "page" / f"{name}.png").stat().st_size < 150_000
    seen.page.context.close()
