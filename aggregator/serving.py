"""What the processes of all roles have in common: the service Collection, and a guarded gRPC server."""

from aggregator.api.collection import Collection, DeltaReceiver, LargeDeltas
from aggregator.api.connections import ConnectionSettings
from aggregator.api.server import Server, Services, calls_max
from aggregator.auth.tls import connection_options, server_credentials
from aggregator.backends import authenticator_of
from aggregator.config import Config
from aggregator.ingest.handshake import Handshake
from aggregator.observability.metrics import Metrics
from aggregator.process import connections_max, memory_limit, watch_memory
from aggregator.rate_limits import SendLimits, call_limits_of, forget_paid
from aggregator.runtime import Runtime, TaskSupervisor
from hushsum.plan import Plan


def collection_of(
    plan: Plan,
    config: Config,
    runtime: Runtime,
    metrics: Metrics,
    *,
    receiver: DeltaReceiver,
    handshake: Handshake,
    sends: SendLimits,
) -> Collection:
    """The service Collection, which passes what clients send to ``receiver``."""
    large = LargeDeltas(
        receiver,
        runtime=runtime,
        delta_bytes_max=plan.upload_bytes_max,
        held_bytes_max=config.pending_bytes_max,
        metrics=metrics,
        sends=sends,
    )
    return Collection(
        receiver,
        handshake,
        large=large,
        runtime=runtime,
        metrics=metrics,
        sessions_max=config.sessions_max,
        sends=sends,
    )


async def bound_server(
    plan: Plan, config: Config, runtime: Runtime, metrics: Metrics, services: Services, supervisor: TaskSupervisor
) -> tuple[Server, str]:
    """A gRPC server with its port, and its address ``host:port``; it answers once it is started.

    The supervisor runs the tasks that guard it, and watches this process's memory.

    Raises:
        ConfigError: The address, a certificate or the file of tokens cannot be used.
    """
    authenticator = await authenticator_of(config, runtime, metrics, supervisor)
    limits = call_limits_of(config, runtime)
    connections = connections_max(calls_max(plan, config.sessions_max), config)
    server = Server(
        plan,
        services,
        authenticator=authenticator,
        metrics=metrics,
        sessions_max=config.sessions_max,
        limits=limits,
        connections=ConnectionSettings(connections, connection_options(config)),
    )
    supervisor.forever("debts of callers", lambda: forget_paid([limits.rates], runtime))
    supervisor.forever("admissions", lambda: server.recheck(runtime))
    supervisor.forever("connections", lambda: server.guard(runtime))
    if (limit := memory_limit(config)) is not None:
        supervisor.watch("memory", lambda: watch_memory(limit, runtime))
    return server, await server.bind(config.listen, server_credentials(config, runtime.monotonic))
