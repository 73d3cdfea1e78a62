"""Protocols with two or more implementations, in the service or in the simulation of it.

Log, store, membership, receipts, folds, observers, tracers, authenticators: structural, so that the real thing and a
double are exchanged freely.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Final, NamedTuple, Protocol

from aggregator.fold.state import Checkpoint, FoldMark, RememberedKind, StreamUse, Verdict
from aggregator.model import (
    ClaimedFold,
    EntryBatch,
    Lease,
    NewEntry,
    Outcome,
    Peer,
    ReceiptsMark,
    RegisteredPlan,
    RoundMembers,
    Scope,
    SealedWindow,
    StoredOutcome,
    StreamMemory,
)
from hushsum.delta import DeltaId
from hushsum.entropy import Entropy
from hushsum.errors import Reason
from hushsum.plan import Plan
from hushsum.privacy.account import Account, Limits
from hushsum.privacy.event import Spend
from hushsum.signed_plan import SignedPlan

SETTLE_S: Final = 20.0  #: how long a sender, or a cohort sum, waits for the fold's word


class FoldPeek(NamedTuple):
    """What a fold of this process knows of a delta that has just come, before it is appended.

    Attributes:
        kind: As :meth:`FoldReader.recall` says it.
        reason: Why the id is refused; None where it is not.
        contributed: Records of the client that are counted in the delta's window.
    """

    kind: RememberedKind
    reason: Reason | None
    contributed: int


class FoldReader(Protocol):
    """What a gateway asks of the folds. A cohort sum has no client id: its is the empty one."""

    def peek(self, partition: int, client_id: str, id: DeltaId, digest: bytes, window: int) -> FoldPeek | None:
        """What is known here and now; None where the partition is folded elsewhere.

        It only lets a gateway say sooner what the fold would say: every check is the fold's in the end.
        """

    def stream_uses(self) -> Iterator[StreamUse]:
        """Every stream that the folds here remember, with the latest window that it has a delta in."""

    async def passed(self, partition: int, position: int) -> None:
        """Returns once the partition's fold has passed ``position``, so that :meth:`recall` knows of it.

        A fold of this process need not be checkpointed: the entries up to ``position`` are durable in the log, and the
        fold is deterministic, so after a crash it comes to the same verdict again. Of a fold elsewhere its checkpoint
        tells.

        Raises:
            PartitionStoppedError: The partition's fold has stopped.
            StoreUnavailableError: It cannot be known now.
        """

    async def recall(
        self, partition: int, client_id: str, id: DeltaId, digest: bytes, window: int
    ) -> tuple[RememberedKind, Reason | None]:
        """What to tell the sender of a delta that the fold has passed, and whose window is no longer open.

        One look: asking for the id first and the window's state after it could call a forgotten delta *late*.
        """


class Folds(FoldReader, Protocol):
    """What the releaser asks of the folds."""

    async def closed(self, partition: int, window: int) -> None:
        """Returns once the partition has stored the window's counters as sealed; durable.

        Raises:
            PartitionStoppedError: The partition's fold has stopped.
        """

    async def forget(self, window: int, *, fence: int) -> None:
        """Makes every fold forget windows up to this one; durable when it returns.

        Raises:
            PartitionStoppedError: A partition's fold has stopped.
            FoldsBehindError: A fold elsewhere has not done so yet; it goes on, and asking again helps.
        """


class Store(Protocol):
    """What outlives a process beside the log: plans, windows, checkpoints, the ledger, outcomes.

    Fences: who claims a partition, or takes the releaser's lease, gets a number that is higher than any before. Every
    write of a fold or of a releaser names its number, and is refused, inside its transaction, once a higher one was
    given out (FencedError): a process that slept through its time writes nothing.

    Every method may raise StoreUnavailableError: the store cannot be reached now, and of a write it is not known
    whether it was done. Each can be repeated.
    """

    async def register(self, plan: Plan, partitions: int, first_window: int) -> None:
        """Registers a plan once: its bytes, its P, its first window, its population's limits.

        Raises:
            StoreError: The plan is stored with another P.
            BudgetError: Its limits are above its population's, or its spends could not be added up.
        """

    async def load_plan(self, plan_id: bytes) -> Plan | None: ...

    async def plan_named(self, name: str) -> Plan | None:
        """The stored plan of that name: what a ``plan.toml`` became at the first start."""

    async def plans(self) -> list[RegisteredPlan]:
        """Every plan, in the order in which they were registered."""

    async def keep_plan_signature(self, signed: SignedPlan) -> None:
        """Stores the signature of a registered plan, in place of an earlier one; nobody has verified it here.

        Raises:
            StoreError: The plan is not registered.
        """

    async def signed_plan(self, plan_id: bytes) -> SignedPlan | None:
        """The plan of an id with the signature that was kept of it; None where there is none."""

    async def open_windows(self, plan_id: bytes, first: int, last: int) -> None:
        """Records the fact that a gateway had these windows open (those that exist already stay as they are)."""

    async def windows(self, plan_id: bytes) -> dict[int, str]:
        """State by window, as :class:`aggregator.windows.WindowState` names them: all there ever were."""

    async def states(self, plan_id: bytes, first: int, last: int) -> dict[int, str]:
        """State by window from ``first`` to ``last``: one short read, never held up by a checkpoint.

        This is the read that an acknowledgement needs. Nothing may be appended for a window that it does not call open.
        """

    async def newest_windows(self, plan_id: bytes, before: int | None, limit: int) -> list[tuple[int, str]]:
        """(window, state) of the newest windows, the newest first, whatever the store's age.

        Args:
            plan_id: Whose.
            before: Only windows before this one; None: from the newest on.
            limit: The most.
        """

    async def unfinished(self, plan_id: bytes) -> dict[int, str]:
        """State by window of those that have no outcome and are not skipped: few, whatever the store's age."""

    async def fold_marks(self, plan_id: bytes) -> dict[int, FoldMark]:
        """How far each partition's fold has come in its latest checkpoint: no replay starts before its position."""

    async def stream_memory(self, plan_id: bytes, partition: int, client_id: str, stream: int) -> StreamMemory:
        """What the latest checkpoint of a partition holds of one stream, and how far it had come: one moment."""

    async def first_window(self, plan_id: bytes) -> int: ...

    # ------------------------------------------------------------------------------------------- the releaser's lease

    async def acquire_lease(self, plan_id: bytes, owner: str, address: str, seconds: float) -> int | None:
        """Makes one process the plan's releaser, by the store's own clock.

        Args:
            plan_id: Of what.
            owner: Who asks; a name of this process alone.
            address: Where its administration listens, ``host:port``, for those who ask another process.
            seconds: How long it holds without being renewed.

        Returns:
            Its fence; None while somebody else's lease holds.
        """

    async def renew_lease(self, plan_id: bytes, seconds: float, note: str, *, fence: int) -> None:
        """Holds it for longer, and tells what every process's status shows (why releasing has stopped, or nothing).

        Raises:
            FencedError: Another process has it.
        """

    async def return_lease(self, plan_id: bytes, *, fence: int) -> None:
        """Lets another process take it at once; nothing where it is another's already."""

    async def lease(self, plan_id: bytes) -> Lease | None:
        """Who releases, as last heard; None where nobody ever did."""

    # ----------------------------------------------------------------------------------------------- windows and folds

    async def mark_closing(self, plan_id: bytes, window: int, *, fence: int) -> None:
        """Before the first seal is appended: from here on no gateway acknowledges for the window.

        In the same transaction every window before it that no gateway has opened becomes ``skipped``: no outcome, no
        charge. A window that is closing, sealed or released already stays as it is.

        Raises:
            WindowOrderError: It was never open, or an older one is open or closing.
        """

    async def claim_partition(self, plan: Plan, partition: int, owner: str) -> ClaimedFold | None:
        """Takes a partition over from whoever had it: gives out its next fence, and loads its fold, in one transaction.

        None where the plan or the partition is not registered.
        """

    async def checkpoint(self, plan: Plan, partition: int, change: Checkpoint, *, fence: int) -> None:
        """Counters (touched blocks alone), stream states, verdicts to retain and position, in one transaction.

        A window that is ``closing`` becomes ``sealed`` in the transaction that closes it in the last partition.

        Raises:
            FencedError: Another worker has claimed the partition.
            StaleCheckpointError: Its position is before the stored one.
        """

    async def ask_to_forget(self, plan_id: bytes, window: int, *, fence: int) -> None:
        """Tells every fold, wherever it runs, that windows up to this one have their published outcome."""

    async def forget_asked(self, plan_id: bytes) -> int | None:
        """The last window that folds were asked to forget."""

    async def sealed_window(self, plan: Plan, window: int) -> SealedWindow | None:
        """The sum and the number of clients (and cohorts) of a window over all partitions, of one moment.

        None until every partition has stored its sealed counters.

        Raises:
            StoreError: The window's counters are forgotten.
        """

    async def check_collection(self, plan: Plan, window: int) -> None:
        """Asks whether :meth:`charge_collection` would be allowed, and writes nothing.

        Raises:
            BudgetError: The ledger's limits do not allow it.
            WindowOrderError: The window is not open.
            StoreError: The plan is central, or not registered.
        """

    async def charge_collection(self, plan: Plan, window: int, members: RoundMembers | None = None) -> None:
        """Charges what a window of a secure or local plan costs, before the first submission to it is taken.

        That is where these spend privacy (PRIVACY: ledger): what was taken was noised by its client, and is out.

        One transaction. Charged once, whoever asks how often; what was charged stays, whatever is collected. It needs
        no fence: every gateway asks before it takes anything.

        Args:
            plan: Whose window it is.
            window: Open, and begun by the store's clock.
            members: Of the round of a secure sum that is about to ask for vectors: in the same transaction it is fixed
                that theirs belong to no other round of the window. None: for a local plan.

        Raises:
            BudgetError: The ledger's limits do not allow it: nothing may be collected for the window.
            WindowNotBegunError: It begins later.
            WindowOrderError: The window is not open.
            ClaimLostError: Members have been claimed by another round since :meth:`claim_clients`. Nothing is charged.
            StoreError: The plan is central, or not registered.
        """

    async def claim_clients(self, plan_id: bytes, window: int, members: RoundMembers) -> frozenset[str]:
        """Notes that these clients are in this round of a secure sum, whichever gateway they were in before.

        Asked again for the same round it counts nothing more.

        Returns:
            Those that may be in no further round of this window: another one may have their vector, or they were drawn
            as often as a plan's promise counts, at whatever gateways.
        """

    async def release_clients(self, plan_id: bytes, window: int, members: RoundMembers) -> None:
        """Notes that nothing of the vectors of these members of a round came: they may be in another round."""

    async def reserve_outcome(
        self, plan: Plan, kind: str, window: int, digest: bytes, entropy: Entropy, *, fence: int
    ) -> bytes:
        """Charges what a release of the window costs, and fixes the key of all randomness of its outcome.

        One transaction, before anything is drawn or decided; what it writes has the same size whatever was collected.
        Asked again, by whomever, it gives back the same key and charges nothing. A window of a secure or local plan
        costs nothing here: :meth:`charge_collection` has charged it, or nobody came, and it spends nothing. But where
        a restored store has lost that charge and something came, it is charged here, past the limits if need be.

        Args:
            plan: Whose window it is.
            kind: ``tumbling``.
            window: The oldest sealed one without an outcome.
            digest: :meth:`SealedWindow.digest` of what the outcome will be drawn from.
            entropy: Of the key; read once the charge is allowed.
            fence: Of the releaser's lease.

        Returns:
            The key of a :class:`hushsum.entropy.KeyedEntropy`. Who knows it knows the noise.

        Raises:
            OutcomeExistsError: The window has its outcome.
            WindowOrderError: The window is not sealed, or an older one has no outcome yet.
            BudgetError: The ledger's limits do not allow what a release costs. Nothing is fixed.
            StoreError: The outcome was charged for other counters: the store is damaged.
        """

    async def commit_outcome(
        self, plan: Plan, kind: str, window: int, data: bytes, *, fence: int, withheld: bool = False
    ) -> None:
        """Stores a reserved outcome (``committed``), erases its key, marks its window's state: one transaction.

        The charge of a withheld window becomes that of its test alone; that of a local plan stays what it is, for its
        submissions were accepted: they have left the devices. No window of a secure plan is withheld.

        Raises:
            OutcomeExistsError: The window has its outcome.
            WindowOrderError: The window is not sealed, or an older one has no outcome yet.
            StoreError: It was not reserved.
        """

    async def unpublished(self, plan_id: bytes) -> list[StoredOutcome]:
        """Outcomes that are committed and not yet published."""

    async def publish(self, plan_id: bytes, kind: str, window: int, *, receipts: ReceiptsMark, fence: int) -> None:
        """Lets everybody see an outcome, and keeps how far the receipts reach now, its own among them: both or neither.

        Raises:
            StoreError: There is no such outcome, or the receipts are not those that the store is bound to.
        """

    async def receipts_mark(self) -> ReceiptsMark | None:
        """The receipts that this store is bound to, and how far it knows them, of all its plans.

        None before anything could be released. Its id is empty where an older version may have released something: then
        there are receipts, and which ones is not known.
        """

    async def bind_receipts(self, plan_id: bytes, found: ReceiptsMark, *, fence: int) -> ReceiptsMark:
        """Binds the store to these receipts for ever, unless it is bound; what it is bound to then.

        ``plan_id`` is that of the releaser whose fence it is.
        """

    async def outcomes(self, plan_id: bytes) -> list[Outcome]:
        """All outcomes in the order of their windows, published or not, without their bytes: what a list is made of."""

    async def outcome(self, plan_id: bytes, kind: str, window: int) -> StoredOutcome | None:
        """One published outcome; None where there is none, or it is not published yet."""

    async def forget(self, plan: Plan, window: int, *, fence: int) -> None:
        """Erases the counters of windows up to ``window``, which all have their published outcome (or were skipped).

        Their stream states and contributions went with the checkpoints of :meth:`Folds.forget`, so that what is stored
        is always what the fold holds. When it returns, nobody can read any of it from the store's tables, not even who
        began before; SQLite leaves nothing in its files either.

        Raises:
            StoreUnavailableError: Somebody still reads an older moment; it is to be tried again.
        """

    async def account(self, population: str) -> Account:
        """The limits of a registered population, as its plans fixed them, and all its spends."""

    async def spends_alike(self, population: str) -> tuple[Limits, list[tuple[bytes, int]]]:
        """The same limits, and the bytes of one spend of each sort, with how many there are of it.

        Those of a sort differ by their windows alone, so that a total takes no longer for many of them.
        """

    async def count_spend(self, plan_id: bytes, spend: Spend, *, fence: int) -> None:
        """Adds a spend that a receipt proves, unless it is there; no limit can refuse it.

        ``plan_id`` is that of the releaser whose fence it is; the spend may be another plan's.
        """

    async def close(self) -> None: ...


