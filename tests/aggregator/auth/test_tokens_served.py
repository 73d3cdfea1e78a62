"""Tokens at a real server: which scope opens which method, what a stranger hears, and what changes while it runs."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from structlog.testing import capture_logs

from aggregator.api import admission_control
from aggregator.api.calls import Call
from aggregator.app import Service
from aggregator.auth import tokens
from aggregator.auth.authenticators import NO_BEARER, DeclaredNameAuthenticator, TokenAuthenticator
from aggregator.auth.tokens import IssuedToken, TokenTable, change_table, issue
from aggregator.config import Config
from aggregator.errors import UnauthenticatedError
from aggregator.model import Peer, Scope
from aggregator.shuffler.app import running as running_shuffler
from hushsum.entropy import OsEntropy
from hushsum.plan import Plan
from hushsum.signing import DirectoryKey, Role, toml_of
from hushsum_proto import convert, metadata
from hushsum_proto.answers import Status
from hushsum_proto.rounds import Waiting
from hushsum_proto.v1 import wire_pb2 as pb
from hushsum_proto.v1.wire_pb2_grpc import SecureSumStub
from tests.aggregator.secure_clients import Line
from tests.aggregator.secure_site import SIZE, entered, plan_of
from tests.aggregator.shuffler.shuffled import KEY, shuffled_plan
from tests.plans import small_plan
from tests.services import NOW_MS, Contributor, RawClient, SetRuntime, config_of, counted, service_of, trailing

PLAN = small_plan()
SUBMIT, READ, ADMIN = Scope.SUBMIT, Scope.READ, Scope.ADMIN
# Which scopes open which method. A method of the protocol that is not here fails a test.
OPENS: Mapping[str, frozenset[Scope]] = {
    # These first: there is something to watch once a window is released.
    "Administration.SealWindow": frozenset({ADMIN}),
    "Administration.ReleaseWindow": frozenset({ADMIN}),
    "Collection.Hello": frozenset({SUBMIT}),
    "Collection.Submit": frozenset({SUBMIT}),
    "Collection.SubmitOne": frozenset({SUBMIT}),
    "Collection.SubmitLarge": frozenset({SUBMIT}),
    "SecureSum.TakePart": frozenset({SUBMIT}),
    "SecureSum.GetDirectory": frozenset({SUBMIT}),
    "Catalogue.GetPlan": frozenset({SUBMIT, READ, ADMIN}),
    "Catalogue.ListReleases": frozenset({READ}),
    "Catalogue.GetRelease": frozenset({READ}),
    "Catalogue.WatchReleases": frozenset({READ}),
    "Administration.GetStatus": frozenset({ADMIN}),
    "Administration.ListPlans": frozenset({ADMIN}),
    "Administration.ListWindows": frozenset({ADMIN}),
    "Administration.GetLedger": frozenset({ADMIN}),
}
OLDEST = {
    "Administration.SealWindow": pb.SealWindowRequest(oldest=True, early=True).SerializeToString(),
    "Administration.ReleaseWindow": pb.ReleaseWindowRequest(oldest=True).SerializeToString(),
}
METHODS = {
    f"{service.name}.{method.name}": method
    for service in pb.DESCRIPTOR.services_by_name.values()
    for method in service.methods
}


def token(name: str, *scopes: Scope, expires_ms: int | None = None) -> IssuedToken:
    return issue(OsEntropy(), name, scopes, now_ms=NOW_MS, expires_ms=expires_ms)


def client_of(address: str, shown: IssuedToken | str | None) -> RawClient:
    client = RawClient(address, None)
    text = shown.text if isinstance(shown, IssuedToken) else shown
    client.metadata = () if text is None else ((metadata.AUTHORIZATION, metadata.BEARER + text),)
    return client


class Guarded:
    """A service that asks for tokens, its file of them, and callers that show one."""

    def __init__(self, service: Service, file: Path, runtime: SetRuntime) -> None:
        self.service, self.file, self.runtime = service, file, runtime

    def client(self, shown: IssuedToken | str | None) -> RawClient:
        return client_of(self.service.grpc, shown)

    def change(self, *, without: tuple[IssuedToken, ...] = (), with_: tuple[IssuedToken, ...] = ()) -> None:
        gone = [each.entry.id for each in without]
        change_table(self.file, lambda table: table.changed(without=gone, with_=[each.entry for each in with_]))


@asynccontextmanager
async def guarded(folder: Path, *issued: IssuedToken, plan: Plan = PLAN) -> AsyncIterator[Guarded]:
    runtime, file = SetRuntime(), folder / "tokens.jsonl"
    change_table(file, lambda table: table.changed(with_=[each.entry for each in issued]))
    async with service_of(config_of(folder, plan, authentication="token", tokens=str(file)), runtime) as service:
        yield Guarded(service, file, runtime)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What happens within seconds happens within hundredths."""
    monkeypatch.setattr(tokens, "LOOK_S", 0.02)
    monkeypatch.setattr(admission_control, "RECHECK_S", 0.02)


