"""The gRPC server: a role's services, health and reflection on one port, with limits computed from the plan.

Health and reflection have places of their own, which calls of no other kind
take; among those who ask, no address can take another's.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2  # type: ignore[import-untyped]  # it ships no types
from grpc_reflection.v1alpha import reflection, reflection_pb2  # type: ignore[import-untyped]  # it ships no types

from aggregator.api.admin import AdminService
from aggregator.api.admission_control import (
    GRACE_S,
    QUESTION_BYTES_MAX,
    CancellableCall,
    Context,
    Malformed,
    RequestAdmission,
    RequestReader,
    StreamRegistry,
    next_message,
    one_message,
    reader,
)
from aggregator.api.calls import ErrorMapper, Handler, Methods
from aggregator.api.collection import Collection
from aggregator.api.connections import ConnectionGuard, ConnectionSettings, network_of
from aggregator.api.secure_sum import SecureSumService
from aggregator.config import host_and_port
from aggregator.errors import ConfigError, RefusedError
from aggregator.interfaces import Authenticator
from aggregator.observability.metrics import Metrics
from aggregator.rate_limits import CallLimits, SharedConcurrencyLimit
from aggregator.release.catalog import NotFoundError
from aggregator.runtime import Runtime
from hushsum.plan import Plan
from hushsum_proto.answers import Refusal, ServiceReason
from hushsum_proto.messages import CHUNK_BYTES
from hushsum_proto.v1 import wire_pb2 as pb

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

    def __init__(self, streams: StreamRegistry, metrics: Metrics, guard: ConnectionGuard) -> None:
        self._streams = streams
        self._error_mapper = ErrorMapper(metrics, for_operator=False, guard=guard)
        self._checks = SharedConcurrencyLimit(HEALTH_CHECKS_MAX, "health checks", guard.does_not_read)
        self._watchers = SharedConcurrencyLimit(HEALTH_WATCHERS_MAX, "watchers of health", guard.does_not_read)
        self._reflections = SharedConcurrencyLimit(REFLECTIONS_MAX, "reflections", guard.does_not_read)
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
        self, places: SharedConcurrencyLimit, method: Callable[[CancellableCall, Context], AsyncIterator[Any]]
    ) -> Callable[[Any, Context], AsyncIterator[Any]]:
        async def handle(_: Any, context: Context) -> AsyncIterator[Any]:
            call, peer = CancellableCall(), context.peer() or ""
            async with self._error_mapper.of(context):
                with self._streams.held(call), places.taken(peer, network_of(peer), call):
                    async for reply in call.each(method(call, context)):
                        yield reply  # it returns once that is written: the call has its place until then

        return handle

    def _answering(self, method: Callable[[Any], Any]) -> Callable[[CancellableCall, Context], AsyncIterator[Any]]:
        async def replies(call: CancellableCall, context: Context) -> AsyncIterator[Any]:
            yield method(await self._one(call, context))

        return replies

    async def _one(self, call: CancellableCall, context: Context) -> Any:
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

    async def _watch(self, call: CancellableCall, context: Context) -> AsyncIterator[Any]:
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

    async def _reflect(self, about: Any, call: CancellableCall, context: Context) -> AsyncIterator[Any]:
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


_INT32_MAX: Final = 2**31 - 1  # the most that gRPC can be told
_SPARE_BYTES: Final = 1 << 20
_OTHER_CALLS_MAX: Final = 1024
_STREAMS_OF_CONNECTION_MAX: Final = 512
_PING_S_MIN: Final = 10
_SILENT_S_MAX: Final = 60
_PING_ANSWER_S_MAX: Final = 20


class Addable(Protocol):
    """A service."""

    def add_to(self, methods: Methods) -> Handler:
        """The handlers of every method."""


@dataclass(frozen=True)
class Services:
    """What one port serves; None: another process does."""

    collection: Collection | None
    catalog: Addable | None
    administration: AdminService | None
    secure_sum: SecureSumService | None = None


def streams_of(plan: Plan, sessions_max: int) -> int:
    """How many clients may take part in secure sums at once.

    So many as may have sessions; at least two cohorts, and a plan's whole pool beside them, or none would be drawn.
    """
    cohort = plan.privacy.cohort
    return sessions_max if cohort is None else max(sessions_max, cohort.pool + 2 * cohort.size)


def calls_max(plan: Plan, sessions_max: int) -> int:
    """How many calls there may be at once: sessions, parts in secure sums, and those of all other methods."""
    return sessions_max + streams_of(plan, sessions_max) + _OTHER_CALLS_MAX


class Server:
    """One port. A constructor binds nothing; :meth:`bind` does.

    Args:
        plan: Its sizes decide how large a message may be.
        services: What is served.
        authenticator: Who calls.
        metrics: Counts refused calls.
        sessions_max: Streams that may be open; calls of other methods come on top.
        limits: How much one caller may call; None: any.
        connections: How many there may be, and what gRPC does with them; None: as many as calls.
    """

    def __init__(
        self,
        plan: Plan,
        services: Services,
        *,
        authenticator: Authenticator,
        metrics: Metrics,
        sessions_max: int,
        limits: CallLimits | None = None,
        connections: ConnectionSettings | None = None,
    ) -> None:
        self._services = services
        self._authenticator = authenticator
        self._metrics = metrics
        self._limits = limits
        self._streams = StreamRegistry()
        self._message_bytes_max = _received_bytes_max(plan)
        most = calls_max(plan, sessions_max)
        self._incoming = RequestReader(
            RequestAdmission(most, self._message_bytes_max), self._streams, self._message_bytes_max
        )
        self._connections = ConnectionSettings() if connections is None else connections
        connections_max = most if self._connections.most is None else self._connections.most
        self._guard = ConnectionGuard(connections_max, metrics.registry)
        self._probes = Probes(self._streams, metrics, self._guard)
        self._server: grpc.aio.Server | None = None

    async def bind(self, listen: str, credentials: grpc.ServerCredentials | None = None) -> str:
        """Takes ``host:port``; returns the same with the port that was taken. Nobody is answered yet.

        Args:
            listen: Where.
            credentials: What is shown to those who connect; None: plaintext.

        Raises:
            ConfigError: The address cannot be used.
        """
        # gRPC's own bound on calls counts those whom nobody has admitted: they would take the places of all others.
        limits = self._guard.begin(await _addresses_of(listen))
        server = grpc.aio.server(options=[*_options(self._message_bytes_max), *limits, *self._connections.options])
        self._probes.add_to(server, self._add_services(server))
        try:
            if credentials is None:
                port = server.add_insecure_port(listen)
            else:
                port = server.add_secure_port(listen, credentials)
        except RuntimeError as error:
            raise ConfigError(f"listen: {listen} cannot be used: is another process listening there?") from error
        self._server = server
        self._guard.listens(port)
        return f"{listen.rpartition(':')[0]}:{port}"

    async def start(self) -> None:
        """Answers."""
        assert self._server is not None, "bound before"
        await self._server.start()

    async def recheck(self, runtime: Runtime) -> None:
        """Ends open streams soon after their callers are no longer admitted; goes on for ever."""
        await self._streams.run(runtime)

    async def guard(self, runtime: Runtime) -> None:
        """Closes connections that only take room; goes on for ever."""
        await self._guard.run(runtime)

    async def tell(self, *, ready: bool) -> None:
        """Tells health checks whether what is served here works."""
        self._probes.tell(ready=ready)

    async def fail(self) -> None:
        """Tells health checks that this process cannot go on."""
        self._probes.fail()

    async def drain(self) -> None:
        """Tells health checks and open streams that this process stops; what was read is still answered."""
        self._probes.drain()
        if self._services.collection is not None:
            self._services.collection.stop_sessions()

    async def stop(self, grace_s: float) -> None:
        """Takes no more calls, and gives those under way so many seconds."""
        if self._server is not None:
            await self._server.stop(grace_s)

    def _add_services(self, server: grpc.aio.Server) -> list[str]:
        parts: dict[str, Callable[[Methods], Handler]] = {}
        if self._services.administration is not None:
            parts["Administration"] = self._services.administration.add_to
        if self._services.collection is not None:
            parts["Collection"] = self._services.collection.add_to
        if self._services.catalog is not None:
            parts["Catalogue"] = self._services.catalog.add_to
        if self._services.secure_sum is not None:
            parts["SecureSum"] = self._services.secure_sum.add_to
        names = {name: pb.DESCRIPTOR.services_by_name[name].full_name for name in parts}
        for name, add_to in parts.items():
            for_operator = name == "Administration"
            methods = Methods(
                names[name],
                self._authenticator,
                self._metrics,
                for_operator=for_operator,
                limits=self._limits,
                incoming=self._incoming,
                guard=self._guard,
            )
            server.add_generic_rpc_handlers((add_to(methods),))
        return list(names.values())


async def _addresses_of(listen: str) -> int:
    """On how many addresses a server listens there: each has connections of its own in gRPC's eyes.

    Asked first, for of a name that nobody knows gRPC would say the same as of a port that is taken.

    Raises:
        ConfigError: Nobody knows the name.
    """
    host, port = host_and_port(listen)
    try:
        return len(await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"listen: the host of {listen} cannot be found: is its name right?") from error


def _message_bytes_max(plan: Plan) -> int:
    """What one message of an honest client may hold.

    A noised whole delta that is larger than a chunk comes in chunks, whose memory is bounded over all calls; as one
    message it would not be.
    """
    if plan.privacy.is_silo:
        return min(plan.upload_bytes_max, CHUNK_BYTES)
    return plan.upload_bytes_max


def _received_bytes_max(plan: Plan) -> int:
    """What gRPC takes as one message; what is larger it refuses before it is in memory.

    Above what the plan allows, so that an honest client's mistake gets our refusal, with its reason, and not gRPC's.
    """
    return min(2 * _message_bytes_max(plan) + _SPARE_BYTES, _INT32_MAX)


def _options(received_bytes_max: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", received_bytes_max),
        # What one connection may have under way: calls that nobody has admitted take some kilobytes until they end.
        ("grpc.max_concurrent_streams", _STREAMS_OF_CONNECTION_MAX),
        ("grpc.max_send_message_length", -1),
        # Windows stay small: grown by probing they would hold megabytes of each message that waits its turn.
        ("grpc.http2.bdp_probe", 0),
        # Two processes on one port would share its connections at random.
        ("grpc.so_reuseport", 0),
        # A client may ask whether we are there; we ask those that are silent, and let go of those that are gone.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", _PING_S_MIN * 1000),
        ("grpc.keepalive_time_ms", _SILENT_S_MAX * 1000),
        ("grpc.keepalive_timeout_ms", _PING_ANSWER_S_MAX * 1000),
    ]
