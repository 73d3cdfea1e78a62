"""The service Administration: callers of scope ``admin``; where names are only declared, those on this machine."""

from aggregator.administration import Administration
from aggregator.ports import Scope
from aggregator.server.calls import Call, Handler, Methods
from hushsum_proto import convert_admin
from hushsum_proto.v1 import wire_pb2 as pb


class AdministrationService:
    """Serves the operator."""

    def __init__(self, administration: Administration) -> None:
        self._administration = administration

    def add_to(self, methods: Methods) -> Handler:
        """The handlers of every method."""
        admin = (Scope.ADMIN,)
        methods.unary("GetStatus", pb.StatusRequest, self.get_status, scopes=admin)
        methods.unary("ListPlans", pb.ListPlansRequest, self.list_plans, scopes=admin)
        methods.unary("ListWindows", pb.ListWindowsRequest, self.list_windows, scopes=admin)
        methods.unary("GetLedger", pb.GetLedgerRequest, self.get_ledger, scopes=admin)
        methods.unary("SealWindow", pb.SealWindowRequest, self.seal_window, scopes=admin)
        methods.unary("ReleaseWindow", pb.ReleaseWindowRequest, self.release_window, scopes=admin)
        return methods.handler(pb.DESCRIPTOR.services_by_name["Administration"].methods_by_name)

    async def get_status(self, call: Call, _: pb.StatusRequest) -> pb.StatusReply:
        """Windows, ledger, and what stops releasing."""
        call.admit(Scope.ADMIN)
        return convert_admin.status_to_wire(await self._administration.status())

    async def list_plans(self, call: Call, _: pb.ListPlansRequest) -> pb.ListPlansReply:
        """Every plan of the store."""
        call.admit(Scope.ADMIN)
        return convert_admin.plans_to_wire(await self._administration.plans())

    async def list_windows(self, call: Call, request: pb.ListWindowsRequest) -> pb.ListWindowsReply:
        """Windows of this plan, newest first."""
        call.admit(Scope.ADMIN)
        asked = convert_admin.windows_request_from_wire(request)
        return convert_admin.windows_to_wire(await self._administration.windows(*asked))

    async def get_ledger(self, call: Call, request: pb.GetLedgerRequest) -> pb.GetLedgerReply:
        """The ledger of this plan's population, its spends newest first."""
        call.admit(Scope.ADMIN)
        asked = convert_admin.ledger_request_from_wire(request)
        return convert_admin.ledger_to_wire(await self._administration.ledger(*asked))

    async def seal_window(self, call: Call, request: pb.SealWindowRequest) -> pb.SealWindowReply:
        """Closes a window."""
        call.admit(Scope.ADMIN)
        window = await self._administration.seal(None if request.oldest else request.window)
        return pb.SealWindowReply(window=window)

    async def release_window(self, call: Call, request: pb.ReleaseWindowRequest) -> pb.ReleaseWindowReply:
        """Draws an outcome."""
        call.admit(Scope.ADMIN)
        released = await self._administration.release(None if request.oldest else request.window)
        return convert_admin.released_to_wire(released)