async def called(client: RawClient, name: str, request: bytes = b"") -> grpc.aio.AioRpcError | None:
    """How a call of a method ends that says as little as it may; None where it is answered."""
    method = METHODS[name]
    kinds = {
        (False, False): client.channel.unary_unary,
        (False, True): client.channel.unary_stream,
        (True, False): client.channel.stream_unary,
        (True, True): client.channel.stream_stream,
    }
    make: Any = kinds[method.client_streaming, method.server_streaming]  # Any: four types of one form
    path = f"/{method.containing_service.full_name}/{method.name}"
    call = make(path)(iter(()) if method.client_streaming else request, metadata=client.metadata)
    try:
        await (call.read() if method.server_streaming else call)
        if call.done() and await call.code() is not grpc.StatusCode.OK:
            raise AssertionError("a call that fails raises")
    except grpc.aio.AioRpcError as error:
        return error
    call.cancel()
    return None


REFUSALS = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


CALLERS = {scope: token(f"the {scope.value}", scope) for scope in Scope}


async def opened_at(address: str, names: Iterable[str]) -> dict[str, frozenset[Scope]]:
    """What each method of a server is open for, as its answers show."""
    found: dict[str, frozenset[Scope]] = {}
    for name in names:
        opens = set()
        for scope, shown in CALLERS.items():
            async with client_of(address, shown) as client:
                error = await called(client, name, OLDEST.get(name, b""))
            if error is None or error.code() not in REFUSALS:
                opens.add(scope)
        found[name] = frozenset(opens)
    return found


async def opened(folder: Path) -> dict[str, frozenset[Scope]]:
    """What each method of a whole service is open for."""
    async with guarded(folder, *CALLERS.values()) as here:
        return await opened_at(here.service.grpc, OPENS)


def test_every_method_of_the_protocol_is_in_the_table() -> None:
    assert METHODS.keys() == OPENS.keys()


async def test_each_scope_opens_its_methods_and_no_other(tmp_path: Path) -> None:
    assert await opened(tmp_path) == OPENS


async def test_a_shuffler_asks_for_the_same_tokens(tmp_path: Path) -> None:
    plan, key, file = shuffled_plan(), tmp_path / "shuffler.pem", tmp_path / "tokens.jsonl"
    (tmp_path / "plan.json").write_bytes(plan.bundle)
    KEY.save(key)
    (tmp_path / "shufflers.toml").write_text(toml_of(DirectoryKey("sh-1", Role.SHUFFLER, KEY.verify_key)))
    change_table(file, lambda _: TokenTable(each.entry for each in CALLERS.values()))
    config = Config.of(
        role="shuffler",
        plan=str(tmp_path / "plan.json"),
        data=str(tmp_path / "shuffled"),
        upstream="127.0.0.1:1",
        shuffler_key=str(key),
        shufflers=str(tmp_path / "shufflers.toml"),
        listen="127.0.0.1:0",
        metrics_listen="",
        authentication="token",
        tokens=str(file),
    )
    served = {name: scopes for name, scopes in OPENS.items() if name.startswith(("Collection.", "Catalogue."))}
    async with running_shuffler(config, SetRuntime()) as shuffler:
        assert await opened_at(shuffler.grpc, served) == served
        async with client_of(shuffler.grpc, None) as stranger:
            errors = [await called(stranger, name) for name in served]
        assert {error and error.details() for error in errors} == {NO_BEARER}


