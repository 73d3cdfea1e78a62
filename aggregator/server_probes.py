"""Health and reflection: streams that nobody signs in for, so few at once, and ended when the service stops."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final, NoReturn

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # it ships no types
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc  # type: ignore[import-untyped]  # it ships no types

from aggregator.places import Places
from aggregator.refusals import RefusedError
from aggregator.server_calls import Context
from hushsum_proto import metadata

HEALTH_WATCHERS_MAX: Final = 64
REFLECTIONS_MAX: Final = 16


class Probes:
    """What load balancers and people with a command line ask of a server."""

    def __init__(self) -> None:
        self._health = _Health()

    async def add_to(self, server: grpc.aio.Server, names: Iterable[str]) -> None:
        """Serves health of these services, and reflection of them and of itself."""
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        for name in (health.OVERALL_HEALTH, *names):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        health_name = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
        shown = [*names, health_name, reflection.SERVICE_NAME]
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(_Reflection(shown), server)

    async def drain(self) -> None:
        """Says that this process stops, and ends the streams of those who watch it."""
        await self._health.enter_graceful_shutdown()
        self._health.end()


# Any, here and below: the messages of packages that ship no types.
class _Health(health.aio.HealthServicer):  # type: ignore[misc]  # it ships no types
    def __init__(self) -> None:
        super().__init__()
        self._places = Places(HEALTH_WATCHERS_MAX, "watchers of health")
        self._ending = asyncio.Event()

    async def Watch(self, request: Any, context: Context) -> None:  # noqa: N802  the protocol's name
        """Says how a service does now, and once more when this process stops: nothing else ever changes it."""
        try:
            with self._places.taken():
                said = self._status(request.service)
                await context.write(said)
                await self._ending.wait()
                if self._status(request.service) != said:
                    await context.write(self._status(request.service))
        except RefusedError as error:
            await _abort(context, error)

    def end(self) -> None:
        """Ends every watching."""
        self._ending.set()

    def _status(self, service: str) -> Any:
        unknown = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
        return health_pb2.HealthCheckResponse(status=self._server_status.get(service, unknown))


class _Reflection(reflection.aio.ReflectionServicer):  # type: ignore[misc]  # it ships no types
    def __init__(self, names: Iterable[str]) -> None:
        super().__init__(names)
        self._places = Places(REFLECTIONS_MAX, "reflections")

    async def ServerReflectionInfo(  # noqa: N802  the protocol's name
        self, request_iterator: Any, context: Context
    ) -> AsyncIterator[Any]:
        try:
            with self._places.taken():
                async for reply in super().ServerReflectionInfo(request_iterator, context):
                    yield reply
        except RefusedError as error:
            await _abort(context, error)


async def _abort(context: Context, error: RefusedError) -> NoReturn:
    assert error.refusal.reason is not None
    trailing = ((metadata.REASON, error.refusal.reason.value),)
    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, error.refusal.detail, trailing)