class Log(Protocol):
    """The durable, ordered entries of one plan, in P partitions.

    A position only grows along a partition; positions need not be consecutive (an entry of a Kafka message that holds
    many has the message's offset and its number in it). Which position follows, :class:`EntryBatch` says.
    """

    @property
    def partitions(self) -> int: ...

    async def append(self, entries: Sequence[NewEntry]) -> list[int]:
        """Appends entries, in their order within each partition; durable against power loss when it returns.

        Returns:
            The position of each.

        Raises:
            LogError: Which of them are durable is not known. Appending them again is always safe: an id counts once,
                and only the first seal of a window counts.
        """

    async def read(self, partition: int, position: int, limit: int, wait_s: float) -> EntryBatch:
        """About ``limit`` entries at most from ``position`` on; waits up to ``wait_s`` seconds for the first.

        Only what is durable is ever read: a fold that has passed an entry passes it again after any crash.

        Raises:
            LogGapError: The log no longer holds ``position`` and holds later ones, or it ends before ``position``.
            LogUnavailableError: It cannot be reached now.
        """

    async def end(self, partition: int) -> int:
        """The position that the next appended entry will get, or one below it that no entry has."""

    async def forget(self, window: int, below: Mapping[int, int]) -> None:
        """Erases the entries of windows up to ``window`` that stand below each partition's position.

        Nothing of them is left in the log's files when it returns (in Kafka: they cannot be read, and their segments
        are deleted in the stated time). Positions are never given twice.
        """

    async def close(self) -> None: ...