async def test_who_is_known_and_may_not_is_told_the_scope_that_is_missing(tmp_path: Path) -> None:
    reader = token("alice", READ)
    async with guarded(tmp_path, reader) as here, here.client(reader) as client:
        for name, wanted in (("Collection.Submit", "submit"), ("Administration.GetLedger", "admin")):
            error = await called(client, name)
            assert error is not None
            assert error.code() is grpc.StatusCode.PERMISSION_DENIED
            assert error.details() == f"permission denied: this call requires the scope {wanted}"
            assert trailing(error)[metadata.REASON] == "forbidden"


def scopes_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = TokenAuthenticator.admit
    monkeypatch.setattr(TokenAuthenticator, "admit", lambda self, peer, *_: honest(self, peer, *Scope))


def one_scope_holds_another(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = TokenAuthenticator.admit
    monkeypatch.setattr(TokenAuthenticator, "admit", lambda self, peer, *scopes: honest(self, peer, *scopes, ADMIN))


def a_method_asks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Call, "admit", lambda *_: "anybody")


@pytest.mark.parametrize("plant", (scopes_are_ignored, one_scope_holds_another, a_method_asks_nobody))
async def test_a_planted_mistake_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    plant(monkeypatch)
    assert await opened(tmp_path) != OPENS


async def test_whatever_is_wrong_with_a_token_a_stranger_hears_the_same_of_every_method(tmp_path: Path) -> None:
    alice = token("alice", *Scope)
    expired, revoked = token("bob", *Scope, expires_ms=NOW_MS), token("carol", *Scope)
    strangers = {
        "nothing": None,
        "unknown": token("dave", *Scope).text,
        "expired": expired.text,
        "revoked": revoked.text,
        "wrong secret": alice.text[:-1] + ("A" if alice.text[-1] != "A" else "B"),
        "no token": "hunter2",
        "empty": "",
    }
    heard: dict[tuple[object, ...], list[str]] = {}
    async with guarded(tmp_path, alice, expired, revoked) as here:
        here.change(without=(revoked,))
        await until(lambda: counted(here.service, "hushsum_tokens") == 2)
        for what, text in strangers.items():
            async with here.client(text) as client:
                for name in METHODS:
                    for request in (b"", b"\xff"):  # the second is no message, which is not told to strangers either
                        error = await called(client, name, request)
                        assert error is not None, (what, name)
                        said = (error.code(), error.details(), tuple(error.trailing_metadata() or ()))
                        heard.setdefault(said, []).append(f"{name}, {what}")
        refusals = counted(here.service, "hushsum_refusals_total", reason="unauthenticated")
    assert [said[:2] for said in heard] == [(grpc.StatusCode.UNAUTHENTICATED, NO_BEARER)], heard
    assert refusals == 2 * len(strangers) * len(METHODS)


async def test_a_token_is_told_by_its_scheme_in_any_case_and_by_no_other(tmp_path: Path) -> None:
    alice = token("alice", READ)
    async with guarded(tmp_path, alice) as here:
        for scheme, good in (("bearer ", True), ("BEARER  ", True), ("Basic ", False), ("", False), ("Bearer", False)):
            async with here.client(alice) as client:
                client.metadata = ((metadata.AUTHORIZATION, scheme + alice.text),)
                assert (await called(client, "Catalogue.ListReleases") is None) is good, scheme


async def test_who_declares_another_name_than_its_tokens_is_refused_and_told_its_own(tmp_path: Path) -> None:
    alice, bob = token("alice", SUBMIT), token("bob", SUBMIT)
    _, delta = Contributor(PLAN, 7).delta()
    async with guarded(tmp_path, alice, bob) as here, here.client(alice) as client, here.client(bob) as other:
        client.metadata = (*client.metadata, (metadata.CLIENT_ID, "alice"))
        assert (await client.submit_one(PLAN.id, delta)).status is Status.ACKNOWLEDGED
        other.metadata = (*other.metadata, (metadata.CLIENT_ID, "alice"))
        with pytest.raises(grpc.aio.AioRpcError, match="belongs to 'bob'") as caught:
            await other.submit_one(PLAN.id, delta)
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED


