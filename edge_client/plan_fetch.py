"""How a client gets its plan: from its spool, or at the first connection from the service; verified and pinned."""

from dataclasses import dataclass
from functools import lru_cache

from edge_client.config import Config
from edge_client.errors import PlanChangedError, SessionRefusedError, SpoolError, UnreachableError
from edge_client.policy import Policy
from edge_client.runtime import BackOff, Runtime
from edge_client.spool.spool import Spool
from edge_client.transport.interface import ConnectionLostError, Disconnect, PlanReply, Transport
from hushsum.entropy import Entropy
from hushsum.errors import PlanError
from hushsum.plan import Plan, plan_id_of
from hushsum.signed_plan import SignedPlan


@dataclass(frozen=True)
class RetryPolicy:
    """How long a first contact is tried: ``first_contact_s``, with back-off."""

    runtime: Runtime
    config: Config
    entropy: Entropy


@dataclass(frozen=True)
class PinnedPlan:
    """A plan, and with whose signature it came.

    Attributes:
        plan: Read.
        signed: None where it came without a signature.
        first: Whether the spool had none before: it holds nothing to send.
    """

    plan: Plan
    signed: SignedPlan | None
    first: bool


async def meet(spool: Spool, policy: Policy, transport: Transport, waits: RetryPolicy) -> PinnedPlan:
    """The plan that the spool belongs to, or else that the service collects; the policy allows it, and it is kept.

    Where the policy wants a signature that the spool has not, since it is older or the planner's key is new, the plan
    is fetched once more.

    Raises:
        PolicyError: The policy does not allow the plan; nothing was kept.
        UnreachableError: Nobody answered in time, and there is no plan, or none with the signature that is wanted.
        SessionRefusedError: The service wants no session with this client, or its plan is not what it says.
        PlanChangedError: It collects another plan than the spool's.
        PlanError: This version cannot read the plan.
        SpoolError: Or what the spool holds.
    """
    blocking = waits.runtime.blocking
    stored = await blocking(stored_plan, spool)
    if stored is None:
        reply = await fetch_plan(transport, waits)
        plan = await blocking(read_plan, reply.bundle)
        policy.check(plan, reply.signed)
        await blocking(spool.keep_plan, plan.bundle, None if reply.signed is None else reply.signed.to_bytes())
        return PinnedPlan(plan, reply.signed, first=True)
    signed = await blocking(_stored_signature, spool, stored)
    if not _accepted(policy, signed):
        signed = await _fetch_signature(stored, signed, transport, waits)
        policy.check(stored, signed)
        if signed is not None:
            await blocking(spool.keep_signature, signed.to_bytes())
    else:
        policy.check(stored, signed)
    return PinnedPlan(stored, signed, first=False)


async def _fetch_signature(
    plan: Plan, stored: SignedPlan | None, transport: Transport, waits: RetryPolicy
) -> SignedPlan | None:
    """The signature that the service has by now; where nobody answers, or it has none, the stored one."""
    try:
        return (await fetch_plan(transport, waits, plan.id)).signed or stored
    except UnreachableError:
        if stored is None:
            raise
        return stored


async def fetch_plan(transport: Transport, waits: RetryPolicy, expected: bytes = b"") -> PlanReply:
    """The plan that the service collects, tried for ``first_contact_s`` seconds.

    Args:
        transport: Where connections come from.
        waits: How long it is tried.
        expected: The id of the plan that the spool belongs to; empty where it has none.

    Raises:
        UnreachableError: Nobody answered in this time.
        SessionRefusedError: The service wants no session with this client, or its plan is not what it says.
        PlanChangedError: It collects another plan than the expected one.
    """
    runtime, config = waits.runtime, waits.config
    backoff = BackOff(config.backoff_first_s, config.backoff_longest_s, waits.entropy)
    deadline = runtime.monotonic() + config.first_contact_s
    while True:
        loss = await _attempt(transport, expected)
        if isinstance(loss, PlanReply):
            return loss
        if loss.refusal is not None and not loss.refusal.retry:
            raise SessionRefusedError(f"the service wants no session with this client: {loss.detail}")
        wait_s = backoff.next_s()
        if runtime.monotonic() + wait_s >= deadline:
            raise UnreachableError(
                f"the service gave no plan within {config.first_contact_s:g} s, and without one nothing can be added; "
                f"the last attempt ended with: {loss.detail}"
            )
        await runtime.sleep(wait_s)


async def _attempt(transport: Transport, expected: bytes) -> PlanReply | Disconnect:
    connection = transport.connect()
    try:
        welcome = await connection.greet(expected)
        reply = await connection.fetch_plan(welcome.plan_id)
    except ConnectionLostError as error:
        return error.loss
    finally:
        await connection.close()
    if plan_id_of(reply.bundle) != welcome.plan_id:
        came = plan_id_of(reply.bundle).hex()[:12]
        raise SessionRefusedError(f"the service collects plan {welcome.plan_id.hex()[:12]} and sent plan {came} for it")
    if expected not in (b"", welcome.plan_id):
        came, own = welcome.plan_id.hex()[:12], expected.hex()[:12]
        raise PlanChangedError(f"the service collects plan {came}, this spool belongs to plan {own}: use another spool")
    return reply


def _stored_signature(spool: Spool, plan: Plan) -> SignedPlan | None:
    data = spool.signature
    try:
        return None if data is None else SignedPlan.from_bytes(plan.bundle, data)
    except PlanError as error:
        raise SpoolError(f"spool: it holds a signature that this version cannot read: {error}") from error


def _accepted(policy: Policy, signed: SignedPlan | None) -> bool:
    """Whether it is by a key that the policy names, where it names any."""
    if policy.signed_by is None:
        return True
    assert isinstance(policy.signed_by, tuple), "normalised by its constructor"
    try:
        return signed is not None and signed.verify(policy.signed_by) in policy.signed_by
    except PlanError:
        return False


def stored_plan(spool: Spool) -> Plan | None:
    """The plan that a spool belongs to; None before its first contact.

    Raises:
        SpoolError: This version cannot read it.
    """
    data = spool.plan
    try:
        return None if data is None else read_plan(data)
    except PlanError as error:
        raise SpoolError(f"spool: it holds a plan that this version cannot read: {error}") from error


@lru_cache(maxsize=8)
def read_plan(data: bytes) -> Plan:
    """The plan of canonical bytes; the clients of one process share it, and what it has computed.

    Raises:
        PlanError: These are not the canonical bytes of a plan of this version.
    """
    return Plan.from_bytes(data)
