"""The plan and its outcomes on the wire: what the catalogue tells analysts and new clients."""

from collections.abc import Sequence

from hushsum.signed_plan import SignedPlan
from hushsum_proto.messages import NextOutcome, ReleaseInfo
from hushsum_proto.v1 import wire_pb2 as pb


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


def listing_to_wire(infos: Sequence[ReleaseInfo], following: NextOutcome | None) -> pb.ListReleasesReply:
    """Published outcomes, and the one that is published next."""
    reply = pb.ListReleasesReply(releases=map(release_info_to_wire, infos))
    if following is not None:
        reply.next_window, reply.next_due_ms, reply.next_sealed = following
    return reply


def listing_from_wire(message: pb.ListReleasesReply) -> tuple[list[ReleaseInfo], NextOutcome | None]:
    """Published outcomes, and the one that is published next; None where the service knows of none."""
    infos = [release_info_from_wire(info) for info in message.releases]
    if not message.next_due_ms:
        return infos, None
    return infos, NextOutcome(message.next_window, message.next_due_ms, message.next_sealed)