class PartitionOwner(Protocol):
    """Who folds partitions, and is told which."""

    async def assigned(self, partitions: Collection[int]) -> None:
        """These are to be folded here from now on. Returns at once; what they need is loaded in the background."""

    async def revoked(self, partitions: Collection[int]) -> None:
        """They go to somebody else: returns once each is stored where it has come to, and let go."""

    async def lost(self, partitions: Collection[int]) -> None:
        """Somebody else may fold them already: they are dropped, and nothing of them is stored."""


class Membership(Protocol):
    """Which partitions this process folds, among all that fold the plan."""

    async def start(self, owner: PartitionOwner) -> None:
        """Joins; from here on the owner is told."""

    async def ended(self) -> None:
        """Returns once it was stopped; raises what nobody foresaw: nothing is folded here any more."""

    async def stop(self) -> None:
        """Revokes what is held, and leaves, so that others take over at once."""


class Receipts(Protocol):
    """A record of every outcome, apart from the store, written before anybody sees it."""

    async def begin(self) -> ReceiptsMark:
        """Gives them a random id, unless they have one, and makes them where they are missing.

        Durable when it returns. Of several processes that begin at once, all get the same id.
        """

    async def check(self, bound: ReceiptsMark) -> None:
        """Compares them with what the store knows of them, and knew before this call; there may be more of them.

        Raises:
            ForeignReceiptsError: They are missing, or not this store's.
            ReceiptsError: They are fewer than the store knows, or others.
        """

    async def write(self, outcome: StoredOutcome, spend: Spend) -> ReceiptsMark:
        """Durable when it returns; writing the same outcome again changes nothing.

        Returns:
            How far the receipts are known to reach now, this one among them.

        Raises:
            ReceiptsError: There is a receipt for this outcome with another digest.
        """

    async def read(self) -> list[tuple[bytes, str, int, bytes, Spend]]:
        """(plan id, kind, window, sha256 of its data, spend) of each outcome."""


