"""The service Catalogue: the plan, and its published releases."""

from collections.abc import AsyncIterator
from typing import Final

from aggregator.api.calls import Call, Handler, Methods
from aggregator.errors import check_plan
from aggregator.model import Scope
from aggregator.rate_limits import ConcurrencyLimit
from aggregator.release.catalog import ReleaseCatalog
from hushsum_proto import convert_outcomes
from hushsum_proto.v1 import wire_pb2 as pb

CHUNK_BYTES: Final = 256 * 1024  # far below every default limit of a client
# Callers need no proof of identity here, so neither may take the calls that devices and the operator need.
WATCHERS_MAX: Final = 256
READINGS_MAX: Final = 64


class CatalogService:
    """Serves analysts and new clients; with names that are only declared, whoever reaches the port."""

    def __init__(self, catalog: ReleaseCatalog) -> None:
        self._catalog = catalog
        self._watchers = ConcurrencyLimit(WATCHERS_MAX, "watchers of releases")
        self._readings = ConcurrencyLimit(READINGS_MAX, "readers of releases")

    def add_to(self, methods: Methods) -> Handler:
        read = (Scope.READ,)
        methods.unary("GetPlan", pb.GetPlanRequest, self.get_plan)
        methods.unary("ListReleases", pb.ListReleasesRequest, self.list_releases, scopes=read)
        methods.replies("GetRelease", pb.GetReleaseRequest, self.get_release, scopes=read)
        methods.replies("WatchReleases", pb.ListReleasesRequest, self.watch_releases, scopes=read)
        return methods.handler(pb.DESCRIPTOR.services_by_name["Catalogue"].methods_by_name)

    async def get_plan(self, call: Call, request: pb.GetPlanRequest) -> pb.SignedPlan:
        """The plan's canonical bytes and its stored signature, for callers with any scope."""
        call.admit(*Scope)
        check_plan(request.plan_id, self._catalog.plan)
        return convert_outcomes.plan_to_wire(self._catalog.plan.bundle, await self._catalog.signed_plan())

    async def list_releases(self, call: Call, request: pb.ListReleasesRequest) -> pb.ListReleasesReply:
        call.admit(Scope.READ)
        check_plan(request.plan_id, self._catalog.plan)
        following = await self._catalog.next_outcome()  # first: what is published in between is in the list
        return convert_outcomes.listing_to_wire(await self._catalog.releases(_first_window(request)), following)

    async def get_release(self, call: Call, request: pb.GetReleaseRequest) -> AsyncIterator[pb.ReleaseChunk]:
        call.admit(Scope.READ)
        check_plan(request.plan_id, self._catalog.plan)
        with self._readings.taken():
            data = await self._catalog.release(request.kind, request.window)
            for offset in range(0, len(data), CHUNK_BYTES):
                yield pb.ReleaseChunk(offset=offset, data=data[offset : offset + CHUNK_BYTES])

    async def watch_releases(self, call: Call, request: pb.ListReleasesRequest) -> AsyncIterator[pb.ReleaseInfo]:
        """Published releases, now and from now on."""
        call.admit(Scope.READ)
        check_plan(request.plan_id, self._catalog.plan)
        with self._watchers.taken():
            async for info in self._catalog.watch(_first_window(request)):
                yield convert_outcomes.release_info_to_wire(info)


def _first_window(request: pb.ListReleasesRequest) -> int | None:
    return request.first_window if request.from_first else None
