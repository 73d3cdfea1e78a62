"""What a hostile page, a hostile file, or a hostile neighbour may try: each attempt, and that it fails."""

import asyncio
import html
import re
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest

import hushsum as hs
from hushsum.errors import HushsumError, ReleaseError
from hushsum_page.app import REQUESTS_OF_ONE_MAX
from hushsum_page.figures import safe_name
from hushsum_page.files import FilesSource
from hushsum_page.library import BEGUN_MAX, BEGUN_OF_ONE_MAX, Library
from hushsum_page.middleware import HEADERS, POLICY
from hushsum_page.sessions import IDLE_S_MAX, SESSION_S_MAX, SESSIONS_MAX, SESSIONS_OF_ONE_MAX, Holder
from hushsum_page.settings import ProxySignOn
from hushsum_page.site import ADMIN, View, may_see
from hushsum_page.source import MissingReleaseError, OutcomeEntry, PlanEntry
from hushsum_page.workers import BoundedCache, BusyError, Workers
from tests.hushsum_page.page_releases import (
    BASE,
    MAKERS,
    NAMED,
    WINDOW,
    Browser,
    address_of,
    browser_of,
    central,
    points,
    saved,
    windows,
)
from tests.plans import classed_plan, small_plan

HOSTILE = "<img src=x onerror=alert(1)>\"'`{{7*7}}</title></script><script>alert(1)</script>"
ALL_ADDRESSES = ("/", "/compare", "/plans/{plan}", "/plans/{plan}/time", "{release}", "{release}/at?c0=1&c1=1",
                 "{release}/figure.csv", "{release}/figure.png", "{release}/release.hush", "/sign-in", "/nowhere",
                 "/compare.csv?first=x&second=y", "/static/{static}")  # fmt: skip


def addresses(browser: Browser, file: str = "today.hush") -> list[str]:
    """Every kind of address."""
    home = browser.get("/").text
    plan = re.findall(r'"/plans/([0-9a-f]{16})"', home)[0]
    static = re.findall(r'"/static/([^"]+)"', home)[0]
    release = address_of(browser, file)
    return [each.format(plan=plan, release=release, static=static) for each in ALL_ADDRESSES]


class Tokens:
    """Accounts with tokens by their names; a token is revoked by removing it."""

    asks_for = "a token"

    def __init__(self) -> None:
        self.known = {"reader-token": Holder("Rita", may_read=True, may_administer=False, proof="r")}

    def holder_of(self, token: str) -> Holder | None:
        return self.known.get(token)

    def is_good(self, holder: Holder) -> bool:
        return holder in self.known.values()


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    return browser_of(tmp_path, {"today": MAKERS["hashed"]()})


@pytest.fixture
def stranger(tmp_path: Path) -> Browser:
    """Not signed in, where callers sign in with tokens."""
    return Browser(FilesSource(saved(tmp_path, {"today": MAKERS["hashed"]()})), accounts=Tokens())


def form_token(page: str) -> str:
    found = re.search(r'name="form_token" value="([^"]+)"', page)
    assert found is not None
    return found[1]


def sign_in(browser: Browser, token: str = "reader-token", **headers: str) -> Any:
    fields = {"form_token": form_token(browser.get("/sign-in").text), "token": token}
    return browser.post("/sign-in", fields, **headers)


# ----------------------------------------------------------------------------------------------- names that are markup


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Browser:
    """Releases of a plan whose every name is markup, in files whose names are as well."""
    fields = classed_plan("red", HOSTILE[:60], record={"names": [HOSTILE[:80], "=cmd()"], "units": [HOSTILE[:9], "@m"]})
    tables = {key: value for key, value in fields.to_fields().items() if key != "format"}
    plan = hs.Plan.from_fields({**tables, "name": HOSTILE})
    releases = {
        f"<b>{at}</b>": central(plan, points(), WINDOW + at, labels=["red", HOSTILE[:60]] * 250, seed=at)
        for at in range(2)
    }
    folder = tmp_path_factory.mktemp("hostile")
    paths = []
    for number, release in enumerate(releases.values()):
        path = folder / f"<img src=x onerror=alert({number})>.hush"
        release.save(path)
        paths.append(path)
    return Browser(FilesSource(paths)).sign_in()


def test_names_of_plans_columns_classes_and_files_are_no_markup(hostile: Browser) -> None:
    file = "<img src=x onerror=alert(0)>.hush"
    release, other = address_of(hostile, file), address_of(hostile, file.replace("(0)", "(1)"))
    compared = f"/compare?first={release[-16:]}&second={other[-16:]}"
    kinds = [f"{release}?kind={kind}&c0=3&c1=7" for kind in ("density", "pairs", "classes")]
    for address in [*addresses(hostile, file)[:6], *kinds, compared, f"{release}?c0={HOSTILE}&c1=1&label={HOSTILE}"]:
        text = hostile.get(address).text
        assert "<img" not in text, address
        assert not re.search(r"<script>|</script><script>alert", text), address
        assert "49" not in re.findall(r"\{\{7\*7\}\}|>49<", text), address
    assert html.escape("<img src=x onerror=alert(1)>") in hostile.get("/").text


