"""Health and reflection: nobody signs in for them, so few at once, with a time for each, and ended at a stop.

They have places of their own, which calls of no other kind take; among those who ask, no address can take another's.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from functools import partial
from typing import Any, Final

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2  # type: ignore[import-untyped]  # it ships no types
from grpc_reflection.v1alpha import reflection, reflection_pb2  # type: ignore[import-untyped]  # it ships no types

from aggregator.callers.places import SharedPlaces
from aggregator.catalogue import NotFoundError
from aggregator.refusals import RefusedError
from aggregator.server.connections import ConnectionGuard, network_of
from aggregator.server.endings import Context, Endings
from aggregator.server.incoming import GRACE_S, QUESTION_BYTES_MAX, Malformed, next_message, one_message, reader
from aggregator.server.open_streams import Interruptible, OpenStreams
from aggregator.watching.metrics import Metrics
from hushsum_proto.answers import Refusal, ServiceReason

HEALTH_CHECKS_MAX: Final = 256
HEALTH_WATCHERS_MAX: Final = 64
REFLECTIONS_MAX: Final = 16
LIVENESS: Final = "liveness"  # of whether this process runs; all other names are of whether it can be used

_HEALTH: Final = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
_STATUS: Final = health_pb2.HealthCheckResponse


class Probes:
    """What load balancers and people with a command line ask of a server.

    Args:
        streams: Where open calls are looked at again.
        metrics: Counts what is refused.
        guard: Is told of calls that fail.
    """

    def __init__(self, streams: OpenStreams, metrics: Metrics, guard: ConnectionGuard) -> None:
        self._streams = streams
        self._endings = Endings(metrics, for_operator=False, guard=guard)
        self._checks = SharedPlaces(HEALTH_CHECKS_MAX, "health checks", guard.does_not_read)
        self._watchers = SharedPlaces(HEALTH_WATCHERS_MAX, "watchers of health", guard.does_not_read)
        self._reflections = SharedPlaces(REFLECTIONS_MAX, "reflections", guard.does_not_read)
        self._said: dict[str, Any] = {}  # Any, here and below: the messages of packages that ship no types
        self._names: tuple[str, ...] = (health.OVERALL_HEALTH,)
        self._changed = asyncio.Event()  # replaced at each change: who waits holds the old one
        self._drains = self._ends = False

    def add_to(self, server: grpc.aio.Server, names: Iterable[str]) -> None:
        """Serves health of these services, and reflection of them and of itself."""
        self._names = (health.OVERALL_HEALTH, *names)
        self._said[LIVENESS] = _STATUS.SERVING
        self.tell(ready=True)
        asked, small = health_pb2.HealthCheckRequest, partial(reader, bytes_max=QUESTION_BYTES_MAX)
        methods = {
            # One reply of a stream has the same bytes as the reply of a call that has one.
            "Check": grpc.stream_stream_rpc_method_handler(
                self._telling(self._checks, self._answering(self._check)), small(asked), _bytes_of
            ),
            "List": grpc.stream_stream_rpc_method_handler(
                self._telling(self._checks, self._answering(self._list)), small(health_pb2.HealthListRequest), _bytes_of
            ),
            "Watch": grpc.stream_stream_rpc_method_handler(
                self._telling(self._watchers, self._watch), small(asked), _bytes_of
            ),
        }
        about = reflection.aio.ReflectionServicer([*names, _HEALTH, reflection.SERVICE_NAME])
        reflecting = grpc.stream_stream_rpc_method_handler(
            self._telling(self._reflections, lambda call, context: self._reflect(about, call, context)),
            small(reflection_pb2.ServerReflectionRequest),
            _bytes_of,
        )
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(_HEALTH, methods),
                grpc.method_handlers_generic_handler(reflection.SERVICE_NAME, {"ServerReflectionInfo": reflecting}),
            )
        )

    def tell(self, *, ready: bool) -> None:
        """Says whether what is served here works, until the next time; a process that stops is not asked any more."""
        for name in self._names:
            self._said[name] = _STATUS.SERVING if ready and not self._drains else _STATUS.NOT_SERVING
        self._wake()

    def fail(self) -> None:
        """Says that this process cannot go on."""
        self._drains = True
        self._said[LIVENESS] = _STATUS.NOT_SERVING
        self.tell(ready=False)

    def drain(self) -> None:
        """Says that this process stops, and ends the streams of those who watch it; it is alive until it has."""
        self._drains = self._ends = True
        self.tell(ready=False)

    def _wake(self) -> None:
        """Something may have changed: whoever watches looks again."""
        self._changed.set()
        self._changed = asyncio.Event()

    def _telling(
        self, places: SharedPlaces, method: Callable[[Interruptible, Context], AsyncIterator[Any]]
    ) -> Callable[[Any, Context], AsyncIterator[Any]]:
        async def handle(_: Any, context: Context) -> AsyncIterator[Any]:
            call, peer = Interruptible(), context.peer() or ""
            async with self._endings.of(context):
                with self._streams.held(call), places.taken(peer, network_of(peer), call):
                    async for reply in call.each(method(call, context)):
                        yield reply  # it returns once that is written: the call has its place until then

        return handle

    def _answering(self, method: Callable[[Any], Any]) -> Callable[[Interruptible, Context], AsyncIterator[Any]]:
        async def replies(call: Interruptible, context: Context) -> AsyncIterator[Any]:
            yield method(await self._one(call, context))

        return replies

    async def _one(self, call: Interruptible, context: Context) -> Any:
        self._streams.within(GRACE_S, call, _silent)
        message = await one_message(call, context)
        call.due_s = None
        return _good(message)

    def _check(self, request: Any) -> Any:
        if request.service not in self._said:
            raise NotFoundError(f"service {request.service[:64]!r} is not served here")
        return _STATUS(status=self._said[request.service])

    def _list(self, _: Any) -> Any:
        said = {name: _STATUS(status=status) for name, status in self._said.items()}
        return health_pb2.HealthListResponse(statuses=said)

    async def _watch(self, call: Interruptible, context: Context) -> AsyncIterator[Any]:
        """Says how a service does now, and again whenever that changes, until this process stops."""
        service = (await self._one(call, context)).service
        told = None
        while True:
            changed, status = self._changed, self._said.get(service, _STATUS.SERVICE_UNKNOWN)
            if status != told:
                yield _STATUS(status=status)
                told = status
            if self._ends:
                return
            await changed.wait()

    async def _reflect(self, about: Any, call: Interruptible, context: Context) -> AsyncIterator[Any]:
        async def asked() -> AsyncIterator[Any]:
            while True:
                self._streams.within(GRACE_S, call, _silent)
                message = await next_message(context)
                call.due_s = None
                if message is grpc.aio.EOF:
                    return
                yield _good(message)

        async for reply in about.ServerReflectionInfo(asked(), context):
            yield reply


def _silent() -> RefusedError:
    return RefusedError(Refusal.of(ServiceReason.UNAVAILABLE, f"nothing was asked in {GRACE_S:g} s"))


def _good(message: Any) -> Any:
    if isinstance(message, Malformed):
        raise message.error()
    return message


def _bytes_of(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data
