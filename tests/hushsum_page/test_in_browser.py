"""The page in headless Chromium: nothing on its console, nothing for axe to say, read by pointer, keys and phone.

With ``HUSHSUM_SCREENSHOTS=DIR`` every view is also saved there as a picture. Those of docs/how-to/page.md are made with
``HUSHSUM_SCREENSHOTS=docs/page`` and ``-k documentation``.
"""

import os
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hushsum as hs
from hushsum.entropy import OsEntropy
from hushsum_page.viewer import Viewer
from tests.hushsum_page.page_releases import MAKERS, NAMED, central, saved, windows
from tests.plans import small_plan

CHROMIUM = shutil.which("chromium") or ""
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="Chromium is not installed: build_tools/browser.sh installs it")
ARGUMENTS = [
    *("--no-sandbox", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]
SCHEMES = ("light", "dark")
SCREENSHOTS = os.environ.get("HUSHSUM_SCREENSHOTS", "")
WAIT_MS = 120_000
FOUND_MS = 300_000  # changes among 100 windows, beside other tests
DOCS = Path(__file__).parents[2] / "docs"


PEOPLE = small_plan(
    record={"names": ["age", "income"], "units": ["years", "1,000"], "lower": [0, 0], "upper": [100, 80]},
    sketch={"rows": 400, "buckets": 256, "bandwidth": 12},
)
#: Of docs/how-to/page.md: a view, its theme, and the size of the window.
DOCUMENTED = {
    "release": ("people", "light", (1000, 1000)),
    "over-time": ("time", "dark", (1000, 640)),
    "compare": ("compare", "light", (1000, 940)),
    "phone": ("people", "dark", (390, 1000)),
}


def two_groups() -> Any:
    drawn = np.random.default_rng(1)
    young = drawn.normal([25, 20], [6, 5], (10_000, 2))
    return np.clip(np.concatenate([young, drawn.normal([55, 45], [10, 8], (10_000, 2))]), 0, [100, 80])


def save(page: Any, name: str, *, full: bool = True) -> None:
    """Saves a picture of a page where pictures are wanted, with as few bytes as its flat colours need."""
    if not SCREENSHOTS:
        return
    from PIL import Image

    path = Path(SCREENSHOTS) / f"{name}.png"
    page.screenshot(path=path, full_page=full)
    Image.open(path).convert("RGB").quantize(256).save(path, optimize=True)


class Seen:
    """A page in a browser, with all that it wrote on its console, and all that it asked."""

    def __init__(self, page: Any, base: str) -> None:
        self.page, self.base = page, base
        self.messages: list[str] = []
        self.asked: list[str] = []
        page.set_default_timeout(WAIT_MS)
        page.on("console", lambda message: self.messages.append(message.text))
        page.on("pageerror", lambda error: self.messages.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))

    def go(self, address: str) -> None:
        self.page.goto(self.base + address)

    def assert_silent(self) -> None:
        assert self.messages == []
        assert [url for url in self.asked if not url.startswith(f"{self.base}/")] == []

    def assert_accessible(self) -> None:
        from axe_playwright_python.sync_playwright import Axe

        found = Axe().run(self.page)
        assert found.violations_count == 0, found.generate_report()

    def assert_no_wider_than_its_window(self) -> None:
        wide, window = self.page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
        assert wide <= window


class Site:
    """The page over files, a browser, and where each release is."""

    def __init__(self, folder: Path, browser: Any) -> None:
        releases = {name: make() for name, make in MAKERS.items()}
        releases |= windows(small_plan(record=NAMED, sketch={"rows": 50}), 100)
        releases["people"] = central(PEOPLE, two_groups())
        releases["other"] = central(small_plan(record=NAMED), np.tile([5.0, 5.0], (500, 1)), seed=9)
        self.viewer = Viewer(saved(folder, releases), 0, entropy=OsEntropy(), clock=time.monotonic)
        self.viewer.server.start()
        self.base = self.viewer.address.partition("/sign-in")[0]
        self.browser = browser
        self.state: Any = None
        self.places = {"plans": "/"}
        with_state = browser.new_context()
        page = with_state.new_page()
        page.set_default_timeout(WAIT_MS)
        page.goto(self.viewer.address)
        page.wait_for_url(f"{self.base}/")
        self.state = with_state.storage_state()
        for plan in dict.fromkeys(re.findall(r'href="(/plans/[0-9a-f]{16})"', page.content())):
            for number in (1, 2):
                page.goto(f"{self.base}{plan}?page={number}")
                for address, file in re.findall(r'href="(/releases/[0-9a-f]{16})">([^<]*)\.hush<', page.content()):
                    self.places[file] = address
                    if file == "w99":
                        self.places |= {"plan": plan, "time": f"{plan}/time", "changes": f"{plan}/time?changes=yes"}
        first, second = (self.places[name][-16:] for name in ("w99", "w0"))
        self.places["compare"] = f"/compare?first={first}&second={second}"
        self.places["nothing compared"] = "/compare"
        self.places["missing"] = "/releases/0000000000000000"
        with_state.close()

    def open(self, **settings: Any) -> Seen:
        settings = {"viewport": {"width": 1180, "height": 900}, "storage_state": self.state, **settings}
        return Seen(self.browser.new_context(**settings).new_page(), self.base)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS, timeout=WAIT_MS)
        site = Site(tmp_path_factory.mktemp("site"), browser)
        try:
            yield site
        finally:
            site.viewer.server.stop()
            browser.close()