def test_downloads_have_plain_names_and_no_formulas(hostile: Browser) -> None:
    release = address_of(hostile, "<img src=x onerror=alert(0)>.hush")
    for ending in ("release.hush", "figure.csv", "figure.csv?kind=classes"):
        saved_file = hostile.get(f"{release}/{ending}")
        assert re.fullmatch(r'attachment; filename="[A-Za-z0-9_.-]+"', saved_file.headers["content-disposition"])
    text = hostile.get(f"{release}/figure.csv?kind=density").text
    assert ",'=cmd() (@m)," in text
    assert not re.search(r'(^|,)"?[=+@]', text, re.MULTILINE)


@pytest.mark.parametrize("text", ["../../etc/passwd", 'a"; filename=b', "a\r\nX: y", "…", "", "a/b\\c\0d"])
def test_a_name_of_a_file_has_nothing_that_could_be_misread(text: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,60}", safe_name(text))


def test_code_that_is_shown_quotes_every_text(hostile: Browser) -> None:
    release = address_of(hostile, "<img src=x onerror=alert(0)>.hush")
    page = hostile.client.get(release, params={"c0": "3", "c1": "7", "label": HOSTILE[:60]}).text
    for code in re.findall(r"<pre[^>]*><code>(.*?)</code></pre>", page, re.DOTALL):
        lines = html.unescape(code)
        compile(lines, "page", "exec")
        assert "hs.load('<img src=x onerror=alert(0)>.hush')" in lines


# --------------------------------------------------------------------------------------------------- files of others


def altered(path: Path, how: str) -> None:
    data = path.read_bytes()
    changed = {
        "empty": b"",
        "cut": data[: len(data) // 2],
        "another format": b"PK" + data[2:],
        "a bit": data[:-40] + bytes([data[-40] ^ 1]) + data[-39:],
        "longer": data + b"x",
    }
    path.write_bytes(changed[how])


@pytest.mark.parametrize("how", ["empty", "cut", "another format", "a bit", "longer"])
def test_a_broken_file_is_refused_by_its_name(how: str, tmp_path: Path) -> None:
    paths = saved(tmp_path, {"today": MAKERS["hashed"](), "broken": MAKERS["hashed"]()})
    altered(paths[1], how)
    with pytest.raises(ReleaseError, match=re.escape(f"{paths[1]}: ")):
        FilesSource(paths)


def test_a_huge_file_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    paths = saved(tmp_path, {"today": MAKERS["hashed"]()})
    with pytest.raises(ReleaseError, match="counters"):
        FilesSource(paths, counters_max=1000)


def test_a_window_that_nobody_can_date_has_its_page(tmp_path: Path) -> None:
    release = central(small_plan(window={"length": "1d"}), points(), 10**9)
    browser = browser_of(tmp_path, {"today": release})
    for address in addresses(browser)[:5]:
        assert browser.get(address).status_code in {200, 422}, address


# ------------------------------------------------------------------------------------------------ headers, other hosts


def test_every_response_has_the_headers_of_safety(browser: Browser) -> None:
    for address in addresses(browser):
        found = browser.get(address)
        for name, value in HEADERS.items():
            assert found.headers.get_list(name) == [value], (address, name)
        assert "server" not in found.headers
        cached = found.headers["cache-control"]
        assert cached == ("public, max-age=31536000, immutable" if address.startswith("/static/") else "no-store")
    assert POLICY.startswith("default-src 'self';")
    assert "unsafe" not in POLICY


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:7445", "127.0.0.1.evil.example", "localhost.evil.example", "[::2]", "", "@localhost",
     "169.254.169.254", "0.0.0.0", "localhost@evil.example", "localhost/", "localhost#", "[::1"],
)  # fmt: skip
def test_a_name_that_leads_here_by_dns_rebinding_is_refused(browser: Browser, host: str) -> None:
    for address in addresses(browser):
        found = browser.get(address, host=host)
        assert found.status_code == 421
        assert found.headers["content-security-policy"] == POLICY
        assert "test" not in found.text


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:7445", "LOCALHOST", "localhost."])
def test_names_of_this_machine_are_served(browser: Browser, host: str) -> None:
    assert browser.get("/", host=host).status_code == 200


def test_two_host_headers_are_refused(browser: Browser) -> None:
    found = browser.client.get("/", headers=[("host", "127.0.0.1"), ("host", "evil.example")])
    assert found.status_code == 421


