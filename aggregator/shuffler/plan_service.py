"""The service Catalogue of a shuffler: the plan, and a word on where releases are."""

from collections.abc import AsyncIterator
from typing import Final, TypeVar

from aggregator.catalogue import NotFoundError
from aggregator.ports import Scope
from aggregator.refusals import check_plan
from aggregator.server.calls import Call, Handler, Methods
from aggregator.shuffler.values import KeptPlan
from hushsum.plan import Plan
from hushsum_proto.v1 import wire_pb2 as pb

T = TypeVar("T")

_ELSEWHERE: Final = "this is a shuffler, which holds no release: ask the aggregator that publishes them"


class PlanService:
    """The service Catalogue, of which a shuffler has the plan alone."""

    def __init__(self, plan: Plan, kept: KeptPlan) -> None:
        self._plan = plan
        self._kept = kept

    def add_to(self, methods: Methods) -> Handler:
        """The handlers of every method."""
        methods.unary("GetPlan", pb.GetPlanRequest, self.get_plan)
        methods.unary("ListReleases", pb.ListReleasesRequest, self.list_releases)
        methods.replies("GetRelease", pb.GetReleaseRequest, self.get_release)
        methods.replies("WatchReleases", pb.ListReleasesRequest, self.watch_releases)
        return methods.handler(pb.DESCRIPTOR.services_by_name["Catalogue"].methods_by_name)

    async def get_plan(self, call: Call, request: pb.GetPlanRequest) -> pb.SignedPlan:
        """The plan, with the signature that it came with; for whoever may do anything here."""
        call.admit(*Scope)
        check_plan(request.plan_id, self._plan)
        kept = self._kept
        return pb.SignedPlan(plan=kept.bundle, key_id=kept.key_id, suite=kept.suite, signature=kept.signature)

    async def list_releases(self, call: Call, _request: pb.ListReleasesRequest) -> pb.ListReleasesReply:
        """Refused."""
        call.admit(Scope.READ)
        raise NotFoundError(_ELSEWHERE)

    async def get_release(self, call: Call, _request: pb.GetReleaseRequest) -> AsyncIterator[pb.ReleaseChunk]:
        """Refused."""
        call.admit(Scope.READ)
        for chunk in _refused(pb.ReleaseChunk):
            yield chunk

    async def watch_releases(self, call: Call, _request: pb.ListReleasesRequest) -> AsyncIterator[pb.ReleaseInfo]:
        """Refused."""
        call.admit(Scope.READ)
        for info in _refused(pb.ReleaseInfo):
            yield info


def _refused(_: type[T]) -> tuple[T, ...]:
    raise NotFoundError(_ELSEWHERE)
