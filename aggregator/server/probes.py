"""Health and reflection: streams that nobody signs in for, so few at once, and ended when the service stops."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final, NoReturn

import grpc.aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # it ships no types
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc  # type: ignore[import-untyped]  # it ships no types

from aggregator.callers.places import Places
from aggregator.refusals import RefusedError
from aggregator.server.calls import Context
from hushsum_proto import metadata

HEALTH_WATCHERS_MAX: Final = 64
REFLECTIONS_MAX: Final = 16
LIVENESS: Final = "liveness"  # of whether this process runs; all other names are of whether it can be used


class Probes:
    """What load balancers and people with a command line ask of a server."""

    def __init__(self) -> None:
        self._health = _Health()
        self._names: tuple[str, ...] = (health.OVERALL_HEALTH,)
        self._drains = False

    async def add_to(self, server: grpc.aio.Server, names: Iterable[str]) -> None:
        """Serves health of these services, and reflection of them and of itself."""
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        self._names = (health.OVERALL_HEALTH, *names)
        await self._health.set(LIVENESS, health_pb2.HealthCheckResponse.SERVING)
        await self.tell(ready=True)
        health_name = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
        shown = [*names, health_name, reflection.SERVICE_NAME]
        reflection_pb2_grpc.add_ServerReflectionServicer_to_server(_Reflection(shown), server)

    async def tell(self, *, ready: bool) -> None:
        """Says whether what is served here works, until the next time; a process that stops is not asked any more."""
        said, ready = health_pb2.HealthCheckResponse, ready and not self._drains
        for name in self._names:
            await self._health.set(name, said.SERVING if ready else said.NOT_SERVING)
        self._health.wake()

    async def fail(self) -> None:
        """Says that this process cannot go on."""
        self._drains = True
        await self._health.set(LIVENESS, health_pb2.HealthCheckResponse.NOT_SERVING)
        await self.tell(ready=False)

    async def drain(self) -> None:
        """Says that this process stops, and ends the streams of those who watch it; it is alive until it has."""
        self._drains = True
        await self.tell(ready=False)
        self._health.end()


# Any, here and below: the messages of packages that ship no types.
class _Health(health.aio.HealthServicer):  # type: ignore[misc]  # it ships no types
    def __init__(self) -> None:
        super().__init__()
        self._places = Places(HEALTH_WATCHERS_MAX, "watchers of health")
        self._ending = False
        self._changed = asyncio.Event()  # replaced at each change: who waits holds the old one

    async def Watch(self, request: Any, context: Context) -> None:  # noqa: N802  the protocol's name
        """Says how a service does now, and again whenever that changes, until this process stops."""
        try:
            with self._places.taken():
                said = None
                while True:
                    changed, status = self._changed, self._status(request.service)
                    if status != said:
                        await context.write(status)
                        said = status
                    if self._ending:
                        return
                    await changed.wait()
        except RefusedError as error:
            await _abort(context, error)

    def wake(self) -> None:
        """Something may have changed: whoever watches looks again."""
        self._changed.set()
        self._changed = asyncio.Event()

    def end(self) -> None:
        """Ends every watching."""
        self._ending = True
        self.wake()

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