async def test_health_and_reflection_need_no_token(tmp_path: Path) -> None:
    async with guarded(tmp_path) as here, here.client(None) as client:
        check: Any = client.channel.unary_unary("/grpc.health.v1.Health/Check")
        assert await check(b"") == b"\x08\x01"
        reflect: Any = client.channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
        assert await reflect(iter([b"\x3a\x00"])).read()  # list_services


# ----------------------------------------------------------------------------------------------- while a service runs


async def until(condition: Callable[[], bool]) -> None:
    """Returns once something is so; the suite's own limit ends what never becomes so."""
    while not condition():  # noqa: ASYNC110  what is waited for tells nobody
        await asyncio.sleep(0.005)


async def ended(call: Any) -> tuple[grpc.StatusCode, str]:
    """How a stream ends that was open."""
    async with asyncio.timeout(120):  # one that the service does not end would be waited for for ever
        return await call.code(), await call.details()


LASTING = ("Collection.Submit", "Collection.SubmitLarge", "Catalogue.WatchReleases")


def opening(client: RawClient, name: str) -> Any:
    """A stream that its client leaves open, and on which it says nothing."""

    async def silence() -> AsyncIterator[Any]:
        await asyncio.Event().wait()
        yield None

    if name == "Catalogue.WatchReleases":
        return client.catalog.WatchReleases(pb.ListReleasesRequest(), metadata=client.metadata)
    method = METHODS[name]
    path = f"/{method.containing_service.full_name}/{method.name}"
    kind: Any = client.channel.stream_stream if method.server_streaming else client.channel.stream_unary
    return kind(path)(silence(), metadata=client.metadata)