#: Looked at by axe in both themes, with all that opens open; the others in one theme.
DIFFERENT = ("plans", "plan", "compare", "hashed", "classes")
VIEWS = [*DIFFERENT, "time", "nothing compared", *(name.replace(" ", "-").replace(",", "") for name in MAKERS)]


@pytest.mark.long
@pytest.mark.parametrize("view", dict.fromkeys(VIEWS))
def test_a_view_is_silent_and_accessible_in_both_themes(site: Site, view: str) -> None:
    seen = site.open()
    for scheme in SCHEMES:
        seen.page.emulate_media(color_scheme=scheme)
        seen.go(site.places[view])
        if view in DIFFERENT:
            seen.page.evaluate("document.querySelectorAll('details').forEach(each => each.open = true)")
        if view in DIFFERENT or scheme == "dark":
            seen.assert_accessible()
        seen.assert_no_wider_than_its_window()
        seen.page.evaluate("document.querySelectorAll('details').forEach(each => each.open = false)")
        save(seen.page, f"{view.replace(' ', '-')}-{scheme}")
    seen.assert_silent()
    seen.page.context.close()


@pytest.mark.parametrize("view", ["plans", "plan", "hashed", "five-columns", "classes", "partition", "compare"])
def test_a_view_fits_a_phone(site: Site, view: str) -> None:
    seen = site.open(viewport={"width": 390, "height": 800}, color_scheme="dark", device_scale_factor=2)
    seen.go(site.places[view])
    seen.assert_no_wider_than_its_window()
    seen.assert_silent()
    save(seen.page, f"{view}-phone")
    seen.page.context.close()


@pytest.mark.parametrize("name", DOCUMENTED)
def test_the_documentation_shows_this_view(site: Site, name: str) -> None:
    view, scheme, (width, height) = DOCUMENTED[name]
    seen = site.open(viewport={"width": width, "height": height}, color_scheme=scheme)
    seen.go(site.places[view])
    save(seen.page, name, full=False)
    assert f"](../page/{name}.png)" in (DOCS / "how-to" / "page.md").read_text(encoding="utf-8")
    assert (DOCS / "page" / f"{name}.png").stat().st_size < 150_000
    seen.page.context.close()


def test_without_a_session_the_sign_in_is_silent_and_accessible(site: Site) -> None:
    seen = site.open(storage_state=None)
    for scheme in SCHEMES:
        seen.page.emulate_media(color_scheme=scheme)
        seen.go("/")
        assert seen.page.url == f"{site.base}/sign-in"
        seen.assert_accessible()
    seen.page.fill("#token", "wrong")
    seen.page.press("#token", "Enter")
    seen.page.wait_for_selector("[role=alert]")
    seen.assert_accessible()
    assert seen.messages == ["Failed to load resource: the server responded with a status of 403 (Forbidden)"]
    seen.page.context.close()


