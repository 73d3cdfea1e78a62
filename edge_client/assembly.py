"""What a running client is made of, put together from its spool, its plan and what it was given."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from edge_client.books import Books
from edge_client.config import LARGE_BYTES, Config
from edge_client.first_contact import Waits, meet
from edge_client.lanes import BatchIds
from edge_client.policy import Policy
from edge_client.ports import Runtime
from edge_client.reports import Randomising
from edge_client.secure.attempt import Parts
from edge_client.secure.member import Fetching, member_of
from edge_client.secure.rounds import Rounds
from edge_client.secure.submitter import Submitter
from edge_client.session import Session
from edge_client.silo.submissions import Submissions
from edge_client.silo.submitter import SiloSubmitter
from edge_client.spool import Spool
from edge_client.spool_writer import SpoolWriter
from edge_client.tallies import Sends
from edge_client.transport_grpc import GrpcTransport, large_s
from edge_client.turns.taker import Taker
from edge_client.turns.turns import Turns
from edge_client.uplink import Uplink, Wiring
from hushsum.entropy import Entropy, OsEntropy
from hushsum.plan import Plan
from hushsum.privacy.guarantee import CENTRAL, SECURE
from hushsum.signatures import SigningKey
from hushsum_proto.answers import Answer
from hushsum_proto.credentials import Credentials


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
        credentials: What the service is shown, and who is believed; None: nothing, and public authorities.
    """

    target: str
    policy: Policy
    config: Config
    runtime: Runtime
    entropy: Entropy
    key: SigningKey | None = field(repr=False)
    credentials: Credentials | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Refuses settings that contradict each other, before anything is opened."""
        if self.config.insecure and self.credentials is not None:
            self.credentials.in_plaintext(self.target)


@dataclass(frozen=True)
class Assembly:
    """A client's parts.

    Attributes:
        met: The service was met a moment ago, for the plan of an empty spool.
        spool: Where everything waits.
        plan: That is contributed to.
        writer: Through which deltas come into the spool.
        uplink: What sends them, and owns the client's tasks.
        books: What this device has spent, with a secure sum and in local mode.
        randomising: Of a plan of reports.
        taker: Of a plan with a secure sum, or of silos: what takes its turns.
    """

    met: bool
    spool: Spool
    plan: Plan
    writer: SpoolWriter
    uplink: Uplink
    books: Books | None
    randomising: Randomising | None
    taker: Taker | None

    @property
    def submitter(self) -> Submitter | None:
        """Of a plan with a secure sum: what takes part in its rounds."""
        return self.taker if isinstance(self.taker, Submitter) else None

    @property
    def sends(self) -> Sends:
        """What was written to connections."""
        return self.uplink.sends if self.submitter is None else self.submitter.sends

    def told(self, answer: Answer) -> None:
        """Hears each definitive answer."""
        if isinstance(self.taker, SiloSubmitter):
            self.taker.told(answer)

    async def begin(self) -> None:
        """Takes part in the windows of this moment, where the plan's mode asks for it, and connects.

        Raises:
            SpoolError: The spool cannot be written.
        """
        if self.taker is not None:
            await self.taker.begin()
        if self.submitter is None and not self.met:
            self.uplink.begin()

    async def caught_up(self) -> None:
        """Returns once a window that has just begun was looked at."""
        if self.taker is not None:
            await self.taker.caught_up()

    async def flush(self, timeout_s: float | None) -> None:
        """Returns once all has a definitive answer (see :meth:`edge_client.EdgeClient.flush`)."""
        await self.uplink.answered(timeout_s)
        if self.taker is not None:
            await self.taker.flush(timeout_s)

    async def finished(self, timeout_s: float) -> None:
        """Returns once what is under way has its answer; nothing new is begun.

        Raises:
            FlushTimeoutError: Not within the time.
        """
        await self.uplink.answered(timeout_s)
        if self.taker is not None:
            await self.taker.finished(timeout_s)


async def assemble(spool: Spool, given: Given, note: Callable[[Answer], None]) -> Assembly:
    """The parts of a client; none of them has begun.

    Args:
        spool: Open.
        given: What the client was given.
        note: Called with each definitive answer.
    """
    runtime, config = given.runtime, given.config
    transport = GrpcTransport(given.target, spool.client_id, config, given.credentials)
    met = await meet(spool, given.policy, transport, Waits(runtime, config, given.entropy))
    plan = met.plan
    kept = await runtime.blocking(_kept, spool, plan)
    session = Session(
        config=_sending(config, plan),
        plan_id=plan.id,
        stream=spool.stream,
        lateness_ms=plan.window.lateness_ms,
        unanswered=await runtime.blocking(spool.unanswered),
        entropy=given.entropy,
        ids=kept.ids,
    )
    writer = SpoolWriter(spool, runtime, config.commits_max)
    wiring = Wiring(spool, writer, transport, runtime, plan.id, note, batches=kept.randomising is not None)
    uplink = Uplink(session, wiring)
    taker: Taker | None = None
    if isinstance(kept.turns, Rounds):
        taker = await _submitter(spool.client_id, plan, kept.turns, given, transport=transport, uplink=uplink)
    elif isinstance(kept.turns, Submissions):
        waits = Waits(runtime, config, given.entropy)
        taker = await runtime.blocking(SiloSubmitter, plan, kept.turns, writer, uplink, waits)
    return Assembly(met.first, spool, plan, writer, uplink, kept.books, kept.randomising, taker)


@dataclass(frozen=True)
class _Kept:
    """What a plan's mode needs of its spool."""

    books: Books | None = None
    turns: Turns | None = None
    randomising: Randomising | None = None
    ids: BatchIds | None = None


def _kept(spool: Spool, plan: Plan) -> _Kept:
    if plan.privacy.mode == CENTRAL:
        return _Kept()
    spool.keep_rounds()
    books = spool.keep_books(plan)
    if plan.privacy.mode == SECURE:
        return _Kept(books, Rounds(spool, plan, books))
    local = plan.privacy.local
    assert local is not None, "mode 'local' has a form"
    if not local.reports:
        return _Kept(books, Submissions(spool, plan, books))
    # Reports, their streams and the memo's secret are the operating system's, whatever the jitter is drawn from.
    secret = spool.keep_memo(OsEntropy()) if local.memoise else None
    return _Kept(books, None, Randomising(plan, secret), BatchIds(spool.streams()))


def _sending(config: Config, plan: Plan) -> Config:
    """How deltas are sent: one that is too large for a stream's message goes in a call of its own, and takes longer."""
    if not plan.privacy.is_silo or plan.upload_bytes_max <= LARGE_BYTES:
        return config
    longest_s = config.call_timeout_s + large_s(plan.upload_bytes_max)
    return replace(config, unary=True, answer_wait_s=max(config.answer_wait_s, 2 * longest_s))


async def _submitter(
    client_id: str, plan: Plan, rounds: Rounds, given: Given, *, transport: GrpcTransport, uplink: Uplink
) -> Submitter:
    fetching = Fetching(transport, given.runtime, given.config)
    member = await member_of(plan, client_id, given.key, rounds=rounds, calls=fetching, entropy=given.entropy)
    # Keys, masks and noise are the operating system's, whatever the jitter is drawn from.
    parts = Parts(plan, rounds, member, given.runtime, OsEntropy())
    return Submitter(parts, transport, given.config, given.entropy, uplink)