@pytest.mark.parametrize(
    "path",
    ["/static/../app.py", "/static/..%2fapp.py", "/static/%2e%2e/app.py", "/static/page.css", "/static/",
     "/static/..%5c..%5capp.py", "/plans/..%2f..", "/releases/../../etc/passwd", "/releases/%00",
     "/releases/{id}/..%2frelease.hush", "/releases/{id}/figure.svg", "/templates/base.html"],
)  # fmt: skip
def test_paths_lead_nowhere_else(browser: Browser, path: str) -> None:
    id = address_of(browser, "today.hush")[-16:]
    found = browser.get(path.replace("{id}", id))
    assert found.status_code == 404, found.status_code
    assert "There is no such" in found.text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_nothing_but_the_sign_in_takes_another_method(browser: Browser, method: str) -> None:
    for address in addresses(browser)[:9]:
        assert browser.client.request(method, address).status_code in {403, 405}


# -------------------------------------------------------------------------------------------- signing in, and sessions


def test_without_a_session_there_is_nothing_to_see(stranger: Browser) -> None:
    id = address_of(stranger, "today.hush")
    for address in ("/", "/compare", id, f"{id}/at?c0=1&c1=1", f"{id}/release.hush", f"{id}/figure.png"):
        found = stranger.get(address)
        assert (found.status_code, found.headers["location"]) == (303, "/sign-in")


def test_a_token_begins_a_session_in_a_cookie_that_only_this_page_gets(stranger: Browser) -> None:
    found = sign_in(stranger)
    assert found.status_code == 200
    (cookie,) = (each for each in found.headers.get_list("set-cookie") if each.startswith("hushsum-7445="))
    parts = {part.strip().lower() for part in cookie.split(";")[1:]}
    assert parts == {"httponly", "path=/", "samesite=strict"}
    assert "reader-token" not in found.text
    assert "Rita" in stranger.get("/").text


def test_over_tls_the_cookie_is_bound_to_host_and_tls(tmp_path: Path) -> None:
    source = FilesSource(saved(tmp_path, {"today": MAKERS["hashed"]()}))
    browser = Browser(source, accounts=Tokens(), proxy=ProxySignOn("x-user", "s" * 32))
    (cookie,) = (each for each in sign_in(browser).headers.get_list("set-cookie") if each.startswith("__Host-hushsum="))
    parts = {part.strip().lower() for part in cookie.split(";")[1:]}
    assert parts == {"httponly", "path=/", "samesite=strict", "secure"}


def test_wrong_tokens_keep_no_holder_of_a_right_one_out(stranger: Browser) -> None:
    """Behind a proxy everybody has its address: whatever is limited by address locks everybody out."""
    for _ in range(100):
        assert sign_in(stranger, "wrong").status_code == 403
    assert sign_in(stranger).status_code == 200