class Observer(Protocol):
    """Who counts what the workers and the releaser do; called from the event loop, and must not block."""

    def folded(self, partition: int, position: int, verdicts: Sequence[Verdict]) -> None:
        """A batch was applied; ``position`` is the next one."""

    def partitions_held(self, partitions: Collection[int]) -> None:
        """These are folded here now."""

    def partition_stopped(self, partition: int, why: str) -> None:
        """A fold cannot go on until an operator acts, and why; empty: it goes on again."""

    def leading(self, leads: bool) -> None:  # noqa: FBT001  a fact that is told, not a switch
        """Whether this process is the plan's releaser now."""

    def retried(self, what: str, why: str) -> None:
        """Something of a broker, a database or another process failed in a way that passes; it is tried again."""

    def checkpointed(self, partition: int, position: int, seconds: float) -> None: ...

    def released(self, release: StoredOutcome) -> None: ...

    def withheld(self, outcome: StoredOutcome) -> None: ...

    def releasing_stopped(self, why: str) -> None:
        """No outcome is taken, and why; empty: it goes on again."""

    def forgetting_pending(self, why: str) -> None:
        """Something of a window that has its outcome is not erased yet, and why; empty: all of it is."""


class Span(Protocol):
    """Something of the service that takes time, while it goes on."""

    def note(self, **attributes: str | float) -> None:
        """What is known of it by now."""

    def event(self, name: str, **attributes: str | float) -> None:
        """Something has happened in it."""


