"""The operator's views and actions on the page of a real service, and the audit log."""

import asyncio
import html
import json
import re
import ssl
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx2
import pytest

from aggregator.app import Service
from aggregator.auth.tokens import IssuedToken, read_table
from aggregator.config import Config
from aggregator.model import Scope
from hushsum.plan import Plan
from hushsum_page.confirmations import CONFIRM_S_MAX, WAITING_MAX, WAITING_OF_ONE_MAX, Confirmations
from hushsum_page.middleware import HEADERS
from hushsum_page.operations import REVOKE, SEAL, Action
from tests.aggregator.test_page import PLAN, page_config, signed_in, token_of, tokens_file, visiting
from tests.authorities import Certified
from tests.hushsum.local_plans import report_plan, silo_plan
from tests.plans import secure_plan, small_plan
from tests.services import NOW_MS, WINDOW, Contributor, RawClient, SetRuntime, config_of, service_of

VIEWS = ("/service", "/windows", "/ledger", "/tokens", "/audit")
CONFIRMED = {
    "seal": f"/confirm?action=seal&window={WINDOW}&early=yes",
    "issue": "/confirm?action=issue&name=till-7&scope=submit&days=30",
    "revoke": "/confirm?action=revoke&id={reader}",
}
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def admin() -> IssuedToken:
    return token_of(Scope.ADMIN, name="Ann")


@pytest.fixture
def reader() -> IssuedToken:
    return token_of(Scope.READ)


@pytest.fixture
def config(tmp_path: Path, admin: IssuedToken, reader: IssuedToken) -> Config:
    return page_config(tmp_path, admin, reader)


def audit_of(folder: Path) -> list[dict[str, Any]]:
    """The lines of the audit log."""
    path = folder / "data" / "audit.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def form_of(page: str) -> dict[str, str]:
    """The fields of the form of a confirmation."""
    form = re.search(r'<form method="post" action="/act">(.*?)</form>', page, re.DOTALL)
    assert form is not None, page
    return dict(re.findall(r'name="([a-z_]+)" value="([^"]*)"', form[1]))


def alert_of(page: str) -> str:
    found = re.search(r'role="(?:alert|status)">(.*?)</p>', page, re.DOTALL)
    assert found is not None, page
    return html.unescape(found[1])


async def done(client: httpx2.AsyncClient, address: str) -> httpx2.Response:
    """The answer to an action that was confirmed."""
    page = await client.get(address)
    assert page.status_code == 200, page.text
    return await client.post("/act", data=form_of(page.text))


# ---------------------------------------------------------------------------------------------------------- who may


async def test_without_admin_there_is_no_view_no_link_and_no_action(
    tmp_path: Path, config: Config, reader: IssuedToken, admin: IssuedToken
) -> None:
    confirmed = {**CONFIRMED, "revoke": CONFIRMED["revoke"].format(reader=reader.entry.id)}
    async with service_of(config) as service, visiting(service) as client, visiting(service) as operator:
        for address in (*VIEWS, *confirmed.values()):
            assert (await client.get(address)).headers["location"] == "/sign-in"
        assert (await client.post("/act", data={"id": "x"})).headers["location"] == "/sign-in"
        await signed_in(client, reader)
        home = (await client.get("/")).text
        assert not any(f'href="{view}"' in home for view in VIEWS)
        for address in (*VIEWS, *confirmed.values()):
            found = await client.get(address)
            assert found.status_code == 403
            assert "does not have the scope admin" in found.text
        # A form of an operator's, sent by a reader with the reader's own token of forms, or with the operator's.
        await signed_in(operator, admin)
        own = re.findall(r'name="form_token" value="([^"]+)"', home)[0]
        for address in confirmed.values():
            fields = form_of((await operator.get(address)).text)
            for form_token in (own, fields["form_token"], ""):
                found = await client.post("/act", data={**fields, "form_token": form_token})
                assert found.status_code == 403
        assert audit_of(tmp_path) == []
        assert await service.store.windows(PLAN.id) == {WINDOW: "open"}
        assert len(read_table(tmp_path / "tokens.jsonl")) == 2


FORGED: tuple[tuple[dict[str, str], dict[str, str]], ...] = (
    ({"form_token": "wrong"}, {}),
    ({"form_token": ""}, {}),
    ({}, {"origin": "https://evil.example"}),
    ({}, {"origin": "null"}),
    ({}, {"sec-fetch-site": "cross-site"}),
    ({}, {"sec-fetch-site": "same-site"}),
)