def test_a_session_ends_when_it_is_idle_or_old(stranger: Browser) -> None:
    sign_in(stranger)
    stranger.clock.now_s += IDLE_S_MAX - 1
    assert stranger.get("/").status_code == 200
    stranger.clock.now_s += IDLE_S_MAX
    assert stranger.get("/").status_code == 303
    sign_in(stranger)
    for _ in range(int(SESSION_S_MAX // (IDLE_S_MAX - 1))):
        assert stranger.get("/").status_code == 200
        stranger.clock.now_s += IDLE_S_MAX - 1
    stranger.clock.now_s += IDLE_S_MAX - 1
    assert stranger.get("/").status_code == 303


def test_a_revoked_token_ends_its_sessions(stranger: Browser) -> None:
    sign_in(stranger)
    assert stranger.get("/").status_code == 200
    accounts = stranger.sessions.accounts
    assert isinstance(accounts, Tokens)
    accounts.known.clear()
    assert stranger.get("/").status_code == 303
    assert len(stranger.sessions) == 0


def test_signing_out_ends_the_session_itself(stranger: Browser) -> None:
    sign_in(stranger)
    cookie = stranger.client.cookies["hushsum-7445"]
    token = form_token(stranger.get("/").text)
    assert stranger.post("/sign-out", {"form_token": token}).status_code == 303
    stranger.client.cookies.set("hushsum-7445", cookie)  # a copy that somebody kept
    assert stranger.get("/").status_code == 303


def test_the_token_of_view_opens_one_session(tmp_path: Path) -> None:
    browser = Browser(FilesSource(saved(tmp_path, {"today": MAKERS["hashed"]()})))
    assert browser.get("/sign-in?token=wrong").status_code == 403
    browser.sign_in()
    browser.client.cookies.clear()
    assert browser.get(f"/sign-in?token={browser.token.text}").status_code == 403
    assert browser.get("/").status_code == 303


def test_a_service_takes_no_token_from_an_address(stranger: Browser) -> None:
    assert "Rita" not in stranger.get("/sign-in?token=reader-token").text
    assert stranger.get("/").status_code == 303


def test_sessions_are_bounded_and_the_idlest_goes_first(stranger: Browser) -> None:
    accounts = stranger.sessions.accounts
    assert isinstance(accounts, Tokens)
    holders = [Holder("Rita", may_read=True, may_administer=False, proof=f"r{at}") for at in range(SESSIONS_MAX + 1)]
    accounts.known.update({each.proof: each for each in holders})
    first, second = (stranger.sessions.begin(each) for each in holders[:2])
    assert stranger.sessions.find(first) is not None  # used now
    for each in holders[2:]:
        stranger.sessions.begin(each)
    assert len(stranger.sessions) == SESSIONS_MAX
    assert stranger.sessions.find(second) is None
    assert stranger.sessions.find(first) is not None
    assert first not in repr(vars(stranger.sessions))


def test_a_token_that_signs_in_again_and_again_ends_its_own_sessions_alone(stranger: Browser) -> None:
    accounts = stranger.sessions.accounts
    assert isinstance(accounts, Tokens)
    accounts.known["admin-token"] = Holder("Ann", may_read=True, may_administer=True, proof="a")
    sign_in(stranger, "admin-token")
    for _ in range(SESSIONS_MAX + 1):
        stranger.sessions.begin(accounts.known["reader-token"])
    assert stranger.get("/").status_code == 200
    assert len(stranger.sessions) == SESSIONS_OF_ONE_MAX + 1


def test_signing_in_again_ends_the_session_before(stranger: Browser) -> None:
    sign_in(stranger)
    first = stranger.client.cookies["hushsum-7445"]
    sign_in(stranger)
    assert stranger.client.cookies["hushsum-7445"] != first
    assert stranger.sessions.find(first) is None
    assert len(stranger.sessions) == 1


def test_the_token_of_forms_has_other_letters_in_each_page(stranger: Browser) -> None:
    """Pages are compressed and show what an address says: their lengths would tell a secret that stays the same."""
    sign_in(stranger)
    shown = {form_token(stranger.get("/").text) for _ in range(20)}
    assert len(shown) == 20
    assert len({each[:10] for each in shown}) == len({each[-10:] for each in shown}) == 20
    (session,) = stranger.sessions._sessions.values()
    assert not any(session.form_token in each for each in shown)
    assert stranger.post("/sign-out", {"form_token": shown.pop()}).status_code == 303
    assert stranger.get("/").status_code == 303


def test_over_tls_a_form_of_the_plaintext_page_of_the_same_name_is_refused(tmp_path: Path) -> None:
    source = FilesSource(saved(tmp_path, {"today": MAKERS["hashed"]()}))
    browser = Browser(source, accounts=Tokens(), proxy=ProxySignOn("x-user", "s" * 32))
    assert sign_in(browser, origin=BASE).status_code == 403
    assert sign_in(browser, origin=BASE.replace("http:", "https:")).status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_of_another_origin_embeds_nothing_of_this_one(browser: Browser, site: str) -> None:
    """Such as one of another port of this machine, where the browser sends the cookie along."""
    for address in addresses(browser)[:9]:
        for mode in ("no-cors", "cors", ""):
            assert browser.get(address, **{"sec-fetch-site": site, "sec-fetch-mode": mode}).status_code == 403
        assert browser.get(address, **{"sec-fetch-site": site, "sec-fetch-mode": "navigate"}).status_code == 200


def test_no_redirect_leads_to_the_host_that_a_request_names(browser: Browser) -> None:
    for address in ("/compare/", "/plans/0123456789abcdef/", "/sign-in/"):
        found = browser.get(address, host="localhost:9")
        assert (found.status_code, found.headers.get("location")) == (404, None), address


@pytest.mark.parametrize(
    "headers",
    [{"origin": "https://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"},
     {"sec-fetch-site": "same-site"}, {"origin": "http://127.0.0.1:9999"}],
)  # fmt: skip
def test_a_form_of_another_site_is_refused(stranger: Browser, headers: dict[str, str]) -> None:
    assert sign_in(stranger, **headers).status_code == 403
    sign_in(stranger)
    token = form_token(stranger.get("/").text)
    assert stranger.post("/sign-out", {"form_token": token}, **headers).status_code == 403
    assert stranger.get("/").status_code == 200


def test_a_form_without_its_token_is_refused(stranger: Browser) -> None:
    other = form_token(stranger.get("/sign-in").text)
    for fields in ({}, {"form_token": ""}, {"form_token": "x"}, {"form_token": other[:-1] + "é"}):
        stranger.get("/sign-in")
        assert stranger.post("/sign-in", {**fields, "token": "reader-token"}).status_code == 403
    sign_in(stranger)
    for fields in ({}, {"form_token": other}):
        assert stranger.post("/sign-out", fields, origin=BASE).status_code == 403
    assert stranger.get("/").status_code == 200


def test_a_sign_in_without_the_cookie_of_its_form_is_refused(stranger: Browser) -> None:
    token = form_token(stranger.get("/sign-in").text)
    stranger.client.cookies.clear()
    assert stranger.post("/sign-in", {"form_token": token, "token": "reader-token"}).status_code == 403
    stranger.client.cookies.set("hushsum-7445-form", "")
    assert stranger.post("/sign-in", {"form_token": "", "token": "reader-token"}).status_code == 403


def test_a_form_that_is_too_large_is_refused(stranger: Browser) -> None:
    stranger.get("/sign-in")
    assert stranger.post("/sign-in", {"form_token": "x", "token": "a" * 20_000}).status_code == 413
    assert stranger.post("/sign-in", {f"a{at}": "b" for at in range(200)}).status_code == 403


def test_a_view_of_the_operator_needs_the_scope_admin() -> None:
    reader = Holder("Rita", may_read=True, may_administer=False)
    assert not may_see(reader, ADMIN)
    assert may_see(Holder("Ann", may_read=False, may_administer=True), ADMIN)
    assert not may_see(Holder("Sue", may_read=False, may_administer=False), "read")
    assert View("/x", None, ADMIN).method == "GET"  # type: ignore[arg-type]  # no endpoint is called here


@pytest.mark.parametrize("scopes", [(True, False), (False, True)])
def test_a_change_needs_the_token_of_its_form_and_the_scope(tmp_path: Path, scopes: tuple[bool, bool]) -> None:
    """A view that changes something, as an operator's does."""
    accounts, changed = Tokens(), []
    accounts.known["admin-token"] = Holder("Ann", *scopes, proof="a")
    browser = Browser(FilesSource(saved(tmp_path, {"today": MAKERS["hashed"]()})), accounts=accounts)

    async def change(request: Any) -> Any:
        changed.append(request.state.fields["what"])
        return browser.page._site.error(request, 200, "changed")

    browser.page._views.append(View("/change", change, ADMIN, "POST"))
    browser.connect()
    assert browser.post("/change", {"form_token": "x", "what": "seal"}).status_code == 303
    sign_in(browser, "admin-token")
    token = form_token(browser.get("/").text)
    for fields, headers in (
        ({"what": "seal"}, {}),
        ({"what": "seal", "form_token": token[:-1]}, {}),
        ({"what": "seal", "form_token": token}, {"origin": "https://evil.example"}),
    ):
        assert browser.post("/change", fields, **headers).status_code == 403
    assert changed == []
    found = browser.post("/change", {"what": "seal", "form_token": token}, origin=BASE)
    assert (found.status_code, changed) == ((200, ["seal"]) if scopes[1] else (403, []))
    assert browser.client.get("/change").status_code == 405


def test_a_proxy_signs_callers_on_by_its_secret_alone(tmp_path: Path) -> None:
    source = FilesSource(saved(tmp_path, {"today": MAKERS["hashed"]()}))
    browser = Browser(source, accounts=Tokens(), proxy=ProxySignOn("x-user", "s" * 32))
    good = {"x-user": "Pat <b>", "x-hushsum-proxy-secret": "s" * 32}
    page = browser.get("/", **good)
    assert page.status_code == 200
    assert "Pat &lt;b&gt;" in page.text
    assert "Sign out" not in page.text
    for bad in ({"x-user": "Pat"}, {**good, "x-hushsum-proxy-secret": "t" * 32}, {"x-hushsum-proxy-secret": "s" * 32}):
        browser.client.cookies.clear()
        assert browser.get("/", **bad).status_code == 303
    for name in good:  # a proxy that adds its header, and leaves the caller's own
        twice = [("x-user", "boss"), *good.items()] if name == "x-user" else [*good.items(), (name, "s" * 32)]
        assert browser.client.get("/", headers=twice).status_code == 303
    off = Browser(source, accounts=Tokens())
    assert off.get("/", **good).status_code == 303
    empty = Browser(source, accounts=Tokens(), proxy=ProxySignOn("x-user", ""))
    assert empty.get("/", **{"x-user": "Pat", "x-hushsum-proxy-secret": ""}).status_code == 303


# ------------------------------------------------------------------------------------------------------- many, and slow


def test_addresses_that_are_too_long_are_refused(browser: Browser) -> None:
    address = address_of(browser, "today.hush")
    assert browser.get(f"{address}?c0={'1' * 9000}").status_code == 400
    assert browser.get(f"{address}?{'&'.join(f'hold{at}=1' for at in range(200))}").status_code == 400


async def test_work_that_waits_is_bounded() -> None:
    free = threading.Event()
    workers = Workers(threads=1, waiting_max=3)
    waiting = [asyncio.create_task(workers.run(free.wait)) for _ in range(3)]
    await asyncio.sleep(0)
    with pytest.raises(BusyError):
        await workers.run(len, "abc")
    free.set()
    await asyncio.gather(*waiting)
    assert await workers.run(len, "abc") == 3
    workers.close()


async def test_one_holder_leaves_room_for_others(stranger: Browser) -> None:
    """Requests that all wait for a picture: beyond those that a browser sends, they wait for nothing."""
    import asyncio

    accounts, free = stranger.sessions.accounts, asyncio.Event()
    assert isinstance(accounts, Tokens)
    accounts.known["other"] = Holder("Olga", may_read=True, may_administer=False, proof="o")
    path = "/releases/" + (await stranger.library.source.plans())[0].outcomes[0].id
    transport = httpx2.ASGITransport(app=stranger.page.app(stranger.errors.append))
    whole = stranger.library.workers.run

    async def held(*work: Any) -> Any:
        await free.wait()
        return await whole(*work)

    async def get(number: int, holder: Holder) -> int:
        cookies = {"hushsum-7445": stranger.sessions.begin(holder)}
        async with httpx2.AsyncClient(transport=transport, base_url=BASE, cookies=cookies) as client:
            found = await client.get(f"{path}/figure.csv?hold1={number}")
            return int(found.status_code)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stranger.library.workers, "run", held)
        many = [asyncio.create_task(get(at, accounts.known["reader-token"])) for at in range(REQUESTS_OF_ONE_MAX + 3)]
        refused = [await each for each in many[REQUESTS_OF_ONE_MAX:]]
        one = asyncio.create_task(get(1, accounts.known["other"]))
        free.set()
        assert await one == 200
        assert refused == [503] * 3
        assert await asyncio.gather(*many[:REQUESTS_OF_ONE_MAX]) == [200] * REQUESTS_OF_ONE_MAX
    assert await get(1, accounts.known["reader-token"]) == 200


async def test_what_many_ask_for_at_once_is_computed_once(browser: Browser) -> None:
    import asyncio

    calls: list[int] = []

    def work() -> str:
        calls.append(1)
        return "it"

    answers = await asyncio.gather(*(browser.library.computed("key", work) for _ in range(9)))
    assert answers == ["it"] * 9
    assert calls == [1]

    def fail() -> str:
        raise ValueError("no")

    for _ in range(2):
        with pytest.raises(ValueError, match="no"):
            await browser.library.computed("other", fail)


async def test_files_on_their_way_to_slow_browsers_are_bounded_in_memory(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = await browser.library.find(address_of_first(await browser.library.source.plans()))
    size = found.outcome.size_bytes
    monkeypatch.setattr("hushsum_page.library.SENT_BYTES_MAX", 2 * size)
    monkeypatch.setattr("hushsum_page.library._SENT_PIECE", 100)
    slow = [browser.library.sent(found, holder) for holder in ("one", "other")]
    for each in slow:
        assert await anext(each) == b""
    with pytest.raises(BusyError):
        await anext(browser.library.sent(found, "third"))
    pieces = [piece async for piece in slow[0]]
    assert b"".join(pieces) == await browser.library.data(found)
    assert max(map(len, pieces)) == 100
    await slow[1].aclose()  # its browser has gone
    assert len([piece async for piece in browser.library.sent(found, "third")]) > 1
    monkeypatch.setattr("hushsum_page.library.SENT_BYTES_MAX", 0)
    assert len([piece async for piece in browser.library.sent(found, "one")]) > 1, "one file always"


async def test_one_holder_s_files_leave_memory_for_those_of_others(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = await browser.library.find(address_of_first(await browser.library.source.plans()))
    monkeypatch.setattr("hushsum_page.library.SENT_BYTES_MAX", 4 * found.outcome.size_bytes)
    slow = [browser.library.sent(found, "greedy") for _ in range(2)]
    for each in slow:
        assert await anext(each) == b""
    with pytest.raises(BusyError, match="on their way to you"):
        await anext(browser.library.sent(found, "greedy"))
    assert len([piece async for piece in browser.library.sent(found, "other")]) > 1
    await slow[0].aclose()
    assert len([piece async for piece in browser.library.sent(found, "greedy")]) > 1


def test_a_reader_whose_files_are_on_their_way_is_told_so_and_another_is_not(
    stranger: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    accounts = stranger.sessions.accounts
    assert isinstance(accounts, Tokens)
    accounts.known["other"] = Holder("Olga", may_read=True, may_administer=False, proof="o")
    monkeypatch.setattr("hushsum_page.library.SENT_BYTES_MAX", 10**6)
    stranger.library._sent_bytes[accounts.known["reader-token"].key] = 500_000
    sign_in(stranger, "reader-token")
    address = f"{address_of(stranger, 'today.hush')}/release.hush"
    refused = stranger.get(address)
    assert refused.status_code == 503
    assert "Other files are on their way to you." in refused.text
    sign_in(stranger, "other")
    assert stranger.get(address).status_code == 200


def address_of_first(entries: list[PlanEntry]) -> str:
    return entries[0].outcomes[0].id


def test_a_release_is_sent_as_it_is_and_with_its_length(browser: Browser) -> None:
    found = browser.get(f"{address_of(browser, 'today.hush')}/release.hush")
    assert "content-encoding" not in found.headers, "it is compressed already"
    assert int(found.headers["content-length"]) == len(found.content)


async def test_a_form_that_ends_in_the_middle_is_no_failure_of_the_page(stranger: Browser) -> None:
    """Anybody can begin a form: an entry in the log for each would fill it."""
    app, sent = stranger.page.app(stranger.errors.append), list[Any]()
    headers = [(b"host", b"127.0.0.1:7445"), (b"cookie", b"hushsum-7445-form=x")]
    scope = {"type": "http", "method": "POST", "path": "/sign-in", "raw_path": b"/sign-in", "query_string": b"",
             "headers": headers, "scheme": "http", "server": ("127.0.0.1", 7445), "http_version": "1.1"}  # fmt: skip
    messages = iter(({"type": "http.request", "body": b"form", "more_body": True}, {"type": "http.disconnect"}))

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    assert stranger.errors == []


def test_a_question_that_cannot_be_computed_is_the_callers_fault(browser: Browser) -> None:
    address = address_of(browser, "today.hush")
    for asked in ("c0=1e19&c1=1", "kind=density&hold1=1e308", "c0=-1e308&c1=1e308"):
        found = browser.get(f"{address}?{asked}")
        assert found.status_code == 422, asked
        assert "outside the bounds" in found.text


@pytest.mark.parametrize("scopes", [(True, False), (True, True)])
def test_what_fails_in_the_service_is_told_to_its_operators_alone(stranger: Browser, scopes: tuple[bool, bool]) -> None:
    accounts = stranger.sessions.accounts
    assert isinstance(accounts, Tokens)
    accounts.known["token"] = Holder("Pat", *scopes, proof="p")
    sign_in(stranger, "token")

    async def fail() -> Any:
        raise HushsumError("postgresql://db.internal:5432 refuses /var/lib/hushsum/store.db")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stranger.library.source, "plans", fail)
        found = stranger.get("/")
    assert found.status_code == 503
    assert ("db.internal" in found.text) is scopes[1]


async def begun(library: Library, key: str | int, work: Callable[[], Any], holder: str = "one") -> Any:
    """What work of seconds makes, which needs nothing loaded; None until it has ended."""

    async def prepare() -> Callable[[], Any]:
        return work

    return await library.begun(key, holder, prepare)


async def ended(library: Library, key: str | int, work: Callable[[], Any]) -> Any:
    """What work of seconds makes, once it has ended."""
    made = await begun(library, key, work)
    all_ended(library)
    return await begun(library, key, work) if made is None else made


def all_ended(library: Library) -> None:
    """Returns once all work of seconds that was begun has ended."""
    wait([each.future for each in library._begun.values() if each.future is not None])


async def test_work_of_seconds_is_bounded_and_leaves_room_for_other_work() -> None:
    free = threading.Event()
    library = Library(FilesSource([]), Workers(threads=1))
    for number in range(BEGUN_MAX):
        assert await begun(library, number, free.wait, f"holder {number}") is None
        assert await begun(library, number, free.wait, "another") is None  # it runs once
    with pytest.raises(BusyError):
        await begun(library, "more", free.wait, "another")
    assert await library.computed("picture", len, "abc") == 3
    free.set()
    assert await ended(library, 0, free.wait)
    library.workers.close()


async def test_work_of_seconds_of_one_holder_leaves_places_for_others() -> None:
    free = threading.Event()
    library = Library(FilesSource([]), Workers(threads=1))
    for number in range(BEGUN_OF_ONE_MAX):
        assert await begun(library, number, free.wait, "greedy") is None
    with pytest.raises(BusyError, match="What you asked for before"):
        await begun(library, "more", free.wait, "greedy")
    for number in range(BEGUN_MAX - BEGUN_OF_ONE_MAX):
        assert await begun(library, f"other {number}", free.wait, "other") is None
    free.set()
    library.workers.close()


async def test_who_asks_for_much_loses_its_own_results_and_nobody_else_s() -> None:
    free = threading.Event()
    library = Library(FilesSource([]), Workers(threads=1))
    assert await begun(library, "other's", lambda: free.wait() and "made once", "other") is None
    for number in range(3 * BEGUN_MAX):
        free.clear()
        assert await begun(library, number, free.wait, "greedy") is None
        free.set()
        all_ended(library)
    assert await begun(library, "other's", lambda: "made anew", "other") == "made once"
    library.workers.close()


async def test_nothing_is_loaded_for_work_of_seconds_that_runs_or_finds_no_place() -> None:
    free, loading, loads = threading.Event(), asyncio.Event(), list[str]()
    library = Library(FilesSource([]), Workers(threads=1))

    def preparing(what: str) -> Callable[[], Awaitable[Callable[[], bool]]]:
        async def prepare() -> Callable[[], bool]:
            loads.append(what)
            await loading.wait()
            return free.wait

        return prepare

    first = asyncio.create_task(library.begun(0, "one", preparing("first")))
    await asyncio.sleep(0)
    assert await library.begun(0, "other", preparing("while it is loaded")) is None
    loading.set()
    assert await first is None
    assert await library.begun(0, "one", preparing("while it runs")) is None
    for number in range(1, BEGUN_OF_ONE_MAX):
        await begun(library, number, free.wait)
    with pytest.raises(BusyError):
        await library.begun("more", "one", preparing("without a place"))
    free.set()
    all_ended(library)
    assert await library.begun(0, "one", preparing("when it has ended"))
    assert await library.begun(0, "one", preparing("when it has ended"))
    assert loads == ["first"]
    library.workers.close()


async def test_work_of_seconds_whose_releases_cannot_be_loaded_keeps_no_place() -> None:
    library = Library(FilesSource([]), Workers(threads=1))

    async def prepare() -> Callable[[], str]:
        raise MissingReleaseError("it was removed")

    for _ in range(2 * BEGUN_MAX):
        with pytest.raises(MissingReleaseError):
            await library.begun("it", "one", prepare)
    assert await ended(library, "it", lambda: "made anew") == "made anew"
    library.workers.close()


async def test_work_of_seconds_that_fails_says_so_once() -> None:
    library = Library(FilesSource([]), Workers(threads=1))
    with pytest.raises(ZeroDivisionError):
        await ended(library, "failing", lambda: 1 / 0)
    assert await ended(library, "failing", lambda: "made anew") == "made anew"
    library.workers.close()


def test_a_page_that_is_busy_says_so(browser: Browser, monkeypatch: pytest.MonkeyPatch) -> None:
    async def refuse(*_: object) -> None:
        raise BusyError

    monkeypatch.setattr(browser.library.workers, "run", refuse)
    found = browser.get(address_of(browser, "today.hush"))
    assert (found.status_code, found.headers["retry-after"]) == (503, "2")


def test_caches_drop_what_was_not_used_for_longest() -> None:
    cache: BoundedCache[bytes] = BoundedCache(10, len)
    cache.put("a", b"1234")
    cache.put("b", b"1234")
    assert cache.get("a") == b"1234"
    cache.put("c", b"1234")
    assert [cache.get(each) for each in "abc"] == [b"1234", None, b"1234"]
    cache.put("a", b"12345678901234")
    assert (cache.size, cache.get("c")) == (14, None)


def test_what_requests_leave_in_memory_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that all differ: the caches stay within their sizes. test_page_server.py has 10,000 of them."""
    browser = browser_of(tmp_path, windows(small_plan(record=NAMED), 6))
    releases, computed = browser.library._releases, browser.library._computed
    monkeypatch.setattr(releases, "_size_max", 3000)
    monkeypatch.setattr(computed, "_size_max", 300_000)
    for at in range(6):
        address = address_of(browser, f"w{at}.hush")
        for value in range(8):
            assert browser.get(f"{address}?kind=density&hold1={value}.{at}").status_code == 200
    assert releases.size <= 3000
    assert 0 < computed.size <= 300_000


def test_an_error_that_nobody_foresaw_tells_nothing_of_itself(
    browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise RuntimeError("the secret of the file")

    monkeypatch.setattr(browser.library.source, "plans", fail)
    found = browser.client.get("/")
    assert found.status_code == 500
    assert "secret" not in found.text
    assert found.headers["content-security-policy"] == POLICY
    assert [type(each) for each in browser.errors] == [RuntimeError]


def test_the_digest_of_htmx_is_that_of_its_release() -> None:
    import hashlib

    import hushsum_page

    folder = Path(hushsum_page.__file__).parent / "static"
    data = (folder / "htmx.min.js").read_bytes()
    stated = (folder / "htmx.LICENSE.txt").read_text(encoding="utf-8")
    assert f"SHA-256 {hashlib.sha256(data).hexdigest()}" in stated
    assert "htmx 2.0.10" in stated
    assert b'version:"2.0.10"' in data


def test_no_file_of_the_page_names_another_address() -> None:
    import hushsum_page

    folder = Path(hushsum_page.__file__).parent
    for path in [*folder.glob("templates/*"), folder / "static" / "page.css", folder / "static" / "page.js"]:
        assert not re.search(r"(?:https?:)?//[a-z]", path.read_text(encoding="utf-8")), path


def test_entries_are_values() -> None:
    outcome = OutcomeEntry("0" * 16, "released", "tumbling", 1, 10)
    assert PlanEntry(small_plan(), (outcome,)) == PlanEntry(small_plan(), (outcome,))
    assert np.isfinite(points()).all()
