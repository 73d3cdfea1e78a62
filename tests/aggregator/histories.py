"""Random histories of a service's folds, and an oracle that remembers everything and never crashes."""

import random
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from aggregator.fold.fold import Fold
from aggregator.fold.state import NOTHING_CLOSED, FoldState
from aggregator.fold.verdicts import VerdictKind
from hushsum.delta import read_header
from hushsum.errors import Reason
from hushsum.plan import Plan
from hushsum_proto.entries import (
    CohortSumEntry,
    DeltaEntry,
    LogEntry,
    RefusedEntry,
    ReportsEntry,
    SealEntry,
    partition_of,
)
from tests.aggregator.deltas import client_of, entry, tally
from tests.doubles import StoredFold

Outcome = VerdictKind | Reason
FIRST = 100  # the first window
REACH = 64


class Oracle:
    """What one partition must come to, entry by entry: sets of everything that ever was, no masks and no blocks."""

    def __init__(self, plan: Plan, partition: int, partitions: int) -> None:
        self.plan, self.partition, self.partitions = plan, partition, partitions
        self.verdicts: list[Outcome | None] = []  # by position; None for a seal
        self.closed = FIRST - 1
        self.uses: dict[tuple[str, int, int], tuple[bytes, int]] = {}
        self.contributed: Counter[tuple[int, str]] = Counter()
        self.counted: Counter[tuple[int, int]] = Counter()  # by window and delta's number

    def pass_on(self, item: LogEntry | RefusedEntry, number: int | None) -> None:
        if isinstance(item, SealEntry):
            self.closed = max(self.closed, item.window)
            self.verdicts.append(None)
        else:
            assert not isinstance(item, CohortSumEntry | ReportsEntry), "of secure plans and reports alone"
            self.verdicts.append(self._verdict(item, number))

    def forget(self, window: int) -> None:
        """As the texts have it: a stream goes with the outcome of the last window that it touched."""
        last: dict[tuple[str, int], int] = {}
        for (client, stream, _), (_, used_in) in self.uses.items():
            last[client, stream] = max(used_in, last.get((client, stream), used_in))
        self.uses = {key: use for key, use in self.uses.items() if last[key[:2]] > window}

    def _verdict(self, item: DeltaEntry | RefusedEntry, number: int | None) -> Outcome:
        if isinstance(item, RefusedEntry):
            return item.reason
        if partition_of(item.client_id, self.partitions) != self.partition:
            return Reason.WRONG_PARTITION
        header = read_header(item.delta)
        key = (item.client_id, header.id.stream, header.id.sequence)
        return self._used_before(key, item.delta, header.window) or self._new(key, item, header.window, number)

    def _used_before(self, key: tuple[str, int, int], delta: bytes, window: int) -> Outcome | None:
        highest = max((used[2] for used in self.uses if used[:2] == key[:2]), default=-1)
        if key[2] <= highest - REACH:
            return VerdictKind.DUPLICATE
        if key not in self.uses:
            return None
        known, known_window = self.uses[key]
        if window != known_window:
            return Reason.ID_OF_ANOTHER_WINDOW
        return VerdictKind.DUPLICATE if known == delta else Reason.ID_REUSED

    def _new(self, key: tuple[str, int, int], item: DeltaEntry, window: int, number: int | None) -> Outcome:
        if window <= self.closed:
            return VerdictKind.LATE
        self.uses[key] = (item.delta, window)
        bound = self.plan.privacy.records_per_client
        if bound is not None and self.contributed[window, item.client_id] == bound:
            return Reason.TOO_MANY_RECORDS
        self.contributed[window, item.client_id] += 1
        assert number is not None
        self.counted[window, number] += 1
        return VerdictKind.COUNTED


@dataclass
class Stream:
    """A client's stream: it sends no number 64 or more above its lowest unanswered one."""

    client: str
    number: int
    next_sequence: int = 0
    unanswered: set[int] = field(default_factory=set)

    def may_send(self) -> bool:
        return self.next_sequence < min(self.unanswered, default=self.next_sequence) + REACH


@dataclass
class Sent:
    """A delta that was sent, maybe several times."""

    stream: Stream
    sequence: int
    number: int
    window: int
    data: bytes


class Partition:
    """A partition's log, its fold, what is stored of it, and its oracle in lockstep."""

    def __init__(self, plan: Plan, partition: int, partitions: int) -> None:
        self.plan, self.partition, self.partitions = plan, partition, partitions
        self.log: list[tuple[LogEntry | RefusedEntry, int | None]] = []
        self.seals: list[SealEntry] = []  # on their way
        state = FoldState(closed_through=FIRST - 1)
        self.stored = StoredFold(state, int(np.prod(plan.counters_shape[1:])))
        self.oracle = Oracle(plan, partition, partitions)
        self.fold = Fold(plan, partition, partitions, state, retain_verdicts=True)

    def apply(self, count: int) -> None:
        """Folds some entries; whatever was folded before a crash must get the same verdicts again."""
        start = self.fold.position
        batch = [(start + offset, item) for offset, (item, _) in enumerate(self.log[start : start + count])]
        verdicts = self.fold.apply(batch, start + len(batch))
        for position in range(len(self.oracle.verdicts), self.fold.position):
            self.oracle.pass_on(*self.log[position])
        came = {verdict.position: verdict.reason or verdict.kind for verdict in verdicts}
        expected = {at: self.oracle.verdicts[at] for at, _ in batch if self.oracle.verdicts[at] is not None}
        assert came == expected

    def save(self) -> None:
        self.stored.add(self.fold.checkpoint())

    def crash(self) -> None:
        state = self.stored.load(self.plan.counters_shape)
        self.fold = Fold(self.plan, self.partition, self.partitions, state, retain_verdicts=True)

    def forget(self, window: int) -> None:
        """Only a fold that has passed all that it ever had passed may forget."""
        self.apply(len(self.log))
        self.fold.forget(window)
        self.oracle.forget(window)
        self.save()
        self.stored.sums = {index: sums for index, sums in self.stored.sums.items() if index > window}


