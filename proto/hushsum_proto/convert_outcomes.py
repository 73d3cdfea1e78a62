"""The plan, outcomes and status on the wire: what the catalogue tells analysts, and the administration its operator."""

from typing import Final

from hushsum.signed_plan import SignedPlan
from hushsum_proto.messages import FoldStatus, Released, ReleaseInfo, ServiceStatus
from hushsum_proto.v1 import wire_pb2 as pb

_UNKNOWN: Final = -1


def plan_to_wire(bundle: bytes, signed: SignedPlan | None) -> pb.SignedPlan:
    """A plan's bundle, with its signature where somebody has signed it."""
    if signed is None:
        return pb.SignedPlan(plan=bundle)
    return pb.SignedPlan(plan=bundle, key_id=signed.key_id, suite=signed.suite, signature=signed.signature)


def plan_from_wire(message: pb.SignedPlan) -> tuple[bytes, SignedPlan | None]:
    """A plan's bundle, unread, and the same with its signature, unverified; None where this version can read none."""
    signed = SignedPlan.received(message.plan, message.key_id, message.suite, message.signature)
    return message.plan, signed


def release_info_to_wire(info: ReleaseInfo) -> pb.ReleaseInfo:
    """What is told of a published outcome."""
    return pb.ReleaseInfo(
        plan_id=info.plan_id,
        kind=info.kind,
        window=info.window,
        size_bytes=info.size_bytes,
        sha256=info.sha256,
        withheld=info.withheld,
    )


def release_info_from_wire(message: pb.ReleaseInfo) -> ReleaseInfo:
    """What is told of a published outcome."""
    return ReleaseInfo(
        plan_id=message.plan_id,
        kind=message.kind,
        window=message.window,
        size_bytes=message.size_bytes,
        sha256=message.sha256,
        withheld=message.withheld,
    )


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
