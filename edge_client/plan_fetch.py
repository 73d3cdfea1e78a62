"""How a client gets its plan: from its spool, or at the first connection from the service; verified and pinned."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final, TypeVar

from edge_client.config import Config
from edge_client.errors import (
    AuthenticationError,
    PlanChangedError,
    PolicyError,
    SessionRefusedError,
    SpoolError,
    UnreachableError,
)
from edge_client.policy import SIGNED_BY, Policy
from edge_client.runtime import BackOff, Runtime, drawn_s
from edge_client.spool.plan_history import PlanHistory
from edge_client.spool.spool import Spool
from edge_client.transport.interface import ConnectionLostError, PlanReply, Transport
from hushsum.entropy import Entropy
from hushsum.errors import PlanError, Reason
from hushsum.plan import Plan, plan_id_of
from hushsum.privacy.guarantee import SECURE
from hushsum.signed_plan import SignedPlan
from hushsum_proto.answers import IDENTITY_REASONS

T = TypeVar("T")

#: Refusals that say that the service collects another plan. Older services check the plan's mode first.
OTHER_PLAN: Final = frozenset({Reason.WRONG_PLAN, Reason.WRONG_MODE})
_WHAT_TO_DO: Final = (
    "set new_plan_after_s of the policy and start again to take up the new plan, or use another spool for it"
)
#: Seconds between a contact at a start and the next one, drawn. A change of plan that takes less than the first of them
#: does not show how many records it has moved.
HELD_S: Final = (2.0, 4.0)


@dataclass
class RetryPolicy:
    """When a client that starts may contact its service: again after a lost connection, and next after a plan.

    Attributes:
        held_until: No contact is made before, by the monotonic clock; None: at once.
    """

    runtime: Runtime
    config: Config
    entropy: Entropy
    held_until: float | None = None

    def backoff(self) -> BackOff:
        return BackOff(self.config.backoff_first_s, self.config.backoff_longest_s, self.entropy)

    def hold(self) -> None:
        """Fixes the moment of the next contact, whatever is done until then."""
        least_s, most_s = HELD_S
        self.held_until = self.runtime.monotonic() + least_s + drawn_s(most_s - least_s, self.entropy)

    async def held(self) -> None:
        """Returns when a contact may be made."""
        if self.held_until is not None:
            await self.runtime.sleep(max(0.0, self.held_until - self.runtime.monotonic()))

    async def fetch(self, attempt: Callable[[], Awaitable[T]], *, refused: str, missing: str) -> T:
        """What an attempt returns, repeated after a :class:`ConnectionLostError` for ``first_contact_s`` seconds.

        Raises:
            AuthenticationError: The service does not accept who this client is, to the end of that time where the
                credentials are files, which may be renewed.
            SessionRefusedError: The service refuses for good; its text begins with ``refused``.
            PlanChangedError: Of that: it collects another plan.
            UnreachableError: No attempt succeeded in time; its text begins with ``missing``, where ``{}`` is the time.
        """
        await self.held()
        backoff = self.backoff()
        deadline = self.runtime.monotonic() + self.config.first_contact_s
        while True:
            try:
                return await attempt()
            except ConnectionLostError as error:
                loss = error.loss
            if loss.refusal is not None and loss.refusal.reason in IDENTITY_REASONS:
                raise AuthenticationError(f"the service does not accept this client: {loss.detail}")
            if loss.refusal is not None and loss.refusal.reason in OTHER_PLAN:
                raise PlanChangedError(f"{refused}: the service collects another plan ({loss.detail}): {_WHAT_TO_DO}")
            if loss.refusal is not None and not loss.refusal.retry:
                raise SessionRefusedError(f"{refused}: {loss.detail}")
            wait_s = backoff.next_s()
            if self.runtime.monotonic() + wait_s >= deadline and loss.identity_refused:
                raise AuthenticationError(loss.detail)
            if self.runtime.monotonic() + wait_s >= deadline:
                what = missing.format(f"{self.config.first_contact_s:g} s")
                raise UnreachableError(f"{what}; the last attempt ended with: {loss.detail}")
            await self.runtime.sleep(wait_s)


async def pinned_plan(
    spool: Spool, policy: Policy, transport: Transport, retry: RetryPolicy, *, unnamed: bool = False
) -> tuple[Plan, bool]:
    """The plan that the spool belongs to, or else that the service collects; the policy allows it, and it is kept.

    Where the policy wants a signature that the spool has not, since it is older or the planner's key is new, the plan
    is fetched once more.

    Args:
        spool: Of the client.
        policy: What this device allows.
        transport: To the service.
        retry: Of the first contact.
        unnamed: Whether the service says who this is: the spool takes that name with the plan.

    Returns:
        The plan, and whether it was just fetched: the spool then holds nothing to send.

    Raises:
        PolicyError: The policy does not allow the plan; nothing was kept.
        UnreachableError: No service answered in time, and there is no plan, or none with the signature that is wanted.
        SessionRefusedError: The service wants no session with this client, or its plan is not what it says.
        PlanChangedError: It collects another plan than the spool's.
        PlanError: This version cannot read the plan.
        SpoolError: Or what the spool holds.
    """
    blocking = retry.runtime.blocking
    stored = await blocking(_stored_plan, spool)
    if stored is None:
        reply, client_id = await _fetch_plan(transport, retry)
        plan = await blocking(read_plan, reply.bundle)
        policy.check(plan, reply.signed)
        signature = None if reply.signed is None else reply.signed.to_bytes()
        await blocking(spool.keep_plan, plan.bundle, signature, client_id if unnamed else "")
        return plan, True
    signed = await blocking(_stored_signature, spool, stored)
    try:
        policy.check(stored, signed)
        return stored, False
    except PolicyError as error:
        if error.rule != SIGNED_BY:
            raise
    try:
        signed = (await _fetch_plan(transport, retry, stored.id))[0].signed or signed
    except UnreachableError:
        if signed is None:
            raise
    if submits(stored):
        retry.hold()
    policy.check(stored, signed)
    if signed is not None:
        await blocking(spool.keep_signature, signed.to_bytes())
    return stored, False


async def take_up_new_plan(
    history: PlanHistory, spool: Spool, policy: Policy, transport: Transport, retry: RetryPolicy
) -> str | None:
    """Makes the plan that the service collects the spool's current one, where the policy allows it.

    It asks once, after the service has said that it collects another plan, or where the policy does not allow the one
    that the spool has; and not before the time that the policy sets has passed since the last change, and a shorter one
    since the last try. Where no service answers, nothing is changed. Moving rows takes a time that depends on records:
    in secure sums and as a silo the moment of the next contact is fixed before (:meth:`RetryPolicy.hold`).

    Returns:
        Why the new plan was not taken up, one sentence; None where it was, or there is none. Nothing was changed then.

    Raises:
        SpoolError: The spool cannot be read, or what it holds.
    """
    blocking = retry.runtime.blocking
    stored = await blocking(_stored_plan, spool)
    if stored is None or policy.new_plan_after_ms is None:
        return None
    is_allowed, now_ms = await blocking(_is_allowed, policy, stored, spool), retry.runtime.now_ms()
    try:
        is_wanted = not is_allowed or await blocking(lambda: history.is_told)
        if not is_wanted or now_ms < await blocking(history.next_change_ms, now_ms, policy.new_plan_after_ms):
            return None
        try:
            reply, _ = await _attempt(transport, b"")
        finally:
            if submits(stored):
                retry.hold()
        if plan_id_of(reply.bundle) == stored.id:
            await blocking(partial(history.note_other_plan, told=False))
            if not is_allowed:
                await blocking(history.note_try, now_ms)
            return None
        plan = await blocking(read_plan, reply.bundle)
        if submits(plan):  # the spool may hold something of it
            retry.hold()
        policy.check_change(stored, plan, reply.signed)
        signature = None if reply.signed is None else reply.signed.to_bytes()
        await blocking(history.take_up, plan, signature, now_ms)
    except ConnectionLostError:
        return None
    except (PlanError, PolicyError, SessionRefusedError, SpoolError) as error:
        with suppress(SpoolError):  # a full disk: it is tried again at the next start
            await blocking(history.note_try, now_ms)
        return str(error)
    return None


async def _fetch_plan(transport: Transport, retry: RetryPolicy, expected: bytes = b"") -> tuple[PlanReply, str]:
    """The plan that the service collects, which must have the expected id, unless that is empty; and who this is."""
    return await retry.fetch(
        lambda: _attempt(transport, expected),
        refused="the service refused the session",
        missing="the service sent no plan within {}; without a plan no records can be added",
    )


async def _attempt(transport: Transport, expected: bytes) -> tuple[PlanReply, str]:
    connection = transport.connect()
    try:
        welcome = await connection.greet(expected)
        reply = await connection.fetch_plan(welcome.plan_id)
    finally:
        await connection.close()
    if plan_id_of(reply.bundle) != welcome.plan_id:
        came = plan_id_of(reply.bundle).hex()[:12]
        raise SessionRefusedError(f"the service collects plan {welcome.plan_id.hex()[:12]} and sent plan {came} for it")
    if expected not in (b"", welcome.plan_id):
        came, own = welcome.plan_id.hex()[:12], expected.hex()[:12]
        raise PlanChangedError(f"the service collects plan {came}, this spool belongs to plan {own}: {_WHAT_TO_DO}")
    return reply, welcome.client_id


def submits(plan: Plan) -> bool:
    """Whether a device submits once a window, at moments that depend on no record (secure sums and silos)."""
    return plan.privacy.is_silo or plan.privacy.mode == SECURE


def _stored_plan(spool: Spool) -> Plan | None:
    """The plan that a spool belongs to; None before its first contact."""
    data = spool.plan
    try:
        return None if data is None else read_plan(data)
    except PlanError as error:
        raise SpoolError(f"spool: it holds a plan that this version cannot read: {error}") from error


def _is_allowed(policy: Policy, plan: Plan, spool: Spool) -> bool:
    try:
        policy.check(plan, _stored_signature(spool, plan))
    except PolicyError:
        return False
    return True


def _stored_signature(spool: Spool, plan: Plan) -> SignedPlan | None:
    data = spool.signature
    try:
        return None if data is None else SignedPlan.from_bytes(plan.bundle, data)
    except PlanError as error:
        raise SpoolError(f"spool: it holds a signature that this version cannot read: {error}") from error


@lru_cache(maxsize=8)
def read_plan(data: bytes) -> Plan:
    """The plan of canonical bytes; the clients of one process share it, and what it has computed."""
    return Plan.from_bytes(data)