class History:
    """One random history.

    Args:
        plan: A tally plan; its contribution bound counts deltas, for each holds one record.
        partitions: P.
        seed: Of everything.
    """

    def __init__(self, plan: Plan, partitions: int, seed: int) -> None:
        self.random = random.Random(seed)
        self.plan = plan
        self.parts = [Partition(plan, partition, partitions) for partition in range(partitions)]
        clients = [client_of(n % partitions, partitions, n // partitions) for n in range(max(3, partitions))]
        self.streams = [Stream(client, number) for client in clients for number in (1, 2)]
        self.sent: list[Sent] = []
        self.queue: list[Sent] = []
        self.window = FIRST
        self.numbers = 0
        self.outcomes: Counter[tuple[int, int]] = Counter()  # by window and number, as the store has it
        self.forgotten = NOTHING_CLOSED

    def run(self, steps: int) -> None:
        actions = {
            self.send: 30, self.deliver: 30, self.resend: 12, self.tamper: 5, self.junk: 3, self.seal: 2,
            self.deliver_seal: 6, self.fold: 30, self.save: 8, self.crash: 5, self.finish_window: 4,
        }  # fmt: skip
        for action in self.random.choices(list(actions), list(actions.values()), k=steps):
            action()
        self.drain()

    def drain(self) -> None:
        """Everything arrives, every window closes and is taken."""
        while self.queue:
            self.deliver()
        self.seal()
        self.seal()
        for part in self.parts:
            part.log += [(seal, None) for seal in part.seals]
            part.seals.clear()
            part.apply(len(part.log))
            part.save()
        self.finish_window()

    def counted(self) -> Counter[tuple[int, int]]:
        """What the oracles have counted."""
        return sum((part.oracle.counted for part in self.parts), Counter())

    # -------------------------------------------------------------------------------------------------- actions

    def part_of(self, client: str) -> Partition:
        return self.parts[partition_of(client, len(self.parts))]

    def any_part(self) -> Partition:
        return self.random.choice(self.parts)

    def packed(self, stream: Stream, sequence: int, window: int) -> tuple[bytes, int]:
        """A delta with a number of its own."""
        self.numbers += 1
        return tally(self.plan, self.numbers, window, stream.number, sequence), self.numbers

    def send(self) -> None:
        # Most of one stream, so that its numbers pass the reach of the mask.
        stream = self.streams[0] if self.random.random() < 0.7 else self.random.choice(self.streams)
        if not stream.may_send():
            return
        sequence, window = stream.next_sequence, self.window + self.random.choice([-1, 0, 0, 0, 1])
        data, number = self.packed(stream, sequence, window)
        sent = Sent(stream, sequence, number, window, data)
        stream.next_sequence += 1
        stream.unanswered.add(sequence)
        self.sent.append(sent)
        self.queue.append(sent)

    def deliver(self) -> None:
        """The network takes them in any order."""
        if not self.queue:
            return
        sent = self.queue.pop(self.random.randrange(len(self.queue)))
        self.append(sent)
        sent.stream.unanswered.discard(sent.sequence)

    def resend(self) -> None:
        if self.sent:
            self.append(self.random.choice(self.sent))

    def append(self, sent: Sent) -> None:
        self.part_of(sent.stream.client).log.append((entry(sent.stream.client, sent.data), sent.number))

    def tamper(self) -> None:
        """An id is used again, for other bytes or another window: of the last few, for a client that cheats."""
        if not self.sent:
            return
        sent = self.random.choice(self.sent[-20:])
        if sent in self.queue or sent.sequence <= sent.stream.next_sequence - REACH:
            return
        window = sent.window + self.random.choice([0, 1])
        data, number = self.packed(sent.stream, sent.sequence, window)
        self.part_of(sent.stream.client).log.append((entry(sent.stream.client, data), number))

    def junk(self) -> None:
        part = self.any_part()
        part.log.append((RefusedEntry(Reason.MALFORMED, "junk"), None))
        if self.sent:
            sent = self.random.choice(self.sent)
            if self.part_of(sent.stream.client) is not part:
                part.log.append((entry(sent.stream.client, sent.data), sent.number))

    def seal(self) -> None:
        for part in self.parts:
            part.seals.append(SealEntry(self.plan.id, self.window, 0))
        self.window += 1

    def deliver_seal(self) -> None:
        """A seal arrives, and sometimes stays on its way, to arrive again: its sender crashed in between."""
        part = self.any_part()
        if part.seals:
            part.log.append((part.seals[0], None))
            if self.random.random() < 0.7:
                part.seals.pop(0)

    def fold(self) -> None:
        self.any_part().apply(self.random.choice([1, 2, 7, 30]))

    def save(self) -> None:
        self.any_part().save()

    def crash(self) -> None:
        self.any_part().crash()

    def finish_window(self) -> None:
        """The outcome of what every partition has stored as sealed; then it is forgotten."""
        closed = min(part.stored.state.closed_through for part in self.parts)
        for window in range(max(self.forgotten + 1, FIRST), closed + 1):
            for part in self.parts:
                if window in part.stored.sums:
                    flat = part.stored.sums[window].counters[0]
                    for number in np.flatnonzero(flat):
                        self.outcomes[window, int(number)] += int(flat[number])
        if closed > max(self.forgotten, FIRST - 1):
            self.forgotten = closed
            for part in self.parts:
                part.forget(closed)