class Tracer(Protocol):
    """Who is told how long the service's own steps take. Called from the event loop; it never blocks and never raises.

    No name, attribute or event ever holds a client, a delta or an address; of plans whose entries are anonymous nothing
    begins or ends because one of them came (:mod:`aggregator.observability.tracing` says of what else nothing is told).
    """

    def span(self, name: str, **attributes: str | float) -> AbstractContextManager[Span]:
        """Goes on as long as the block does, within the one that is open around it; an error ends it by its kind."""


class Authenticator(Protocol):
    """Who is at the other end of a call, and what it may do."""

    def admit(self, peer: Peer, *scopes: Scope) -> str:
        """The name of a caller that may do what any of these scopes stands for.

        Returns:
            The client id of one that may submit; else a name to count its calls under, empty where it has none.

        Raises:
            UnauthenticatedError: Nobody that this service knows. What was wrong is not told: it is the same for all.
            ForbiddenError: It is known, and may do none of this.
        """


class _Silence:
    """Of nothing anything is told."""

    def span(self, name: str, **attributes: str | float) -> AbstractContextManager[Span]:  # noqa: ARG002  the form of any Tracer
        return _UNTOLD

    def note(self, **attributes: str | float) -> None:
        """Not told."""

    def event(self, name: str, **attributes: str | float) -> None:
        """Not told."""


_SILENCE: Final = _Silence()
_UNTOLD: Final = nullcontext[Span](_SILENCE)
#: The tracer where none is asked for.
NO_TRACES: Final[Tracer] = _SILENCE