class Streams:
    """The open streams of a service, as it counts them itself."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[admission_control.OpenCalls] = []
        honest = admission_control.OpenCalls.__init__

        def noted(streams: admission_control.OpenCalls) -> None:
            honest(streams)
            self.made.append(streams)

        monkeypatch.setattr(admission_control.OpenCalls, "__init__", noted)

    def __len__(self) -> int:
        return sum(len(each) for each in self.made)


@pytest.mark.parametrize("how", ("revoked", "expired"))
@pytest.mark.parametrize("name", LASTING)
async def test_an_open_stream_ends_soon_after_its_token_and_that_of_others_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, how: str
) -> None:
    streams = Streams(monkeypatch)
    alice, bob = token("alice", *Scope, expires_ms=NOW_MS + 60_000), token("bob", *Scope)
    async with guarded(tmp_path, alice, bob) as here, here.client(alice) as client, here.client(bob) as other:
        call, goes_on = opening(client, name), opening(other, name)
        await until(lambda: len(streams) == 2)
        if how == "revoked":
            here.change(without=(alice,))
        else:
            here.runtime.set_ms = NOW_MS + 60_000
        assert await ended(call) == (grpc.StatusCode.UNAUTHENTICATED, NO_BEARER)
        await until(lambda: len(streams) == 1)
        assert not goes_on.done()
        goes_on.cancel()
        await until(lambda: len(streams) == 0)


async def test_a_client_that_waits_for_its_cohort_leaves_it_with_its_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    streams = Streams(monkeypatch)
    plan, alice, bob = plan_of(cohort_wait="5m"), token("alice", SUBMIT), token("bob", SUBMIT)
    async with guarded(tmp_path, alice, bob, plan=plan) as here, here.client(alice) as one, here.client(bob) as two:
        lines = [Line(SecureSumStub(each.channel).TakePart(metadata=each.metadata)) for each in (one, two)]
        assert await entered(lines[0], plan) == Waiting(SIZE)
        assert await entered(lines[1], plan) == Waiting(SIZE)
        here.change(without=(alice,))
        with pytest.raises(grpc.aio.AioRpcError, match="expected a valid token") as caught:
            await lines[0].hear()
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        await until(lambda: len(streams) == 1)
        two_again = Line(SecureSumStub(two.channel).TakePart(metadata=two.metadata))
        assert await entered(two_again, plan) == Waiting(SIZE)
        two_again.cut()


async def test_a_token_is_rotated_without_a_restart_while_its_client_submits(tmp_path: Path) -> None:
    old, contributor = token("alice", SUBMIT), Contributor(PLAN, 7)
    new = token("alice", SUBMIT)
    async with guarded(tmp_path, old) as here, here.client(old) as client, here.client(new) as renewed:
        requests: asyncio.Queue[pb.SubmitRequest] = asyncio.Queue()

        async def sent() -> AsyncIterator[pb.SubmitRequest]:
            while True:
                yield await requests.get()

        async def submitted(call: Any) -> bool:
            await requests.put(pb.SubmitRequest(plan_id=PLAN.id, delta=contributor.delta()[1]))
            return convert.answer_from_wire(await call.read()).status is Status.ACKNOWLEDGED

        call: Any = client.collection.Submit(sent(), metadata=client.metadata)
        assert await submitted(call)
        grace_ms = NOW_MS + 60_000
        kept = issue_again(old, expires_ms=grace_ms)
        here.change(without=(old,), with_=(kept, new))
        await until(lambda: counted(here.service, "hushsum_tokens") == 2)
        assert await submitted(call)  # within the grace both are good
        assert (await renewed.submit_one(PLAN.id, contributor.delta()[1])).status is Status.ACKNOWLEDGED
        here.runtime.set_ms = grace_ms
        assert await ended(call) == (grpc.StatusCode.UNAUTHENTICATED, NO_BEARER)
        assert (await renewed.submit_one(PLAN.id, contributor.delta()[1])).status is Status.ACKNOWLEDGED
        with pytest.raises(grpc.aio.AioRpcError, match="expected a valid token"):
            await client.submit_one(PLAN.id, contributor.delta()[1])


def issue_again(issued: IssuedToken, *, expires_ms: int) -> IssuedToken:
    """The same token with another expiry."""
    from dataclasses import replace

    return IssuedToken(replace(issued.entry, expires_ms=expires_ms), issued.text)


async def test_a_file_that_is_spoilt_changes_nothing_for_its_callers(tmp_path: Path) -> None:
    alice = token("alice", READ)
    async with guarded(tmp_path, alice) as here, here.client(alice) as client:
        here.file.write_bytes(b"{")
        await until(lambda: counted(here.service, "hushsum_tokens_unreadable") == 1)
        assert await called(client, "Catalogue.ListReleases") is None


async def test_nothing_of_a_caller_or_its_token_is_in_the_journal(tmp_path: Path) -> None:
    alice = token("Alice of till 7", SUBMIT)
    with capture_logs() as lines:
        async with guarded(tmp_path, alice) as here, here.client(alice) as client, here.client("hunter2") as stranger:
            await client.submit_one(PLAN.id, Contributor(PLAN, 7).delta()[1])
            for name in METHODS:
                await called(client, name)
                await called(stranger, name)
            here.change(without=(alice,))
            await until(lambda: counted(here.service, "hushsum_tokens") == 0)
            await called(client, "Collection.Hello")
    told = repr(lines)
    secret = alice.text[-43:]
    assert lines
    assert not [each for each in ("Alice", alice.entry.id, secret, "hunter2", "Bearer") if each in told], told


async def test_a_call_that_goes_by_another_name_has_lapsed() -> None:
    class Renaming(DeclaredNameAuthenticator):
        name = "alice"

        def admit(self, peer: Peer, *scopes: Scope) -> str:
            return self.name

    class Context:
        def peer(self) -> str:
            return "unix:"

        def invocation_metadata(self) -> tuple[()]:
            return ()

        def auth_context(self) -> dict[str, list[bytes]]:
            return {}

    names = Renaming()
    call = Call(Context(), names)  # type: ignore[arg-type]  # it has all that a call asks of it
    assert call.lapse() is None  # it has asked nobody yet
    call.client_id()
    assert call.lapse() is None
    names.name = "bob"
    assert isinstance(call.lapse(), UnauthenticatedError)