@pytest.mark.parametrize("action", CONFIRMED)
async def test_a_form_that_another_site_sends_does_nothing(
    tmp_path: Path, config: Config, admin: IssuedToken, reader: IssuedToken, action: str
) -> None:
    async with service_of(config) as service, visiting(service) as client:
        await signed_in(client, admin)
        fields = form_of((await client.get(CONFIRMED[action].format(reader=reader.entry.id))).text)
        for change, headers in FORGED:
            assert (await client.post("/act", data={**fields, **change}, headers=headers)).status_code == 403
        assert audit_of(tmp_path) == []
        assert (await client.post("/act", data=fields)).status_code == 200
        assert [each["outcome"] for each in audit_of(tmp_path)] == ["begun", "done"]


async def test_a_form_is_good_once_and_for_its_own_session(
    tmp_path: Path, config: Config, admin: IssuedToken, reader: IssuedToken
) -> None:
    async with service_of(config) as service, visiting(service) as client, visiting(service) as other:
        await signed_in(client, admin)
        await signed_in(other, admin)
        fields = form_of((await client.get(CONFIRMED["issue"])).text)
        theirs = form_of((await other.get("/confirm?action=issue&name=x&scope=read")).text)
        assert (await other.post("/act", data={**theirs, "id": fields["id"]})).status_code == 409
        answers = await asyncio.gather(*(client.post("/act", data=fields) for _ in range(5)))
        assert sorted(each.status_code for each in answers) == [200, 409, 409, 409, 409]
        assert "was sent before" in alert_of((await client.post("/act", data=fields)).text)
        assert [each.name for each in read_table(tmp_path / "tokens.jsonl")] == ["Ann", "Rita", "till-7"]
        assert len(audit_of(tmp_path)) == 2


def test_what_waits_for_its_confirmation_is_bounded_in_number_and_time() -> None:
    now_s, made = [0.0], iter(map(str, range(10**6)))
    waiting = Confirmations(lambda: next(made), lambda: now_s[0])
    seal = Action(SEAL, 1)
    first = waiting.ask(seal, "s")
    assert waiting.take(first, "t") is None
    assert waiting.take(first, "s") == seal
    assert waiting.take(first, "s") is None
    late = waiting.ask(seal, "s")
    now_s[0] = CONFIRM_S_MAX + 1
    assert waiting.take(late, "s") is None
    ids = [waiting.ask(Action(SEAL, number), f"s{number}") for number in range(WAITING_MAX + 10)]
    assert waiting.take(ids[9], "s9") is None
    assert waiting.take(ids[10], "s10") == Action(SEAL, 10)
    own = [waiting.ask(Action(SEAL, number), "s") for number in range(2 * WAITING_OF_ONE_MAX)]
    assert waiting.take(own[WAITING_OF_ONE_MAX - 1], "s") is None
    assert waiting.take(own[WAITING_OF_ONE_MAX], "s") is not None
    assert waiting.take(ids[WAITING_OF_ONE_MAX + 20], f"s{WAITING_OF_ONE_MAX + 20}") is not None, "others keep theirs"


async def test_a_token_that_is_revoked_acts_no_more(
    tmp_path: Path, config: Config, admin: IssuedToken, reader: IssuedToken
) -> None:
    own = f"/confirm?action=revoke&id={admin.entry.id}"
    async with service_of(config) as service, visiting(service) as client:
        await signed_in(client, admin)
        fields = form_of((await client.get(CONFIRMED["seal"])).text)
        page = await client.get(own)
        assert "the token that you are signed in with" in page.text
        assert (await client.post("/act", data=form_of(page.text))).status_code == 200
        assert (await client.post("/act", data=fields)).headers["location"] == "/sign-in"
        assert (await client.get("/audit")).headers["location"] == "/sign-in"
        assert await service.store.windows(PLAN.id) == {WINDOW: "open"}
        assert [each["what"] for each in audit_of(tmp_path)] == [REVOKE, REVOKE]


async def test_a_token_that_is_revoked_while_its_form_is_on_its_way_acts_no_more(
    tmp_path: Path, config: Config, admin: IssuedToken
) -> None:
    """A browser may send a form for as long as a connection lasts."""
    async with service_of(config) as service, visiting(service) as client:
        await signed_in(client, admin)
        fields = form_of((await client.get(CONFIRMED["seal"])).text)

        async def slow() -> AsyncIterator[bytes]:
            data = urlencode(fields).encode()
            yield data[:10]
            await asyncio.sleep(0.05)
            tokens_file(tmp_path, token_of(Scope.READ, name="other"))
            assert service.tokens is not None
            await service.tokens.look()
            yield data[10:]

        found = await client.post("/act", content=slow())
        assert found.headers["location"] == "/sign-in"
        assert await service.store.windows(PLAN.id) == {WINDOW: "open"}
        assert audit_of(tmp_path) == []


