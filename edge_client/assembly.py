"""What a running client is made of, put together from its spool, its plan and what it was given."""

from collections.abc import Callable
from dataclasses import dataclass, field

from edge_client.config import Config
from edge_client.first_contact import fetch_plan, stored_plan
from edge_client.lanes import presence_stream
from edge_client.policy import Policy
from edge_client.ports import Runtime
from edge_client.presence import Presence
from edge_client.secure.attempt import Parts
from edge_client.secure.member import Fetching, member_of
from edge_client.secure.rounds import Rounds
from edge_client.secure.submitter import Submitter
from edge_client.session import Session
from edge_client.spool import Spool
from edge_client.spool_writer import SpoolWriter
from edge_client.tallies import Sends
from edge_client.transport_grpc import GrpcTransport
from edge_client.uplink import Uplink, Wiring
from hushsum.delta import shows_presence
from hushsum.entropy import Entropy, OsEntropy
from hushsum.plan import Plan
from hushsum.privacy.guarantee import SECURE
from hushsum.signatures import SigningKey
from hushsum_proto.answers import Answer


@dataclass(frozen=True)
class Given:
    """What a client was given, and works with from its start on.

    Attributes:
        target: Of the service.
        policy: What the device allows.
        config: Limits and waits.
        runtime: Time, tasks and threads.
        entropy: Of jitter, and of what a spool draws at its first use.
        key: The client's own; None where there is none.
    """

    target: str
    policy: Policy
    config: Config
    runtime: Runtime
    entropy: Entropy
    key: SigningKey | None = field(repr=False)


@dataclass(frozen=True)
class Assembly:
    """A client's parts.

    Attributes:
        met: The service was met a moment ago: for its plan.
        spool: Where everything waits.
        plan: That is contributed to.
        writer: Through which deltas come into the spool.
        uplink: What sends them, and owns the client's tasks.
        presence: Of a plan with public participation.
        rounds: Of a plan with a secure sum.
        submitter: Likewise.
    """

    met: bool
    spool: Spool
    plan: Plan
    writer: SpoolWriter
    uplink: Uplink
    presence: Presence | None
    rounds: Rounds | None
    submitter: Submitter | None

    @property
    def sends(self) -> Sends:
        """What was written to connections."""
        return self.uplink.sends if self.submitter is None else self.submitter.sends

    async def begin(self) -> None:
        """Shows that the client takes part, before any of the records in the spool, and connects.

        Raises:
            SpoolError: The spool cannot be written.
        """
        if self.presence is not None:
            await self.presence.begin()
        if self.submitter is not None:
            await self.submitter.begin()
        elif not self.met:
            self.uplink.begin()

    async def caught_up(self) -> None:
        """Returns once a window that has just begun was looked at."""
        if self.presence is not None:
            await self.presence.caught_up()
        if self.submitter is not None:
            await self.submitter.caught_up()

    async def flush(self, timeout_s: float | None) -> None:
        """Returns once all has a definitive answer (see :meth:`edge_client.EdgeClient.flush`)."""
        await self.uplink.answered(timeout_s)
        if self.submitter is not None:
            await self.submitter.flush(timeout_s)

    async def finished(self, timeout_s: float) -> None:
        """Returns once what is under way has its answer; nothing new is begun.

        Raises:
            FlushTimeoutError: Not within the time.
        """
        await self.uplink.answered(timeout_s)
        if self.submitter is not None:
            await self.submitter.finished(timeout_s)


async def assemble(spool: Spool, given: Given, note: Callable[[Answer, int], None]) -> Assembly:
    """The parts of a client; none of them has begun.

    Args:
        spool: Open.
        given: What the client was given.
        note: Called with each definitive answer, and how many deltas were withdrawn with it.
    """
    runtime, config = given.runtime, given.config
    transport = GrpcTransport(given.target, spool.client_id, config)
    stored = await runtime.blocking(stored_plan, spool)
    plan = stored or await fetch_plan(transport, runtime, config, given.entropy)
    given.policy.check(plan)
    if stored is None:
        await runtime.blocking(spool.keep_plan, plan.bundle)
    rounds = await runtime.blocking(Rounds, spool, plan) if plan.privacy.mode == SECURE else None
    session = Session(
        config=config,
        plan_id=plan.id,
        stream=spool.stream,
        lateness_ms=plan.window.lateness_ms,
        unanswered=await runtime.blocking(spool.unanswered),
        entropy=given.entropy,
        kept=int(shows_presence(plan)),
    )
    writer = SpoolWriter(spool, runtime, config.commits_max)
    uplink = Uplink(session, Wiring(spool, writer, transport, runtime, plan.id, note))
    presence = submitter = None
    if shows_presence(plan):
        await runtime.blocking(spool.keep_presences)
        presence = Presence(plan, presence_stream(spool.stream), writer, uplink, runtime)
    if rounds is not None:
        submitter = await _submitter(spool.client_id, plan, rounds, given, transport=transport, uplink=uplink)
    return Assembly(stored is None, spool, plan, writer, uplink, presence, rounds, submitter)


async def _submitter(
    client_id: str, plan: Plan, rounds: Rounds, given: Given, *, transport: GrpcTransport, uplink: Uplink
) -> Submitter:
    fetching = Fetching(transport, given.runtime, given.config)
    member = await member_of(plan, client_id, given.key, rounds=rounds, calls=fetching, entropy=given.entropy)
    # Keys, masks and noise are the operating system's, whatever the jitter is drawn from.
    parts = Parts(plan, rounds, member, given.runtime, OsEntropy())
    return Submitter(parts, transport, given.config, given.entropy, uplink)
