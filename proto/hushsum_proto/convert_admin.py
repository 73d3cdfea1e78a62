"""Status, plans, windows and the ledger on the wire: what the administration tells its operator."""

from typing import Final

from hushsum.errors import HushsumError
from hushsum.privacy.events import Spend
from hushsum_proto.convert_outcomes import release_info_from_wire, release_info_to_wire
from hushsum_proto.errors import MalformedMessageError
from hushsum_proto.messages import (
    PAGE,
    PAGE_MAX,
    FoldStatus,
    LedgerPage,
    PlanInfo,
    Released,
    ServiceStatus,
    WindowsPage,
)
from hushsum_proto.v1 import wire_pb2 as pb

_UNKNOWN: Final = -1


def status_to_wire(status: ServiceStatus) -> pb.StatusReply:
    """What the administration shows of a service."""
    return pb.StatusReply(
        plan_id=status.plan_id,
        plan_name=status.plan_name,
        partitions=status.partitions,
        windows=[pb.WindowStatus(window=window, state=state) for window, state in status.windows],
        epsilon_total=status.epsilon_total,
        epsilon_spent=status.epsilon_spent,
        epsilon_left=status.epsilon_left,
        releasing_stopped=status.releasing_stopped,
        delta_total=status.delta_total,
        delta_spent=status.delta_spent,
        delta_left=status.delta_left,
        statement=status.statement,
        role=status.role,
        releaser=status.releaser,
        releaser_address=status.releaser_address,
        folds=[
            pb.FoldStatus(
                partition=fold.partition,
                position=fold.position,
                lag=_UNKNOWN if fold.lag is None else fold.lag,
                stopped=fold.stopped,
            )
            for fold in status.folds
        ],
    )


def status_from_wire(message: pb.StatusReply) -> ServiceStatus:
    """What the administration shows of a service."""
    return ServiceStatus(
        plan_id=message.plan_id,
        plan_name=message.plan_name,
        partitions=message.partitions,
        windows=tuple((window.window, window.state) for window in message.windows),
        epsilon_total=message.epsilon_total,
        epsilon_spent=message.epsilon_spent,
        epsilon_left=message.epsilon_left,
        releasing_stopped=message.releasing_stopped,
        delta_total=message.delta_total,
        delta_spent=message.delta_spent,
        delta_left=message.delta_left,
        statement=message.statement,
        role=message.role,
        releaser=message.releaser,
        releaser_address=message.releaser_address,
        folds=tuple(
            FoldStatus(fold.partition, fold.position, None if fold.lag == _UNKNOWN else fold.lag, fold.stopped)
            for fold in message.folds
        ),
    )


def released_to_wire(released: Released) -> pb.ReleaseWindowReply:
    """An outcome that was just drawn."""
    return pb.ReleaseWindowReply(
        release=release_info_to_wire(released.release),
        epsilon_spent=released.epsilon_spent,
        epsilon_left=released.epsilon_left,
    )


def released_from_wire(message: pb.ReleaseWindowReply) -> Released:
    """An outcome that was just drawn."""
    return Released(release_info_from_wire(message.release), message.epsilon_spent, message.epsilon_left)


def plans_to_wire(plans: list[PlanInfo]) -> pb.ListPlansReply:
    """Every plan of a store."""
    return pb.ListPlansReply(
        plans=[
            pb.PlanInfo(
                plan_id=plan.plan_id,
                name=plan.name,
                mode=plan.mode,
                population=plan.population,
                partitions=plan.partitions,
                first_window=plan.first_window,
                signed_by=plan.signed_by,
                collected_here=plan.collected_here,
            )
            for plan in plans
        ]
    )


def plans_from_wire(message: pb.ListPlansReply) -> list[PlanInfo]:
    """Every plan of a store."""
    return [
        PlanInfo(
            plan_id=plan.plan_id,
            name=plan.name,
            mode=plan.mode,
            population=plan.population,
            partitions=plan.partitions,
            first_window=plan.first_window,
            signed_by=plan.signed_by,
            collected_here=plan.collected_here,
        )
        for plan in message.plans
    ]


def windows_request_to_wire(before: int | None, limit: int) -> pb.ListWindowsRequest:
    """Asks for so many windows before one; None: the newest."""
    return pb.ListWindowsRequest(before=before or 0, newest=before is None, limit=limit)


def windows_request_from_wire(message: pb.ListWindowsRequest) -> tuple[int | None, int]:
    """The window before which windows are asked for (None: the newest), and how many.

    Raises:
        MalformedMessageError: More than a page holds.
    """
    return None if message.newest else message.before, _limit(message.limit)


def windows_to_wire(page: WindowsPage) -> pb.ListWindowsReply:
    """Some windows of a plan."""
    windows = [pb.WindowStatus(window=window, state=state) for window, state in page.windows]
    return pb.ListWindowsReply(windows=windows, more=page.more)


def windows_from_wire(message: pb.ListWindowsReply) -> WindowsPage:
    """Some windows of a plan."""
    return WindowsPage(tuple((window.window, window.state) for window in message.windows), message.more)


def ledger_request_from_wire(message: pb.GetLedgerRequest) -> tuple[int, int]:
    """How many of the newest spends are left out, and how many are asked for.

    Raises:
        MalformedMessageError: More than a page holds.
    """
    return message.skip, _limit(message.limit)


def ledger_to_wire(page: LedgerPage) -> pb.GetLedgerReply:
    """A population's ledger."""
    return pb.GetLedgerReply(
        population=page.population,
        unit=page.unit,
        relation=page.relation,
        epsilon_total=page.epsilon_total,
        epsilon_spent=page.epsilon_spent,
        epsilon_left=page.epsilon_left,
        delta_total=page.delta_total,
        delta_spent=page.delta_spent,
        delta_left=page.delta_left,
        statement=page.statement,
        spends=[spend.to_bytes() for spend in page.spends],
        spends_total=page.spends_total,
    )


def ledger_from_wire(message: pb.GetLedgerReply) -> LedgerPage:
    """A population's ledger.

    Raises:
        MalformedMessageError: Bytes that are no spend of this version.
    """
    return LedgerPage(
        population=message.population,
        unit=message.unit,
        relation=message.relation,
        epsilon_total=message.epsilon_total,
        epsilon_spent=message.epsilon_spent,
        epsilon_left=message.epsilon_left,
        delta_total=message.delta_total,
        delta_spent=message.delta_spent,
        delta_left=message.delta_left,
        statement=message.statement,
        spends=tuple(map(_spend, message.spends)),
        spends_total=message.spends_total,
    )


def _limit(asked: int) -> int:
    if asked > PAGE_MAX:
        raise MalformedMessageError(f"limit: got {asked}, expected at most {PAGE_MAX}")
    return asked or PAGE


def _spend(data: bytes) -> Spend:
    try:
        return Spend.from_bytes(data)
    except HushsumError as error:
        raise MalformedMessageError(f"ledger: a spend that this version cannot read: {error}") from error