def test_what_stands_under_the_pointer_is_read_and_a_click_asks_there(site: Site) -> None:
    seen = site.open()
    seen.go(site.places["hashed"])
    picture = seen.page.locator("svg[data-asks]").first
    picture.scroll_into_view_if_needed()
    box = picture.bounding_box()
    at = (box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.3)
    seen.page.mouse.move(*at)
    seen.page.wait_for_selector("#reading .at")
    reading = seen.page.inner_text("#reading")
    width, depth = (float(each) for each in re.findall(r"= ([\d.]+)", reading))
    assert 1.5 < width < 3.5
    assert 5.5 < depth < 8.5
    seen.page.mouse.click(*at)
    seen.page.wait_for_selector("#answer table")
    release = hs.load(next(file.path for file in _files(site) if file.path.stem == "hashed"))
    asked = [float(seen.page.input_value(f"[name=c{number}]")) for number in (0, 1)]
    answer = release.kernel_sum([asked])
    assert f"{answer.value[0]:,.1f}" in seen.page.inner_text("#answer")
    assert np.allclose(asked, (width, depth), atol=0.05)  # a pixel: nothing has moved meanwhile
    assert f"c0={asked[0]:g}" in seen.page.url
    seen.assert_silent()
    seen.page.context.close()


def _files(site: Site) -> list[Any]:
    source: Any = site.viewer.source
    return list(source._files.values())


def test_another_picture_comes_without_a_new_page_and_back_leads_back(site: Site) -> None:
    seen = site.open()
    seen.go(site.places["hashed"])
    seen.page.evaluate("window.mark = 1")
    seen.page.select_option("[name=kind]", "pairs")
    seen.page.wait_for_selector(".kind-pairs")
    assert seen.page.evaluate("window.mark") == 1
    assert "kind=pairs" in seen.page.url
    seen.page.go_back()
    seen.page.wait_for_selector(".kind-density")
    seen.assert_silent()
    seen.page.context.close()


def test_all_of_it_works_without_scripts(site: Site) -> None:
    seen = site.open(java_script_enabled=False)
    seen.go(site.places["hashed"])
    seen.page.select_option("[name=kind]", "pairs")
    seen.page.click("text=Show")
    seen.page.wait_for_selector(".kind-pairs")
    seen.page.fill("[name=c0]", "3")
    seen.page.fill("[name=c1]", "7")
    seen.page.click("button:text-is('Ask')")
    seen.page.wait_for_selector("#answer table")
    assert seen.page.locator(".kind-pairs").count() == 1  # the picture stays as it was
    seen.page.context.close()


def test_keys_reach_everything(site: Site) -> None:
    seen = site.open()
    seen.go(site.places["classes"])
    seen.page.keyboard.press("Tab")
    assert seen.page.evaluate("document.activeElement.className") == "skip"
    seen.page.keyboard.press("Enter")
    reached = []
    for _ in range(40):
        seen.page.keyboard.press("Tab")
        reached.append(seen.page.evaluate("document.activeElement.name || document.activeElement.textContent.trim()"))
    assert {"kind", "x", "CSV", "PNG", "c0", "c1", "label", "Ask", "The same as tables"} <= set(reached)
    seen.page.context.close()


def test_changes_over_time_are_marked(site: Site) -> None:
    seen = site.open()
    seen.go(site.places["time"])
    assert seen.page.locator("circle.dot").count() == 200
    seen.page.click("text=Find changes")
    seen.page.wait_for_selector(
        "path.change", state="attached", timeout=FOUND_MS
    )  # the page asks by itself until they are found
    assert seen.page.locator("text=Looking for changes").count() == 0
    assert seen.page.locator("circle.dot").count() > 200  # where changes are largest, too
    for scheme in SCHEMES:
        seen.page.emulate_media(color_scheme=scheme)
        seen.assert_accessible()
        save(seen.page, f"changes-found-{scheme}")
    seen.assert_silent()
    seen.page.context.close()


def test_signing_out_leads_to_the_sign_in(site: Site) -> None:
    seen = site.open()
    seen.go("/")
    assert seen.page.locator("text=Sign out").count() == 1
    assert seen.page.evaluate("document.cookie") == ""  # no script can read the session
    seen.page.context.close()


def test_a_script_that_came_in_by_a_name_would_not_run(site: Site) -> None:
    """The second line of defence: were a name not escaped, the policy would stop it."""
    seen = site.open()
    seen.go("/")
    seen.page.evaluate("""() => {
        const planted = document.createElement('div');
        planted.innerHTML = '<img src="/missing" onerror="window.ran = 1">';
        document.body.append(planted);
        const script = document.createElement('script');
        script.textContent = 'window.ran = 2';
        document.body.append(script);
    }""")
    while sum("Content Security Policy" in each for each in seen.messages) < 2:  # one of each
        seen.page.wait_for_timeout(20)
    assert seen.page.evaluate("window.ran") is None
    seen.page.context.close()
