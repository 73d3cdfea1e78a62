"""A device: the client's own session, uplink and spool writer, over a spool that outlives its process."""

import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from typing_extensions import override

from edge_client.config import Config
from edge_client.participation.mode import CentralMode, ClientContext
from edge_client.plan_fetch import RetryPolicy
from edge_client.session.driver import SessionDriver
from edge_client.session.session import Session
from edge_client.spool.changes import Add, Change, PackedDelta, Result, Unbound
from edge_client.spool.spool import TABLES, Spool
from edge_client.spool.transaction import SpoolState, SpoolTransaction
from edge_client.spool.write_queue import SpoolWriter
from hushsum.delta import DeltaId
from hushsum.entropy import ReplayableEntropy
from hushsum.errors import HushsumError
from hushsum.plan import Plan
from hushsum.schedule import ARRIVAL
from hushsum.usable_records import RecordProblems
from hushsum_proto.answers import Answer
from tests.simulation.loop import Process, VirtualLoop
from tests.simulation.network import Network, SimTransport
from tests.simulation.runtime import SimRuntime

_CONFIG: Final = Config(backoff_first_s=0.1, backoff_longest_s=1.0, answer_wait_s=4.0, idle_s=2.0, in_flight_max=16)
_UNARY: Final = replace(_CONFIG, unary=True)
_SPOOL_BYTES: Final = 2**20


class SimSpool(Spool):
    """The product's spool over a database in memory, which outlives the process; a commit is one step.

    Args:
        stream: Its stream number.
        bound: Called with the bytes of each delta that has its window, once that is durable.
    """

    def __init__(self, stream: int, bound: Callable[[bytes], None]) -> None:
        self._path = Path(f"stream-{stream}")
        self._lock = threading.Lock()
        self._transaction_of = SpoolTransaction
        self._database = sqlite3.connect(":memory:", isolation_level=None)
        for table in TABLES:
            self._database.execute(table)
        self._database.execute("INSERT INTO next (only, sequence) VALUES (1, 0)")
        self._tallies = Counter()
        self._state = SpoolState(stream, 0, 0, _SPOOL_BYTES)
        self._bound = bound

    @override
    def commit(self, changes: Sequence[Change]) -> list[Result]:
        results = super().commit(changes)
        for result in results:
            for delta in () if isinstance(result, HushsumError) else result:
                self._bound(delta.data)
        return results

    @override
    def erase_answered(self) -> bool:
        return True

    @override
    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._database.execute("BEGIN")  # in memory, which is durable here
        try:
            yield
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")


class Device:
    """One client; :meth:`start` after each death of its process.

    Args:
        plan: What it contributes to.
        network: How it reaches a gateway.
        number: Which it is.
        client_id: Its name.
        packed: The bytes of a new delta, from its number, its window and its id.
        bound: Called with the bytes of a delta that has its window, once that is durable here.
        settled: Called with each answer once it is durable here.
        spool_of: Wraps the spool that each process gets.
    """

    def __init__(
        self,
        plan: Plan,
        network: Network,
        number: int,
        client_id: str,
        *,
        packed: Callable[[int, int, DeltaId], bytes],
        bound: Callable[[str, bytes], None],
        settled: Callable[[str, Answer], None],
        spool_of: Callable[[Spool], Spool],
    ) -> None:
        self.name, self.client_id = f"device-{number}", client_id
        self.spool = SimSpool(1000 + number, partial(bound, client_id))
        self.skew_ms = 0
        self.starts = 0
        self.process: Process | None = None
        self.uplink: SessionDriver | None = None
        self._plan, self._network, self._number = plan, network, number
        self._packed, self._settled, self._spool_of = packed, settled, spool_of

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
        spool, config = self._spool_of(self.spool), _UNARY if self._number % 3 == 2 else _CONFIG
        session = Session(
            config=config,
            plan_id=self._plan.id,
            stream=self.spool.stream,
            schedule=replace(self._plan.window, lateness_ms=10**9),  # no warnings of clocks: they are skewed on purpose
            unanswered=self.spool.unanswered(),
            entropy=entropy,
        )
        session.sends_early = self._plan.window.time != ARRIVAL
        transport = SimTransport(self._network, self.process, self.client_id)
        retry = RetryPolicy(self.runtime, config, entropy)
        context = ClientContext(spool, self._plan, transport, retry, None, self._answered, lambda _: None)
        driver = SessionDriver(
            session,
            spool=spool,
            writer=SpoolWriter(spool, self.runtime, 64),
            transport=transport,
            runtime=self.runtime,
            on_answer=context.on_answer,
            on_event=context.on_event,
        )
        self.uplink = CentralMode(context, driver).driver
        self.uplink.begin()

    def add(self, numbers: Sequence[int], window_offset: int = 0) -> None:
        """The application adds records: each is one delta, told apart from all others by its number."""
        process, uplink = self.process, self.uplink
        if process is None or not process.alive or uplink is None or uplink.failure is not None:
            return
        window = self._plan.window.index_at(self.runtime.now_ms()) + window_offset
        if self._plan.window.time == ARRIVAL:
            window = Unbound(window).mark

        def put() -> None:
            packs = [partial(self._packed, number, window) for number in numbers]
            uplink.submit(Add(window, tuple(PackedDelta(1, pack) for pack in packs), RecordProblems(len(packs)), None))

        process.context.copy().run(put)

    def _answered(self, answer: Answer) -> None:
        self._settled(self.client_id, answer)
