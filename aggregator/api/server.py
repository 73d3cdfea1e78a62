"""The gRPC server: a role's services, health and reflection on one port, with limits computed from the plan.

Health and reflection have concurrency limits of their own, which other calls do not count against; within these, no
address can use up the share of another.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, Self

import grpc
import grpc.aio
from grpc_health.v1 import health, health_pb2  # type: ignore[import-untyped]  # it ships no types
from grpc_reflection.v1alpha import reflection, reflection_pb2  # type: ignore[import-untyped]  # it ships no types

from aggregator.api.admin import Admin
from aggregator.api.admission_control import (
    GRACE_S,
    QUESTION_BYTES_MAX,
    CancellableCall,
    Context,
    Malformed,
    OpenCalls,
    RequestAdmission,
    SharedConcurrencyLimit,
    next_message,
    one_message,
    reader,
)
from aggregator.api.calls import ErrorMapper, Handler, Methods
from aggregator.api.collection import Collection
from aggregator.api.connections import ConnectionGuard, network_of
from aggregator.api.secure_sum import SecureSumService
from aggregator.auth.authenticators import authenticator_of, token_file_of
from aggregator.auth.tls import connection_options, server_credentials
from aggregator.auth.tokens import TokenFile
from aggregator.config import Config, host_and_port
from aggregator.errors import ConfigError, RefusedError
from aggregator.interfaces import Authenticator
from aggregator.observability.metrics import Metrics
from aggregator.process import connections_max, memory_limit, watch_memory
from aggregator.rate_limits import call_limits_of, forget_paid
from aggregator.release.catalog import NotFoundError
from aggregator.runtime import Runtime, TaskSupervisor
from hushsum.plan import Plan
from hushsum_proto.answers import Refusal, ServiceReason
from hushsum_proto.messages import CHUNK_BYTES
from hushsum_proto.v1 import wire_pb2 as pb

HEALTH_CHECKS_MAX: Final = 256
HEALTH_WATCHERS_MAX: Final = 64
REFLECTIONS_MAX: Final = 16
LIVENESS: Final = "liveness"  # its status says whether this process runs; all other names', whether it can be used

_HEALTH: Final = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
_STATUS: Final = health_pb2.HealthCheckResponse


class Probes:
    """Health and reflection: for load balancers, and for people with a command line."""

    def __init__(self, streams: OpenCalls, metrics: Metrics, guard: ConnectionGuard) -> None:
        self._streams = streams
        self._error_mapper = ErrorMapper(metrics, for_operator=False, guard=guard)
        self._checks = SharedConcurrencyLimit(HEALTH_CHECKS_MAX, "health checks", guard.does_not_read)
        self._watchers = SharedConcurrencyLimit(HEALTH_WATCHERS_MAX, "watchers of health", guard.does_not_read)
        self._reflections = SharedConcurrencyLimit(REFLECTIONS_MAX, "reflections", guard.does_not_read)
        self._statuses: dict[str, Any] = {}  # Any, here and below: the messages of packages that ship no types
        self._names: tuple[str, ...] = (health.OVERALL_HEALTH,)
        self._changed = asyncio.Event()  # replaced at each change: watchers wait for the old one
        self._drains = self._ends = False

    def add_to(self, server: grpc.aio.Server, names: Iterable[str]) -> None:
        """Serves health of these services, and reflection of them and of itself."""
        self._names = (health.OVERALL_HEALTH, *names)
        self._statuses[LIVENESS] = _STATUS.SERVING
        self.tell(ready=True)
        about = reflection.aio.ReflectionServicer([*names, _HEALTH, reflection.SERVICE_NAME])
        methods = {
            "Check": self._handler(health_pb2.HealthCheckRequest, self._checks, self._check),
            "List": self._handler(health_pb2.HealthListRequest, self._checks, self._list),
            "Watch": self._handler(health_pb2.HealthCheckRequest, self._watchers, self._watch),
        }
        reflecting = self._handler(
            reflection_pb2.ServerReflectionRequest, self._reflections, partial(self._reflect, about)
        )
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(_HEALTH, methods),
                grpc.method_handlers_generic_handler(reflection.SERVICE_NAME, {"ServerReflectionInfo": reflecting}),
            )
        )

    def tell(self, *, ready: bool) -> None:
        """Sets whether the services here work; a process that stops stays not ready."""
        for name in self._names:
            self._statuses[name] = _STATUS.SERVING if ready and not self._drains else _STATUS.NOT_SERVING
        self._changed.set()
        self._changed = asyncio.Event()

    def fail(self) -> None:
        self._drains = True
        self._statuses[LIVENESS] = _STATUS.NOT_SERVING
        self.tell(ready=False)

    def drain(self) -> None:
        """Sets that this process stops, and ends the streams of watchers; it is alive until it has stopped."""
        self._drains = self._ends = True
        self.tell(ready=False)

    def _handler(
        self,
        request: Any,
        limit: SharedConcurrencyLimit,
        method: Callable[[CancellableCall, Context], AsyncIterator[Any]],
    ) -> Any:
        """Serves every method as one of streams: a stream of one reply has the bytes of a single reply."""

        async def handle(_: Any, context: Context) -> AsyncIterator[Any]:
            call, peer = CancellableCall(), context.peer() or ""
            async with self._error_mapper.of(context):
                with self._streams.held(call), limit.taken(peer, network_of(peer), call):
                    async for reply in call.each(method(call, context)):
                        yield reply  # it returns once that is written: the call counts against the limit until then

        return grpc.stream_stream_rpc_method_handler(handle, reader(request, bytes_max=QUESTION_BYTES_MAX), _bytes_of)

    async def _read(self, call: CancellableCall, message: Awaitable[Any]) -> Any:
        """The next message, or EOF; ends the call of a client that sends none in time, or a malformed one."""
        self._streams.within(GRACE_S, call, _silent)
        read = await message
        call.due_s = None
        if isinstance(read, Malformed):
            raise read.error()
        return read

    async def _check(self, call: CancellableCall, context: Context) -> AsyncIterator[Any]:
        service = (await self._read(call, one_message(call, context))).service
        if service not in self._statuses:
            raise NotFoundError(f"service {service[:64]!r} is not served here")
        yield _STATUS(status=self._statuses[service])

    async def _list(self, call: CancellableCall, context: Context) -> AsyncIterator[Any]:
        await self._read(call, one_message(call, context))
        statuses = {name: _STATUS(status=status) for name, status in self._statuses.items()}
        yield health_pb2.HealthListResponse(statuses=statuses)

    async def _watch(self, call: CancellableCall, context: Context) -> AsyncIterator[Any]:
        """Sends the status of a service now, and whenever it changes, until this process stops."""
        service = (await self._read(call, one_message(call, context))).service
        sent = None
        while True:
            # All three before the reply is written: what changes meanwhile is sent in the next round.
            changed, ends = self._changed, self._ends
            status = self._statuses.get(service, _STATUS.SERVICE_UNKNOWN)
            if status != sent:
                yield _STATUS(status=status)
                sent = status
            if ends:
                return
            await changed.wait()

    async def _reflect(self, about: Any, call: CancellableCall, context: Context) -> AsyncIterator[Any]:
        async def requests() -> AsyncIterator[Any]:
            while (message := await self._read(call, next_message(context))) is not grpc.aio.EOF:
                yield message

        async for reply in about.ServerReflectionInfo(requests(), context):
            yield reply


def _silent() -> RefusedError:
    return RefusedError(Refusal.of(ServiceReason.UNAVAILABLE, f"no request received within {GRACE_S:g} s"))


def _bytes_of(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


_INT32_MAX: Final = 2**31 - 1  # the most that gRPC can be told
_SPARE_BYTES: Final = 1 << 20
_OTHER_CALLS_MAX: Final = 1024
_STREAMS_OF_CONNECTION_MAX: Final = 512
_PENDING_CALLS_MAX: Final = 8192  # of some 15 kB each, measured with grpcio 1.85
_PING_S_MIN: Final = 10
_TLS_FRAME_BYTES: Final = 1024
_SILENT_S_MAX: Final = 60
_PING_ANSWER_S_MAX: Final = 20


class Addable(Protocol):
    """A gRPC service."""

    def add_to(self, methods: Methods) -> Handler: ...


@dataclass(frozen=True)
class Services:
    """The services of one port; None: another process has it."""

    collection: Collection | None
    catalog: Addable | None
    administration: Admin | None
    secure_sum: SecureSumService | None = None


def streams_of(plan: Plan, sessions_max: int) -> int:
    """How many clients may take part in secure sums at once.

    As many as may have sessions; at least two cohorts and the plan's whole pool, or no cohort would be drawn.
    """
    cohort = plan.privacy.cohort
    return sessions_max if cohort is None else max(sessions_max, cohort.pool + 2 * cohort.size)


def calls_max(plan: Plan, sessions_max: int) -> int:
    """How many calls there may be at once: sessions, participants of secure sums, and calls of other methods."""
    return sessions_max + streams_of(plan, sessions_max) + _OTHER_CALLS_MAX


class Server:
    """One port with the services of a role. Made by :meth:`bound`.

    Attributes:
        address: ``host:port``, with the port that was taken.
        tokens: The file of tokens; None without one.
    """

    tokens: TokenFile | None = None

    def __init__(
        self,
        plan: Plan,
        config: Config,
        runtime: Runtime,
        metrics: Metrics,
        services: Services,
        authenticator: Authenticator,
    ) -> None:
        self._services = services
        self._authenticator = authenticator
        self._metrics = metrics
        self._limits = call_limits_of(config, runtime)
        self._streams = OpenCalls()
        self._message_bytes_max = _received_bytes_max(plan)
        most = calls_max(plan, config.sessions_max)
        self._incoming = RequestAdmission(most, self._message_bytes_max, self._streams)
        self._guard = ConnectionGuard(connections_max(most, config), metrics.registry)
        self._probes = Probes(self._streams, metrics, self._guard)
        self._server: grpc.aio.Server
        self.address = ""

    @classmethod
    async def bound(
        cls,
        plan: Plan,
        config: Config,
        runtime: Runtime,
        metrics: Metrics,
        services: Services,
        supervisor: TaskSupervisor,
    ) -> Self:
        """A server with its port; it answers once it is started.

        The supervisor runs the tasks that guard it, and watches this process's memory.

        Raises:
            ConfigError: The address, a certificate or the file of tokens cannot be used.
        """
        tokens = await token_file_of(config, runtime, metrics.registry, supervisor)
        server = cls(plan, config, runtime, metrics, services, authenticator_of(config, runtime, tokens))
        server.tokens = tokens
        supervisor.forever("debts of callers", lambda: forget_paid([server._limits.rates], runtime))
        supervisor.forever("admissions", lambda: server._streams.run(runtime))
        supervisor.forever("connections", lambda: server._guard.run(runtime))
        if (limit := memory_limit(config)) is not None:
            supervisor.watch("memory", lambda: watch_memory(limit, runtime))
        await server._bind(config, server_credentials(config, runtime.monotonic))
        return server

    async def _bind(self, config: Config, credentials: grpc.ServerCredentials | None) -> None:
        listen = config.listen
        # gRPC's own bound on calls counts those that are not admitted: they would use up the share of all others.
        limits = self._guard.begin(await _addresses_of(listen))
        server = grpc.aio.server(
            options=[*_options(config, self._message_bytes_max), *limits, *connection_options(config)]
        )
        self._probes.add_to(server, self._add_services(server))
        port = add_port(server, listen, credentials)
        self._server = server
        self._guard.listens(port)
        self.address = f"{listen.rpartition(':')[0]}:{port}"

    async def start(self) -> None:
        await self._server.start()

    async def tell(self, *, ready: bool) -> None:
        self._probes.tell(ready=ready)

    async def fail(self) -> None:
        self._probes.fail()

    async def drain(self) -> None:
        """Ends health watches and submission streams, as this process stops; what was read is still answered."""
        self._probes.drain()
        if self._services.collection is not None:
            self._services.collection.stop_sessions()

    async def stop(self, grace_s: float) -> None:
        """Takes no more calls, and gives open ones so many seconds."""
        await self._server.stop(grace_s)

    def _add_services(self, server: grpc.aio.Server) -> list[str]:
        services: dict[str, Addable | None] = {
            "Administration": self._services.administration,
            "Collection": self._services.collection,
            "Catalogue": self._services.catalog,
            "SecureSum": self._services.secure_sum,
        }
        served = []
        for name, service in services.items():
            if service is None:
                continue
            methods = Methods(
                pb.DESCRIPTOR.services_by_name[name].full_name,
                self._authenticator,
                self._metrics,
                for_operator=name == "Administration",
                limits=self._limits,
                incoming=self._incoming,
                guard=self._guard,
            )
            server.add_generic_rpc_handlers((service.add_to(methods),))
            served.append(pb.DESCRIPTOR.services_by_name[name].full_name)
        return served


async def _addresses_of(listen: str) -> int:
    """On how many addresses a server listens there: gRPC bounds the connections of each.

    Resolved first, because gRPC reports an unknown name and a port in use in the same way.

    Raises:
        ConfigError: The name is unknown.
    """
    host, port = host_and_port(listen)
    try:
        return len(await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"listen: the host of {listen} cannot be resolved") from error


def _received_bytes_max(plan: Plan) -> int:
    """The largest message that gRPC takes; it refuses larger ones before they are in memory.

    It is above what the plan allows, so that an honest client's mistake gets our refusal, with its reason, and not
    gRPC's. A silo's noised delta that is larger than a chunk comes in chunks, whose memory is bounded over all calls.
    """
    allowed = min(plan.upload_bytes_max, CHUNK_BYTES) if plan.privacy.is_silo else plan.upload_bytes_max
    return min(2 * allowed + _SPARE_BYTES, _INT32_MAX)


async def check_port(listen: str, credentials: grpc.ServerCredentials | None) -> None:
    """Takes the port and gives it back; ConfigError if the address cannot be used."""
    server = grpc.aio.server(options=[_sharing(processes=1)])
    add_port(server, listen, credentials)
    await server.start()  # without any service; one that was never started would keep the port
    await server.stop(None)


def add_port(server: grpc.aio.Server, listen: str, credentials: grpc.ServerCredentials | None) -> int:
    """The port that was taken; ConfigError if the address cannot be used."""
    try:
        if credentials is None:
            return server.add_insecure_port(listen)
        return server.add_secure_port(listen, credentials)
    except RuntimeError as error:
        raise ConfigError(f"listen: cannot listen on {listen}: is the port in use?") from error


def _sharing(*, processes: int) -> tuple[str, int]:
    """Two services on one port would share its connections at random: only processes of one service do."""
    return "grpc.so_reuseport", int(processes > 1)


def _options(config: Config, received_bytes_max: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", received_bytes_max),
        # Calls of one connection: those that are not admitted take some kilobytes until they end.
        ("grpc.max_concurrent_streams", _STREAMS_OF_CONNECTION_MAX),
        # Calls that no task has taken over yet. gRPC resets any above that, an admitted caller's too, and by default
        # some from 1,000 on: a few connections of strangers would take the places of all others.
        ("grpc.server.max_pending_requests", _PENDING_CALLS_MAX),
        ("grpc.server.max_pending_requests_hard_limit", _PENDING_CALLS_MAX),
        ("grpc.max_send_message_length", -1),
        # Windows stay small: grown by probing they would hold megabytes of each message that waits its turn.
        ("grpc.http2.bdp_probe", 0),
        _sharing(processes=config.processes),
        # Of TLS: each connection has buffers of this size. By default a session takes 5 kB more, and downloads of
        # releases are a quarter faster, at hundreds of MB a second.
        ("grpc.tsi.max_frame_size", _TLS_FRAME_BYTES),
        # A client may ping us; we ping silent ones, and close the connections of those that do not answer.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", _PING_S_MIN * 1000),
        ("grpc.keepalive_time_ms", _SILENT_S_MAX * 1000),
        ("grpc.keepalive_timeout_ms", _PING_ANSWER_S_MAX * 1000),
    ]
