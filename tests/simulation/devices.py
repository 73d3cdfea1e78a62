"""A device: the client's own session, uplink and spool writer, over a spool that outlives its process."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from edge_client.config import Config
from edge_client.session.driver import SessionDriver
from edge_client.session.session import Session
from edge_client.spool.changes import Add, Change, PackedDelta, Remove, Result, StoredDelta
from edge_client.spool.write_queue import SpoolWriter
from hushsum.delta import DeltaId
from hushsum.entropy import ReplayableEntropy
from hushsum.plan import Plan
from hushsum.usable_records import RecordProblems
from hushsum_proto.answers import Answer
from tests.simulation.loop import Process, VirtualLoop
from tests.simulation.network import Network, SimTransport
from tests.simulation.runtime import SimRuntime

if TYPE_CHECKING:
    from edge_client.spool.spool import Spool

_CONFIG: Final = Config(backoff_first_s=0.1, backoff_longest_s=1.0, answer_wait_s=4.0, idle_s=2.0, in_flight_max=16)
_UNARY: Final = replace(_CONFIG, unary=True)


@dataclass
class SimSpool:
    """What :class:`edge_client.spool.spool.Spool` keeps, in memory that outlives a process; a commit is one step."""

    stream: int
    deltas: dict[int, bytes] = field(default_factory=dict)
    next_sequence: int = 0

    @property
    def is_empty(self) -> bool:
        return not self.deltas

    def unanswered(self) -> tuple[int, ...]:
        return tuple(sorted(self.deltas))

    def load(self, first: int, limit: int, bytes_max: int) -> tuple[StoredDelta, ...]:
        return tuple(StoredDelta(number, self.deltas[number]) for number in sorted(self.deltas) if number >= first)[
            :limit
        ]

    def commit(self, changes: Sequence[Change]) -> list[Result]:
        return [self._commit(change) for change in changes]

    def _commit(self, change: Change) -> Result:
        if isinstance(change, Remove):
            del self.deltas[change.sequence]
            return ()
        assert isinstance(change, Add)
        bound = []
        for delta in change.deltas:
            bound.append(StoredDelta(self.next_sequence, delta.pack(DeltaId(self.stream, self.next_sequence))))
            self.next_sequence += 1
        self.deltas.update((each.sequence, each.data) for each in bound)
        return tuple(bound)

    def erase_answered(self) -> bool:
        return True


class Device:
    """One client; :meth:`start` after each death of its process.

    Args:
        plan: What it contributes to.
        network: How it reaches a gateway.
        number: Which it is.
        client_id: Its name.
        packed: The bytes of a new delta: called with its number, its window and its id, when the spool binds it.
        settled: Called with each answer once it is durable here.
    """

    def __init__(
        self,
        plan: Plan,
        network: Network,
        number: int,
        client_id: str,
        *,
        packed: Callable[[str, int, int, DeltaId], bytes],
        settled: Callable[[str, Answer], None],
    ) -> None:
        self.name, self.client_id = f"device-{number}", client_id
        self.spool = SimSpool(stream=1000 + number)
        self.skew_ms = 0
        self.starts = 0
        self.process: Process | None = None
        self.uplink: SessionDriver | None = None
        self._plan, self._network, self._number = plan, network, number
        self._packed, self._settled = packed, settled

    def start(self, loop: VirtualLoop, seed: int) -> None:
        """A new process, from what the spool holds."""
        self.starts += 1
        process = self.process = Process(f"{self.name}#{self.starts}")
        self.runtime = SimRuntime(loop, process, seed)
        self.runtime.skew_ms = self.skew_ms
        process.context.copy().run(self._build, seed)

    def _build(self, seed: int) -> None:
        assert self.process is not None
        entropy = ReplayableEntropy(f"{self.process.name}/{seed}".encode())
        spool = cast("Spool", self.spool)
        session = Session(
            config=_UNARY if self._number % 3 == 2 else _CONFIG,
            plan_id=self._plan.id,
            stream=self.spool.stream,
            schedule=replace(self._plan.window, lateness_ms=10**9),  # no warnings of clocks: they are skewed on purpose
            unanswered=self.spool.unanswered(),
            entropy=entropy,
        )
        session.sends_early = True
        transport = SimTransport(self._network, self.process, self.client_id)
        self.uplink = SessionDriver(
            session,
            spool=spool,
            writer=SpoolWriter(spool, self.runtime, 64),
            transport=transport,
            runtime=self.runtime,
            on_answer=self._answered,
            on_event=lambda _: None,
        )
        self.uplink.begin()

    def add(self, numbers: Sequence[int], window_offset: int = 0) -> None:
        """The application adds records: each is one delta, told apart from all others by its number."""
        process, uplink = self.process, self.uplink
        if process is None or not process.alive or uplink is None or uplink.failure is not None:
            return
        window = self._plan.window.index_at(self.runtime.now_ms()) + window_offset

        def put() -> None:
            packs = [partial(self._packed, self.client_id, number, window) for number in numbers]
            uplink.submit(Add(window, tuple(PackedDelta(1, pack) for pack in packs), RecordProblems(len(packs)), None))

        process.context.copy().run(put)

    def _answered(self, answer: Answer) -> None:
        self._settled(self.client_id, answer)
