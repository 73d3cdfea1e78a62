"""What a client shows, and what it does while the service does not accept it: everything stays in the spool."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from typing_extensions import override

from edge_client import (
    AuthenticationError,
    Config,
    Credentials,
    EdgeClient,
    EdgeError,
    FlushTimeoutError,
    SystemRuntime,
    UnreachableError,
)
from hushsum_proto.answers import Answer, Refusal, ServiceReason, Status
from hushsum_proto.errors import CredentialsError
from hushsum_proto.metadata import AUTHORIZATION, REASON
from hushsum_proto.v1 import wire_pb2 as pb
from tests.authorities import replace
from tests.edge_client.clocks import until
from tests.edge_client.model_service import ModelService
from tests.plans import small_plan

CONFIG = Config(backoff_first_s=0.01, backoff_longest_s=0.05, first_contact_s=0.1, close_flush_s=0.0)
OLD, NEW = "hushsum_old", "hushsum_new"
REASONS = (ServiceReason.UNAUTHENTICATED, ServiceReason.FORBIDDEN)
Context = grpc.aio.ServicerContext[Any, Any]  # Any: the types of messages are those of each method


class Guarded(ModelService):
    """Asks for a token.

    Attributes:
        good: The one that it accepts.
        reason: How it refuses any other.
        seen: Every token that came.
    """

    good = OLD
    reason = ServiceReason.UNAUTHENTICATED

    def __init__(self) -> None:
        super().__init__(small_plan())
        self.clock_ms = SystemRuntime().now_ms
        self.seen: list[str] = []

    async def check(self, context: Context) -> None:
        came = dict(context.invocation_metadata() or ()).get(AUTHORIZATION, "none")
        self.seen.append(str(came))
        if came != f"Bearer {self.good}":
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "no such token", ((REASON, self.reason.value),))

    @override
    async def Hello(self, request: pb.HelloRequest, context: Context) -> pb.HelloReply:
        await self.check(context)
        return await super().Hello(request, context)


@pytest.fixture
async def guarded() -> AsyncIterator[Guarded]:
    service = Guarded()
    await service.start()
    yield service
    await service.stop()


@pytest.fixture
def token(tmp_path: Path) -> Path:
    """The file of a token, which is good at first."""
    path = tmp_path / "token"
    path.write_text(f"{OLD}\n")
    return path


def client_of(service: ModelService, path: Path, token: str | Path | None, **settings: Any) -> EdgeClient:
    shown = Credentials(token=token) if isinstance(token, str) else Credentials(token_file=token)
    credentials = None if token is None else shown
    return EdgeClient(service.target, spool=path, config=CONFIG, credentials=credentials, **settings)


async def test_a_token_goes_with_each_connection(guarded: Guarded, path: Path, token: Path) -> None:
    for shown in (token, OLD):
        async with client_of(guarded, path, shown) as client:
            await client.add([1.0, 2.0])
            await client.flush(120)
    assert len(guarded.fold.bytes_of) == 2
    assert set(guarded.seen) == {f"Bearer {OLD}"}


@pytest.mark.parametrize("reason", REASONS, ids=str)
@pytest.mark.parametrize("shown", (None, NEW), ids=("none", "a wrong one"))
async def test_a_fixed_token_that_is_refused_ends_the_session_and_loses_nothing(
    guarded: Guarded, path: Path, shown: str | None, reason: ServiceReason
) -> None:
    guarded.good = OLD
    async with client_of(guarded, path, OLD) as client:
        guarded.decide = lambda each: Answer(
            each, Status.REFUSED, Refusal.of(ServiceReason.OVERLOADED, "later", 60_000)
        )
        await client.add([1.0, 2.0])
    guarded.reason = reason
    with pytest.raises(AuthenticationError, match="no such token"):
        async with client_of(guarded, path, shown) as client:
            await client.flush(120)

    guarded.decide = lambda _: None
    async with client_of(guarded, path, OLD) as client:
        await client.flush(120)
    assert len(guarded.fold.bytes_of) == 1


@pytest.mark.parametrize("reason", REASONS, ids=str)
async def test_a_token_from_a_file_is_waited_for_and_a_rotated_one_is_found(
    guarded: Guarded, path: Path, token: Path, reason: ServiceReason
) -> None:
    guarded.reason = reason
    async with client_of(guarded, path, token):
        pass
    guarded.good = NEW
    async with client_of(guarded, path, token) as client:
        await client.add([1.0, 2.0])
        await until(lambda: len(guarded.seen) > 3, "it tries again and again")
        with pytest.raises(FlushTimeoutError, match=r"rejected the credentials of this client: .*no such token"):
            await client.flush(0.3)
        assert client.status().queued == 1
        replace(token, NEW.encode())
        await client.flush(120)
    assert len(guarded.fold.bytes_of) == 1


@pytest.mark.parametrize("reason", REASONS, ids=str)
async def test_a_delta_that_is_answered_so_is_not_given_up(
    guarded: Guarded, path: Path, token: Path, reason: ServiceReason
) -> None:
    refusals = iter([reason] * 2)

    def decide(delta_id: Any) -> Answer | None:
        refused = next(refusals, None)
        return None if refused is None else Answer(delta_id, Status.REFUSED, Refusal.of(refused, "revoked"))

    guarded.decide = decide
    for unary in (False, True):
        config = Config(backoff_first_s=0.01, backoff_longest_s=0.05, unary=unary)
        spool = path.with_name(f"{unary}.db")
        client = EdgeClient(guarded.target, spool=spool, config=config, credentials=Credentials(token_file=token))
        refusals = iter([reason] * 2)
        async with client:
            await client.add([1.0, 2.0])
            await client.flush(120)
            assert client.status().acknowledged == 1
            assert not client.status().refused


@pytest.mark.parametrize("reason", REASONS, ids=str)
async def test_with_a_fixed_token_it_stays_in_the_spool(guarded: Guarded, path: Path, reason: ServiceReason) -> None:
    guarded.decide = lambda each: Answer(each, Status.REFUSED, Refusal.of(reason, "revoked"))
    async with client_of(guarded, path, OLD) as client:
        await client.add([1.0, 2.0])
        with pytest.raises(AuthenticationError, match="revoked"):
            await client.flush(120)
    guarded.decide = lambda _: None
    async with client_of(guarded, path, OLD) as client:
        await client.flush(120)
    assert len(guarded.fold.bytes_of) == 1


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    (
        (
            lambda token: token.write_text(NEW),
            AuthenticationError,
            "^the service rejected the credentials .* no such token",
        ),
        (lambda token: token.write_text("\n"), UnreachableError, "token: expected a line of printable ASCII"),
        (lambda token: token.unlink(), UnreachableError, "token: .* cannot be read: No such file"),
    ),
    ids=("a wrong one", "an empty file", "no file"),
)
async def test_the_first_contact_tells_in_the_end_why_there_is_no_plan(
    guarded: Guarded, path: Path, token: Path, spoil: Callable[[Path], object], error: type[EdgeError], message: str
) -> None:
    spoil(token)
    with pytest.raises(error, match=message):
        await client_of(guarded, path, token).__aenter__()


def test_a_setting_never_sends_a_token_in_plaintext_to_another_machine(path: Path) -> None:
    def client(credentials: Credentials | None, target: str = "gateway.example:7443") -> EdgeClient:
        return EdgeClient(target, spool=path, config=Config(insecure=True), credentials=credentials)

    with pytest.raises(CredentialsError, match=r"token: it would be sent unencrypted to gateway.example:7443"):
        client(Credentials(token=OLD))
    assert not path.exists()
    for allowed in (None, Credentials(), Credentials(token=OLD, insecure=True)):
        client(allowed)
    client(Credentials(token=OLD), "127.0.0.1:7443")


async def test_a_token_is_in_no_repr_and_no_log(guarded: Guarded, path: Path, caplog: pytest.LogCaptureFixture) -> None:
    credentials = Credentials(token=NEW)
    with pytest.raises(AuthenticationError) as caught:
        await client_of(guarded, path, NEW).__aenter__()
    assert NEW not in repr(credentials) + repr(caught.value) + caplog.text
