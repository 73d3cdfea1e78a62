"""Who calls, and what every error becomes: the edge between gRPC and the service."""

import asyncio
from typing import Any

import grpc.aio
import pytest

from aggregator.api.admin import Admin
from aggregator.api.admission_control import CancellableCall, Malformed, one_message, reader
from aggregator.api.calls import Call, Methods
from aggregator.auth.authenticators import DeclaredNameAuthenticator
from aggregator.errors import (
    ForbiddenError,
    RefusedError,
    ReleasingStoppedError,
    StoreError,
    UnauthenticatedError,
    WindowOrderError,
)
from aggregator.observability.metrics import Metrics
from aggregator.release.catalog import NotFoundError
from hushsum.errors import BudgetError, Reason
from hushsum_proto.answers import Refusal, ServiceReason
from hushsum_proto.errors import MalformedMessageError
from hushsum_proto.v1 import wire_pb2 as pb
from tests.services import trailing

ELSEWHERE = "ipv4:192.0.2.7:50123"


class Context:
    """What a call knows of its peer."""

    def __init__(self, peer: str) -> None:
        self._peer = peer

    def peer(self) -> str:
        return self._peer

    def invocation_metadata(self) -> tuple[tuple[str, str], ...]:
        return (("hushsum-client-id", "alice"),)

    def auth_context(self) -> dict[str, list[bytes]]:
        return {}


def call_from(peer: str) -> Call:
    return Call(Context(peer), DeclaredNameAuthenticator())  # type: ignore[arg-type]  # it has all that a call asks of it


async def test_the_administration_answers_nobody_from_elsewhere() -> None:
    # Without a store or anything else: a call that went on to them would fail otherwise.
    service = object.__new__(Admin)
    call = call_from(ELSEWHERE)

    for refused in (
        service.get_status(call, pb.StatusRequest()),
        service.seal_window(call, pb.SealWindowRequest(oldest=True, early=True)),
        service.release_window(call, pb.ReleaseWindowRequest(oldest=True)),
        service.list_plans(call, pb.ListPlansRequest()),
        service.list_windows(call, pb.ListWindowsRequest()),
        service.get_ledger(call, pb.GetLedgerRequest()),
    ):
        with pytest.raises(UnauthenticatedError, match="this machine"):
            await refused


def test_a_declared_name_from_elsewhere_is_nobody() -> None:
    assert call_from("unix:").client_id() == "alice"
    with pytest.raises(UnauthenticatedError, match="this machine"):
        call_from(ELSEWHERE).client_id()


def test_bytes_that_are_no_message_are_told_apart_without_raising() -> None:
    read = reader(pb.SubmitRequest, 4096)

    assert read(b"\xff\xff") == Malformed(2)
    assert read(pb.SubmitRequest(delta=b"x").SerializeToString()) == pb.SubmitRequest(delta=b"x")


async def ended_by(error: Exception, *, for_operator: bool = False) -> grpc.aio.AioRpcError:
    """What a caller gets to see of an error."""

    async def fail(_: Call, __: pb.StatusRequest) -> pb.StatusReply:
        raise error

    methods = Methods("test.Service", DeclaredNameAuthenticator(), Metrics(), for_operator=for_operator)
    methods.unary("Fail", pb.StatusRequest, fail)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((methods.handler(["Fail"]),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        method = channel.unary_unary("/test.Service/Fail", bytes, bytes)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method(b"")
    await server.stop(None)
    return caught.value


@pytest.mark.parametrize(
    ("error", "code", "reason"),
    (
        (RefusedError(Refusal.of(ServiceReason.OVERLOADED, "x", 70)), grpc.StatusCode.RESOURCE_EXHAUSTED, "overloaded"),
        (RefusedError(Refusal.of(ServiceReason.SHUTTING_DOWN, "x")), grpc.StatusCode.UNAVAILABLE, "shutting_down"),
        (RefusedError(Refusal.of(Reason.WRONG_PLAN, "x")), grpc.StatusCode.FAILED_PRECONDITION, "wrong_plan"),
        (UnauthenticatedError("x"), grpc.StatusCode.UNAUTHENTICATED, "unauthenticated"),
        (ForbiddenError("x"), grpc.StatusCode.PERMISSION_DENIED, "forbidden"),
        (MalformedMessageError("x"), grpc.StatusCode.INVALID_ARGUMENT, "malformed"),
        (NotFoundError("x"), grpc.StatusCode.NOT_FOUND, "not_found"),
        (WindowOrderError("x"), grpc.StatusCode.FAILED_PRECONDITION, "window_order"),
        (ReleasingStoppedError("x"), grpc.StatusCode.FAILED_PRECONDITION, "releasing_stopped"),
        (BudgetError("x"), grpc.StatusCode.FAILED_PRECONDITION, "budget"),
        (StoreError("store /srv/secret/store.db: a secret"), grpc.StatusCode.UNAVAILABLE, "unavailable"),
        (ZeroDivisionError("a secret"), grpc.StatusCode.INTERNAL, "internal"),
    ),
)
async def test_an_error_becomes_its_status_with_its_reason(
    error: Exception, code: grpc.StatusCode, reason: str
) -> None:
    caught = await ended_by(error)

    assert (caught.code(), trailing(caught)["hushsum-reason"]) == (code, reason)
    assert "secret" not in str(caught.details())
    if reason == "overloaded":
        assert trailing(caught)["hushsum-retry-after-ms"] == "70"


async def test_the_operator_is_told_what_failed_and_nobody_where_files_lie() -> None:
    text = "store /srv/hush/data/store.db: disk full; id 00ff/3 of http://x/y"

    operator = await ended_by(StoreError(text), for_operator=True)
    stopped = await ended_by(ReleasingStoppedError("see '/srv/hush/receipts.jsonl'"), for_operator=True)
    other = await ended_by(StoreError(text))

    assert operator.details() == "store store.db: disk full; id 00ff/3 of http://x/y"
    assert stopped.details() == "see 'receipts.jsonl'"
    assert other.details() == "internal error; see the service's log"


def test_a_service_that_lacks_a_method_of_the_protocol_does_not_start() -> None:
    methods = Methods("hushsum.v1.Administration", DeclaredNameAuthenticator(), Metrics())

    with pytest.raises(AssertionError, match="GetStatus"):
        methods.handler(["GetStatus"])


class Unread:
    """The context of a call whose message has not come."""

    def __init__(self, *messages: object) -> None:
        self.came, self.begun = asyncio.Event(), asyncio.Event()
        self.reads: list[str] = []
        self._messages = [*messages]

    async def read(self) -> object:
        if self._messages:
            return self._messages.pop(0)
        self.begun.set()
        try:
            await self.came.wait()
        except asyncio.CancelledError:
            self.reads.append("cancelled")
            raise
        self.reads.append("ended")
        return grpc.aio.EOF


@pytest.mark.parametrize("messages", ((), (pb.StatusRequest(),)), ids=("no message", "no end after the message"))
async def test_a_read_is_never_cancelled_although_its_call_is(messages: tuple[object, ...]) -> None:
    """gRPC frees what it allocated for a read once that has ended, and never if it was cancelled: 20,000 took 10 MB."""
    context: Any = Unread(*messages)
    call = asyncio.create_task(one_message(CancellableCall(), context))
    await context.begun.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert context.reads == []
    context.came.set()  # the connection is gone, and with it the read ends
    await asyncio.sleep(0)
    assert context.reads == ["ended"]