async def test_a_token_that_expires_acts_no_more(tmp_path: Path) -> None:
    runtime, short = SetRuntime(), token_of(Scope.ADMIN, name="Ann", expires_ms=NOW_MS + 60_000)
    async with service_of(page_config(tmp_path, short), runtime) as service, visiting(service) as client:
        await signed_in(client, short)
        fields = form_of((await client.get(CONFIRMED["seal"])).text)
        runtime.set_ms += 60_000
        assert (await client.post("/act", data=fields)).headers["location"] == "/sign-in"
        assert await service.store.windows(PLAN.id) == {WINDOW: "open"}
        assert audit_of(tmp_path) == []


async def test_every_status_has_the_headers_of_safety_and_is_kept_nowhere(config: Config, admin: IssuedToken) -> None:
    async with service_of(config) as service, visiting(service) as client:
        stranger = await client.get("/service")
        await signed_in(client, admin)
        fields = form_of((await client.get(CONFIRMED["issue"])).text)
        answers = [
            stranger,
            await client.post("/act", data=fields),
            await client.post("/act", data=fields),
            await client.post("/act", data={"id": "x"}),
            await client.get("/act"),
            await client.get("/nowhere"),
            await client.get("/service", headers={"host": "evil.example"}),
            await client.get("/confirm?action=drop"),
            await client.post("/act", data={"x": "a" * 20_000}),
            await client.get(f"/windows?before={'1' * 9000}"),
        ]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(_operations(service), "ledger", None)
            answers.append(await client.get("/ledger"))
        assert [each.status_code for each in answers] == [303, 200, 409, 403, 405, 404, 421, 422, 413, 400, 500]
        for each in answers:
            for name, value in HEADERS.items():
                assert each.headers.get_list(name) == [value], (each.status_code, name)
            assert each.headers["cache-control"] == "no-store"
            assert "hushsum_" not in each.text or each.status_code == 200
            assert "Traceback" not in each.text


async def test_a_token_file_that_others_hold_holds_up_no_window(
    tmp_path: Path, config: Config, admin: IssuedToken
) -> None:
    import fcntl

    async with service_of(config) as service, visiting(service) as client:
        await signed_in(client, admin)
        issue, seal = [form_of((await client.get(CONFIRMED[each])).text) for each in ("issue", "seal")]
        with (tmp_path / "tokens.jsonl.lock").open("w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            waiting = asyncio.create_task(client.post("/act", data=issue))
            while not audit_of(tmp_path):  # noqa: ASYNC110  a file has no event
                await asyncio.sleep(0.01)
            assert (await client.post("/act", data=seal)).status_code == 200
            assert not waiting.done()
        assert (await waiting).status_code == 200
        assert [each["outcome"] for each in audit_of(tmp_path)] == ["begun", "begun", "done", "done"]


async def test_wrong_sign_ins_are_counted_and_the_journal_gets_one_line(
    config: Config, admin: IssuedToken, capsys: pytest.CaptureFixture[str]
) -> None:
    device = token_of(Scope.SUBMIT, name="till-7")
    async with service_of(config) as service, visiting(service) as client:
        for _ in range(12):
            assert await signed_in(client, device) == 403
        assert await signed_in(client, admin) == 200
        rows = re.findall(
            r'scope="row">([a-z_]+)</th><td class="number">(\d+)</td>', (await client.get("/service")).text
        )
        assert rows == [("unauthenticated", "12")]
    captured = capsys.readouterr()
    told = captured.out + captured.err
    assert told.count("sign-in on the page refused") == 1
    assert f"token={admin.entry.id}" in told
    assert device.text not in told
    assert admin.text not in told


# ---------------------------------------------------------------------------------------------------------- actions


async def test_a_window_is_sealed_and_released_and_the_log_says_by_whom(
    tmp_path: Path, config: Config, admin: IssuedToken
) -> None:
    runtime = SetRuntime()
    async with (
        service_of(config, runtime) as service,
        RawClient(service.grpc) as device,
        visiting(service) as client,
    ):
        await device.submit_one(PLAN.id, Contributor(PLAN, 7).delta(30)[1])
        await signed_in(client, admin)
        text = (await client.get("/windows")).text
        assert re.search(r">its end</td>.*Seal early…", text)
        refused = await client.get(f"/confirm?action=seal&window={WINDOW}")
        assert refused.status_code == 422
        assert "is not over" in alert_of(refused.text)
        page = await client.get(CONFIRMED["seal"])
        assert "is closed before its time" in page.text
        sealed = await client.post("/act", data=form_of(page.text))
        assert alert_of(sealed.text) == f"Window {WINDOW} is sealed."
        text = (await client.get("/windows")).text
        assert "an operator, because the setting manual is on" in text
        page = await client.get(html.unescape(re.findall(r'href="(/confirm[^"]+release[^"]+)"', text)[0]))
        assert "charged to the ledger (ε = 1, δ = 0)" in page.text
        released = await client.post("/act", data=form_of(page.text))
        assert f"Window {WINDOW} is released; ε spent 1, left 99" in alert_of(released.text)
        assert len(await service.catalog.releases(None)) == 1
        lines = audit_of(tmp_path)
        assert [(each["what"], each["outcome"]) for each in lines] == [
            ("seal window", "begun"),
            ("seal window", "done"),
            ("release window", "begun"),
            ("release window", "done"),
        ]
        assert {(each["who"], each["token"]) for each in lines} == {("Ann", admin.entry.id)}
        assert lines[0]["about"] == {"window": str(WINDOW), "early": "yes"}
        assert lines[0]["at"] == "2023-11-14T22:30:00.000Z"
        view = (await client.get("/audit")).text
        assert view.index("release window") < view.index("seal window")
        assert stat.S_IMODE((tmp_path / "data" / "audit.jsonl").stat().st_mode) == 0o600


async def test_a_token_is_issued_shown_once_and_good_and_revoked_again(
    tmp_path: Path, config: Config, admin: IssuedToken
) -> None:
    async with service_of(config) as service, visiting(service) as client, visiting(service) as other:
        await signed_in(client, admin)
        shown = await done(client, "/confirm?action=issue&name=Ben&scope=read&scope=admin&days=7")
        token = re.findall(r"hushsum_[0-9a-f]{16}_[A-Za-z0-9_-]{43}", shown.text)[0]
        assert shown.headers["cache-control"] == "no-store"
        table = read_table(tmp_path / "tokens.jsonl")
        entry = next(each for each in table if each.name == "Ben")
        assert entry.scopes == {Scope.READ, Scope.ADMIN}
        assert entry.expires_ms == NOW_MS + 7 * 86_400_000
        secret = token.split("_", 2)[2]
        for address in VIEWS:
            assert secret not in (await client.get(address)).text
        assert secret not in (tmp_path / "data" / "audit.jsonl").read_text()
        assert token[-43:] not in (tmp_path / "tokens.jsonl").read_text()
        again = await client.get("/confirm?action=issue&name=Ben&scope=read")
        assert again.status_code == 422
        assert "already has a token" in alert_of(again.text)
        issued = IssuedToken(entry, token)
        assert await signed_in(other, issued) == 200
        assert (await other.get("/tokens")).status_code == 200
        assert (await done(client, f"/confirm?action=revoke&id={entry.id}")).status_code == 200
        assert (await other.get("/tokens")).headers["location"] == "/sign-in"
        assert "shown once" not in (await client.get("/audit")).text


@pytest.mark.parametrize("by", ["page", "gRPC"])
async def test_of_two_operators_who_do_the_same_the_log_says_whose_action_it_was(
    tmp_path: Path, config: Config, admin: IssuedToken, by: str
) -> None:
    """The second one is told that it was done already, and the log does not say that this one has done it."""
    ben = token_of(Scope.ADMIN, name="Ben")
    tokens_file(tmp_path, admin, ben)
    async with (
        service_of(config) as service,
        RawClient(service.grpc) as device,
        visiting(service) as client,
        visiting(service) as other,
    ):
        await signed_in(client, admin)
        await signed_in(other, ben)
        asked = (CONFIRMED["seal"], f"/confirm?action=release&window={WINDOW}")
        expected = (f"Window {WINDOW} is sealed already.", f"Window {WINDOW} has its outcome already")
        grpc = (device.seal, device.release)
        for address, text, call in zip(asked, expected, grpc, strict=True):
            first, second = [form_of((await each.get(address)).text) for each in (client, other)]
            if by == "gRPC":
                await call()
            else:
                assert (await client.post("/act", data=first)).status_code == 200
            found = await other.post("/act", data=second)
            assert found.status_code == 422
            assert alert_of(found.text).startswith(text)
        ended = [(each["who"], each["outcome"]) for each in audit_of(tmp_path) if each["outcome"] != "begun"]
        assert ended == ([("Ann", "done")] * (by == "page") + [("Ben", "failed")]) * 2
        assert len(await service.catalog.releases(None)) == 1


async def test_two_operators_at_the_same_moment_do_it_once(tmp_path: Path, config: Config, admin: IssuedToken) -> None:
    async with service_of(config) as service, visiting(service) as client:
        await signed_in(client, admin)
        forms = [form_of((await client.get(CONFIRMED["seal"])).text) for _ in range(4)]
        answers = await asyncio.gather(*(client.post("/act", data=each) for each in forms))
        assert sorted(each.status_code for each in answers) == [200, 422, 422, 422]
        assert sorted(each["outcome"] for each in audit_of(tmp_path)) == ["begun"] * 4 + ["done"] + ["failed"] * 3


IMPOSSIBLE: tuple[tuple[str, str], ...] = (
    ("/confirm", "expected seal, release, issue or revoke"),
    ("/confirm?action=drop", "expected seal, release, issue or revoke"),
    ("/confirm?action=seal", "expected the number of a window"),
    ("/confirm?action=seal&window=1e3", "expected the number of a window"),
    ("/confirm?action=seal&window=99999999999999999999", "expected the number of a window"),
    ("/confirm?action=seal&window=5&early=yes", "has its outcome already, or was never open"),
    (f"/confirm?action=release&window={WINDOW}", "is open"),
    ("/confirm?action=issue&name=a", "choose at least one"),
    ("/confirm?action=issue&name=a&scope=root", "choose at least one"),
    ("/confirm?action=issue&name=&scope=read", "expected"),
    ("/confirm?action=issue&name=a%0Ab&scope=read", "expected"),
    ("/confirm?action=issue&name=a&scope=read&days=0", "expected 1 to 36,500"),
    ("/confirm?action=issue&name=a&scope=read&days=-1", "expected 1 to 36,500"),
    ("/confirm?action=issue&name=a&scope=read&days=1e9", "expected 1 to 36,500"),
    ("/confirm?action=revoke&id=0123456789abcdef", "No token with this id"),
    ("/confirm?action=revoke", "No token with this id"),
)


async def test_what_cannot_be_done_is_not_offered(tmp_path: Path, config: Config, admin: IssuedToken) -> None:
    async with service_of(config) as service, visiting(service) as client:
        await signed_in(client, admin)
        for address, why in IMPOSSIBLE:
            found = await client.get(address)
            assert found.status_code == 422, address
            assert why in alert_of(found.text)
        assert audit_of(tmp_path) == []


async def test_an_action_that_fails_is_in_the_log_too(
    tmp_path: Path, config: Config, admin: IssuedToken, reader: IssuedToken
) -> None:
    async with (
        service_of(config) as service,
        RawClient(service.grpc) as other,
        visiting(service) as client,
    ):
        await signed_in(client, admin)
        late = form_of((await client.get(CONFIRMED["revoke"].format(reader=reader.entry.id))).text)
        await done(client, CONFIRMED["revoke"].format(reader=reader.entry.id))
        found = await client.post("/act", data=late)
        assert found.status_code == 422
        assert alert_of(found.text) == "No token with this id."
        await other.seal()
        fields = form_of((await client.get(f"/confirm?action=release&window={WINDOW}")).text)
        (tmp_path / "data" / "receipts.jsonl").unlink()
        (tmp_path / "data" / "receipts.jsonl").mkdir()
        found = await client.post("/act", data=fields)
        assert found.status_code == 422
        assert "receipts" in alert_of(found.text)
        (tmp_path / "tokens.jsonl").chmod(0o640)
        found = await done(client, "/confirm?action=issue&name=Ben&scope=read")
        assert found.status_code == 422
        assert "readable by other users" in alert_of(found.text)
        lines = audit_of(tmp_path)
        assert [each["outcome"] for each in lines] == [
            "begun",
            "done",
            "begun",
            "failed",
            "begun",
            "failed",
            "begun",
            "failed",
        ]
        assert "receipts" in lines[5]["detail"]
        text = (await client.get("/audit")).text
        assert text.count('<span class="state failed">failed</span>') == 3


async def test_nothing_is_done_that_the_log_cannot_hold(tmp_path: Path, config: Config, admin: IssuedToken) -> None:
    async with service_of(config) as service, visiting(service) as client:
        await signed_in(client, admin)
        fields = form_of((await client.get(CONFIRMED["seal"])).text)
        (tmp_path / "data" / "audit.jsonl").mkdir()
        found = await client.post("/act", data=fields)
        assert found.status_code == 422
        assert alert_of(found.text).startswith("Nothing was done: the audit log ")
        assert await service.store.windows(PLAN.id) == {WINDOW: "open"}


async def test_a_token_that_was_issued_is_shown_though_the_log_could_not_hold_its_end(
    tmp_path: Path, config: Config, admin: IssuedToken
) -> None:
    from aggregator.audit import AuditEntry, AuditError, AuditLog

    whole = AuditLog.append

    def append(log: AuditLog, entry: AuditEntry) -> None:
        if entry.outcome != "begun":
            raise AuditError("the disk is full")
        whole(log, entry)

    async with service_of(config) as service, visiting(service) as client:
        await signed_in(client, admin)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(AuditLog, "append", append)
            found = await done(client, CONFIRMED["issue"])
            late = form_of((await client.get("/confirm?action=issue&name=Ben&scope=read")).text)
            assert (await done(client, "/confirm?action=issue&name=Ben&scope=read")).status_code == 200
            again = await client.post("/act", data=late)
        assert "hushsum_" in found.text
        assert "the audit log could not be written" in found.text
        assert alert_of(again.text).endswith("; the audit log could not be written.")
        assert "not known" in (await client.get("/audit")).text


# ------------------------------------------------------------------------------------------------------------ views


async def test_a_fresh_service_has_all_views(config: Config, admin: IssuedToken) -> None:
    async with service_of(config) as service, visiting(service) as client:
        await signed_in(client, admin)
        texts = {view: (await client.get(view)).text for view in VIEWS}
        assert service.grpc in texts["/service"]
        assert service.page in texts["/service"]
        assert "has refused nothing" in texts["/service"]
        assert "No setting of this process names a certificate" in texts["/service"]
        assert "Nothing is spent yet" in texts["/ledger"]
        assert "Nothing was done yet" in texts["/audit"]
        assert "Rita" in texts["/tokens"]
        assert all(f'href="{view}"' in texts["/service"] for view in VIEWS)


async def test_refusals_are_shown_by_reason(config: Config, admin: IssuedToken) -> None:
    async with service_of(config) as service, RawClient(service.grpc) as device, visiting(service) as client:
        await signed_in(client, admin)
        contributor = Contributor(PLAN, 7)
        await device.submit_one(PLAN.id, contributor.delta(1)[1])
        for _ in range(3):
            await device.submit_one(PLAN.id, contributor.delta(1, window=WINDOW + 50)[1])
        text = (await client.get("/service")).text
        rows = re.findall(r'scope="row">([a-z_]+)</th><td class="number">(\d+)</td>', text)
        assert rows == [("window_in_future", "3"), ("refused", "3"), ("acknowledged", "1")]


async def test_the_ledger_says_when_it_ends(tmp_path: Path, admin: IssuedToken) -> None:
    plan = small_plan(privacy={"unit": "client", "records_per_client": 3, "total_epsilon": 4})
    path = tokens_file(tmp_path, admin)
    config = config_of(tmp_path, plan, page_listen="127.0.0.1:0", tokens=str(path))
    async with service_of(config) as service, RawClient(service.grpc) as device, visiting(service) as client:
        await signed_in(client, admin)
        left = await _told(client)
        total = 4
        assert f"window {WINDOW + total - 1:,}" in left
        await service.store.open_windows(plan.id, WINDOW, WINDOW + total + 1)
        for number in range(total):
            await device.seal()
            await device.release()
            told = await _told(client)
            assert ("pays for no more outcome" in told) is (number == total - 1)
        await device.seal()
        with pytest.raises(Exception, match="window"):
            await device.release()
        text = (await client.get("/windows")).text
        assert "Releasing has stopped" in text
        page = (await client.get("/ledger")).text
        assert page.count('<tr><th scope="row">test</th>') == total
        assert re.search(r'class="number">4</td>', page)
        fields = form_of((await client.get(f"/confirm?action=release&window={WINDOW + total}")).text)
        found = await client.post("/act", data=fields)
        assert found.status_code == 422
        assert audit_of(tmp_path)[-1]["outcome"] == "failed"


async def _told(client: httpx2.AsyncClient) -> str:
    page = (await client.get("/ledger")).text
    found = re.search(r"<p[^>]*>((?:If each window|It pays for no).*?)</p>", page)
    assert found is not None, page
    return found[1]


async def test_certificates_are_shown_with_their_end(tmp_path: Path, admin: IssuedToken) -> None:
    certified = Certified(tmp_path / "certificates")
    tls = {"tls_cert": str(certified.certificate), "tls_key": str(certified.key)}
    config = page_config(tmp_path, admin, authentication="token", **tls)
    trusting = ssl.create_default_context(cafile=certified.ca)
    async with service_of(config) as service, visiting(service, verify=trusting) as client:
        await signed_in(client, admin)
        text = (await client.get("/service")).text
        assert re.search(r"<code>tls_cert</code></th><td>20\d\d-\d\d-\d\d \d\d:\d\d UTC</td>", text)
        certified.certificate.write_text("nothing")
        assert "expected certificates in PEM" in (await client.get("/service")).text


@pytest.mark.parametrize("plan", [secure_plan(), silo_plan(), report_plan()], ids=["secure", "silo", "reports"])
async def test_in_secure_and_local_plans_nothing_is_shown_by_client(
    tmp_path: Path, admin: IssuedToken, plan: Plan
) -> None:
    device = token_of(Scope.SUBMIT, name="alices-phone")
    path = tokens_file(tmp_path, admin, device)
    config = config_of(tmp_path, plan, page_listen="127.0.0.1:0", tokens=str(path))
    async with service_of(config) as service, visiting(service) as client:
        await signed_in(client, admin)
        pages = [await client.get(view) for view in VIEWS]
        assert [each.status_code for each in pages] == [200] * len(VIEWS)
        revoke = await client.get(f"/confirm?action=revoke&id={device.entry.id}")
        issue = await client.get("/confirm?action=issue&name=bobs-phone&scope=submit")
        await client.post("/act", data=form_of(revoke.text))
        await client.post("/act", data=form_of(issue.text))
        after = [await client.get(view) for view in VIEWS]
        for each in (*pages, revoke, *after):
            assert "alices-phone" not in each.text
        for each in after:
            assert "bobs-phone" not in each.text
        assert "phone" not in (tmp_path / "data" / "audit.jsonl").read_text()
        assert "1 token of devices is not listed" in pages[3].text
        assert [each["outcome"] for each in audit_of(tmp_path)] == ["begun", "done", "begun", "done"]


@pytest.mark.parametrize("scopes", ["scope=submit", "scope=submit&scope=read", "scope=read"])
async def test_in_a_secure_plan_no_refusal_and_no_line_of_the_log_names_a_device(
    tmp_path: Path, admin: IssuedToken, scopes: str
) -> None:
    """A name that is taken may be a device's."""
    device = token_of(Scope.SUBMIT, name="alices-phone")
    path = tokens_file(tmp_path, admin, device)
    config = config_of(tmp_path, secure_plan(), page_listen="127.0.0.1:0", tokens=str(path))
    async with service_of(config) as service, visiting(service) as client:
        await signed_in(client, admin)
        taken = await client.get(f"/confirm?action=issue&name=alices-phone&{scopes}")
        assert taken.status_code == 422
        assert alert_of(taken.text) == "This name already has a token: revoke it first."
        forms = [
            form_of((await client.get(f"/confirm?action=issue&name=bobs-phone&{each}")).text)
            for each in ("scope=submit", scopes)
        ]
        assert [(await client.post("/act", data=each)).status_code for each in forms] == [200, 422]
        log = (tmp_path / "data" / "audit.jsonl").read_text()
        assert "alices-phone" not in log
        assert log.count("phone") == (2 if scopes == "scope=read" else 0), "what the operator calls an analyst"
        assert "already has a token: revoke it first" in log


@pytest.mark.parametrize("plan", [PLAN, secure_plan()], ids=["central", "secure"])
async def test_why_a_token_cannot_be_issued_is_said_as_it_is(
    tmp_path: Path, admin: IssuedToken, plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tokens_file(tmp_path, admin)
    config = config_of(tmp_path, plan, page_listen="127.0.0.1:0", tokens=str(path))
    issue = "/confirm?action=issue&name=till-7&scope=submit"
    async with service_of(config) as service, visiting(service) as client:
        await signed_in(client, admin)
        unnamed = await client.get("/confirm?action=issue&name=%07&scope=submit")
        assert alert_of(unnamed.text).startswith("Name: expected")
        path.chmod(0o640)
        assert "the token file is readable by other users" in alert_of((await done(client, issue)).text)
        path.chmod(0o600)
        good = path.read_bytes()
        path.write_bytes(good + b"no token\n")
        assert "line 2: expected one JSON object" in alert_of((await done(client, issue)).text)
        path.write_bytes(good)
        await client.get("/tokens")  # the file is read again
        monkeypatch.setattr(_operations(service), "_entropy", SameEntropy(bytes.fromhex(admin.entry.id)))
        assert alert_of((await client.get(issue)).text) == f"Token {admin.entry.id} is listed twice."
    assert len(read_table(path)) == 1


class SameEntropy:
    """It repeats the same bytes: what is drawn from it was drawn before."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, size: int) -> bytes:
        return (self._data * size)[:size]


async def test_what_is_not_released_changes_nothing_that_a_reader_sees(
    tmp_path: Path, config: Config, admin: IssuedToken, reader: IssuedToken
) -> None:
    """Records, clients, refusals, lags and sizes of a window without an outcome."""
    plan = f"/plans/{PLAN.hex_id[:16]}"
    async with service_of(config) as service, RawClient(service.grpc) as device, visiting(service) as client:
        await signed_in(client, reader)

        async def seen() -> list[tuple[int, list[str], str]]:
            answers = [await client.get(each) for each in ("/", plan, f"{plan}/time", "/compare", *VIEWS, "/nowhere")]
            return [
                (each.status_code, sorted(each.headers), re.sub(r'(?<=form_token" value=")[^"]+', "", each.text))
                for each in answers
            ]

        before = await seen()
        for number in range(5):
            contributor = Contributor(PLAN, 7 + number)
            await device.submit_one(PLAN.id, contributor.delta(30)[1])
            await device.submit_one(PLAN.id, contributor.delta(1, window=WINDOW + 50)[1])
        assert await seen() == before


async def test_where_reports_lose_their_arrival_times_the_service_view_shows_whole_minutes(
    tmp_path: Path, admin: IssuedToken
) -> None:
    path = tokens_file(tmp_path, admin)
    config = config_of(tmp_path, report_plan(), page_listen="127.0.0.1:0", tokens=str(path))
    async with service_of(config) as service, visiting(service) as client:
        await signed_in(client, admin)
        service.metrics.refused(None)
        service.metrics._refusals.labels("late").inc()
        text = (await client.get("/service")).text
        assert "as of the last whole minute" in text
        assert "has refused nothing" in text, "before the next minute"
        service.metrics.registry.hold()
        assert "late</th>" in (await client.get("/service")).text


async def test_names_of_tokens_and_plans_are_no_markup(tmp_path: Path, admin: IssuedToken) -> None:
    hostile = token_of(Scope.ADMIN, name=HOSTILE)
    fields = PLAN.to_fields()
    plan = Plan.from_fields({**{key: value for key, value in fields.items() if key != "format"}, "name": HOSTILE})
    path = tokens_file(tmp_path, admin, hostile)
    config = config_of(tmp_path, plan, page_listen="127.0.0.1:0", tokens=str(path))
    async with service_of(config) as service, RawClient(service.grpc) as device, visiting(service) as client:
        await signed_in(client, hostile)
        await device.seal()
        await device.release()
        asked = [
            f"/confirm?action=revoke&id={hostile.entry.id}",
            f"/confirm?action=issue&name={HOSTILE}2&scope=admin",
            f"/confirm?action={HOSTILE}",
            f"/confirm?action=seal&window={HOSTILE}",
            f"/windows?before={HOSTILE}",
            f"/confirm?action=revoke&id={HOSTILE}",
        ]
        await done(client, asked[1])
        for address in (*VIEWS, *asked):
            text = (await client.get(address)).text
            assert "<img" not in text, address
        assert html.escape(HOSTILE) in (await client.get("/audit")).text
        assert html.escape(HOSTILE) in (await client.get("/tokens")).text


async def test_a_proxy_gives_read_alone(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a secret of the proxy\n")
    secret.chmod(0o600)
    proxy = {"page_proxy_header": "X-User", "page_proxy_secret": str(secret)}
    async with service_of(page_config(tmp_path, **proxy)) as service, visiting(service) as client:
        headers = {"X-User": "ann", "X-Hushsum-Proxy-Secret": "a secret of the proxy"}
        assert (await client.get("/", headers=headers)).status_code == 200
        for view in VIEWS:
            assert (await client.get(view, headers=headers)).status_code == 403
        assert (await client.post("/act", data={"id": "x"}, headers=headers)).status_code == 403


async def test_windows_come_in_pages_and_say_what_they_wait_for(tmp_path: Path, admin: IssuedToken) -> None:
    config, runtime = page_config(tmp_path, admin), SetRuntime()
    async with service_of(config, runtime) as service, RawClient(service.grpc) as device, visiting(service) as client:
        await signed_in(client, admin)
        await service.store.open_windows(PLAN.id, WINDOW, WINDOW + 149)
        await device.seal()
        await device.seal()
        text = (await client.get("/windows")).text
        assert text.count('<tr><th scope="row">') == 100
        older = html.unescape(re.findall(r'href="(/windows\?before=[^"]+)"', text)[0])
        page = (await client.get(older)).text
        assert page.count('<tr><th scope="row">') == 50
        assert f"the outcome of window {WINDOW:,}" in page
        assert len(re.findall(r'class="act"', page)) == 2  # the next to be sealed, and the next to be released
        runtime.set_ms += 10 * 3_600_000
        page = (await client.get(older)).text
        assert f"window {WINDOW + 2:,} to be sealed" in page
        assert ">Seal…<" in page


async def test_the_view_of_windows_reads_their_states_once(tmp_path: Path, config: Config, admin: IssuedToken) -> None:
    """They are as many as wait while releasing has stopped, and devices wait for the same event loop."""
    from aggregator.windows import WindowBook

    calls: list[int] = []
    whole = WindowBook.next_to_seal

    def counted(book: WindowBook) -> int | None:
        calls.append(1)
        return whole(book)

    async with service_of(config) as service, visiting(service) as client:
        await signed_in(client, admin)
        await service.store.open_windows(PLAN.id, WINDOW, WINDOW + 149)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(WindowBook, "next_to_seal", counted)
            assert (await client.get("/windows")).text.count('<tr><th scope="row">') == 100
        assert calls == [1]


async def test_a_service_without_a_data_directory_shows_all_and_does_nothing(
    tmp_path: Path, config: Config, admin: IssuedToken
) -> None:
    async with service_of(config) as service, visiting(service) as client:
        await signed_in(client, admin)
        operations = _operations(service)
        operations._log = None
        assert "actions need the setting data" in (await client.get("/tokens")).text
        assert "Actions are refused" in (await client.get("/audit")).text
        found = await client.get(CONFIRMED["seal"])
        assert found.status_code == 422
        assert "actions need the setting data" in alert_of(found.text).lower()


def _operations(service: Service) -> Any:
    import gc

    from aggregator.operations import ServiceOperations

    return next(
        each for each in gc.get_objects() if isinstance(each, ServiceOperations) and each._admin._store is service.store
    )
