"""The oracle: what was sent, what was promised, what the store holds of it, and what was shown.

Number i of a schedule adds 1 to counter i of its window and nothing else, so a loss shows as 0 and a double count as 2.
The exact sums are read where the releaser reads them: at the store, before any noise.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from aggregator.model import ReservedStep, SealedWindow, StoredOutcome
from aggregator.release.receipts import KeptLine, Receipt
from aggregator.release.releaser import compute_step
from edge_client.spool.changes import Unbound
from hushsum.delta import Delta, DeltaId, Run, unpack_at_home
from hushsum.errors import Reason
from hushsum.families import Increments
from hushsum.plan import Plan
from hushsum.privacy.accountant import Account
from hushsum.privacy.events import CUMULATIVE
from hushsum.schedule import ARRIVAL
from hushsum_proto.answers import Answer, ServiceReason, Status
from tests.simulation.loop import Process

_COUNTED = frozenset({Status.ACKNOWLEDGED, Status.COUNTED})
_NOT_COUNTED = frozenset({Status.LATE, Status.REFUSED})
# One gateway's clock at one moment: a copy that comes later, or to another gateway, may be taken.
_BY_THE_CLOCK = frozenset({Reason.WINDOW_IN_FUTURE, ServiceReason.WINDOW_NOT_OPEN})


@dataclass(frozen=True)
class Sent:
    """A delta that a spool has bound, by its id, and the windows that it was bound to: one."""

    number: int
    client_id: str
    id: DeltaId
    windows: set[int] = field(default_factory=set)


@dataclass
class Books:
    """What is known of one run.

    Attributes:
        lost: Numbers that were promised and are not in the sum.
        doubled: Numbers that are in it more than once.
        wrong: Everything else that must not be, in words.
        restored: The store was set back: from then on nothing need be complete.
        steps: Of cumulative plans, by window: what the store has reserved.
        takings: How often each fence was given out, by what it is of.
        frozen: It lacks an outcome that has a receipt, or a sink lacks one: nothing may be drawn.
        receipts: That were ever in the first sink; as ``copies``, in the second.
        marked: How many outcomes an operator gave up.
        log_restored: Deltas that were acknowledged are lost with the log, and nothing remembers what was answered.
    """

    plan: Plan
    sent: dict[tuple[str, DeltaId], Sent] = field(default_factory=dict)
    answers: dict[tuple[str, DeltaId], dict[Status, str]] = field(default_factory=lambda: defaultdict(dict))
    settled: dict[tuple[str, DeltaId], Status] = field(default_factory=dict)
    sums: dict[int, SealedWindow] = field(default_factory=dict)
    steps: dict[int, ReservedStep] = field(default_factory=dict)
    drawn: dict[int, bytes] = field(default_factory=dict)
    shown: dict[int, bytes] = field(default_factory=dict)
    receipts: dict[tuple[bytes, str, int], bytes] = field(default_factory=dict)
    copies: dict[tuple[bytes, str, int], bytes] = field(default_factory=dict)
    fences: dict[str, tuple[int, Process | None]] = field(default_factory=dict)
    takings: Counter[str] = field(default_factory=Counter)
    lost: set[int] = field(default_factory=set)
    doubled: set[int] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)
    restored: bool = False
    frozen: bool = False
    log_restored: bool = False
    marked: int = 0

    @property
    def failed(self) -> bool:
        """Whether anything was found."""
        return bool(self.lost or self.doubled or self.wrong)

    def say(self, what: str) -> None:
        """Notes something that must not be."""
        if what not in self.wrong:
            self.wrong.append(what)

    # --------------------------------------------------------------------------------------------------- on the devices

    def packed(self, number: int, window: int, id: DeltaId) -> bytes:
        """The bytes of a new delta."""
        run = Run(0, 1, Increments(np.array([number]), np.array([1])))
        return Delta(self.plan.id, window, id, (run,)).pack(self.plan)

    def bound(self, client_id: str, data: bytes) -> None:
        """A spool holds this delta, durably; one that has no window yet is not noted."""
        delta = unpack_at_home(data, self.plan)
        if Unbound.read(delta.window) is None:
            number = int(delta.runs[0].increments.indices[0])
            sent = self.sent.setdefault((client_id, delta.id), Sent(number, client_id, delta.id))
            sent.windows.add(delta.window)

    def told(self, client_id: str, data: bytes, answer: Answer) -> None:
        """A gateway has answered, whether or not anybody hears it."""
        if answer.id is None:
            self.say(f"a delta of {client_id} was answered without its id")
            return
        refusal = answer.refusal
        if refusal is not None and (refusal.retry or refusal.reason in _BY_THE_CLOCK):
            return
        words = answer.status.value if answer.refusal is None else f"{answer.status.value}: {answer.refusal.detail}"
        self.answers[client_id, answer.id].setdefault(answer.status, words)

    def settle(self, client_id: str, answer: Answer) -> None:
        """A device has its answer, durably."""
        assert answer.id is not None
        self.settled[client_id, answer.id] = answer.status

    # ---------------------------------------------------------------------------------------------------- at the store

    def gave(self, what: str, fence: int, process: Process | None) -> None:
        """The store has given out a fence."""
        before = self.fences.get(what, (-1, None))[0]
        if fence <= before:
            self.say(f"fence {fence} of {what} was given out after {before}")
        self.fences[what] = (fence, process)
        self.takings[what] += 1

    def wrote(self, what: str, fence: int, process: Process | None) -> None:
        """A write under a fence was taken: it must be the last one that was given out, and come from who got it."""
        last, holder = self.fences.get(what, (-1, None))
        if fence < last or process is not holder:
            who, whose = ("nobody" if each is None else each.name for each in (process, holder))
            self.say(f"{what}: a write of {who} was taken after {whose} had taken it over")

    def set_back(self, missing: bool) -> None:
        """The store is an older copy of itself, or a sink of receipts is; ``missing``: see ``frozen``."""
        self.restored, self.frozen = True, missing  # an earlier copy may lack what a later one has
        self.fences.clear()

    def read_sealed(self, window: int, sealed: SealedWindow | None) -> None:
        """The exact sum of a window was read."""
        if sealed is None:
            return
        before = self.sums.setdefault(window, sealed)
        if before is not sealed and before.digest() != sealed.digest() and not self.restored:
            self.say(f"window {window}: its sealed sum has changed")

    def reserved(self, window: int, step: ReservedStep) -> None:
        """The store has given the key of a window's step; of one sequence there is one."""
        if self.steps.setdefault(window, step) != step and not self.restored:
            self.say(f"window {window}: its step was reserved twice, and not as the same")

    def drew(self, window: int, sha256: bytes) -> None:
        """The store holds this outcome, from now on."""
        if self.frozen:
            self.say(f"window {window} got an outcome although a receipt's was missing")
        if self.drawn.setdefault(window, sha256) != sha256 and not self.restored:
            self.say(f"window {window} has two outcomes")

    def copied(self, kept: KeptLine) -> None:
        """A line is in the second sink, durably."""
        if isinstance(kept.held, Receipt):
            self.copies[kept.held.key] = kept.held.sha256

    def published(self, window: int, outcome: StoredOutcome) -> None:
        """An analyst sees it, from here on."""
        for sink in (self.receipts, self.copies):
            if sink.get((self.plan.id, outcome.kind, window)) != outcome.sha256:
                self.say(f"window {window}: its outcome is shown, and a sink has no receipt of it, or another's")
        if self.shown.setdefault(window, outcome.sha256) != outcome.sha256:
            self.say(f"window {window}: two outcomes were shown")

    # ------------------------------------------------------------------------------------------------------- at the end

    def audit(self, states: Mapping[int, str], account: Account) -> None:
        """Compares everything, once nothing moves any more."""
        for window, sha256 in self.shown.items():
            if not self.restored and self.drawn.get(window) != sha256:
                self.say(f"window {window}: what was shown is not what is stored")
        if not self.restored and self.plan.window.kind == CUMULATIVE:
            self._audit_sequence(account)
        elif not self.restored:
            spends = sorted(spend.window for spend in account.spends if spend.window is not None)
            if spends != sorted(self.drawn):
                self.say(f"charged are the windows {spends}, outcomes have {sorted(self.drawn)}")
        if self.plan.window.time == ARRIVAL and Status.LATE in self.settled.values():
            self.say("a delta was late for good, although its records belong to whatever window they arrive in")
        for sent in self.sent.values():
            self._audit(sent, states)
        self._audit_sums()

    def _audit(self, sent: Sent, states: Mapping[int, str]) -> None:
        said = self.answers.get((sent.client_id, sent.id), {})
        promised, denied = _COUNTED & said.keys(), _NOT_COUNTED & said.keys()
        if promised and denied and not self.log_restored:
            words = ", ".join(sorted(said.values()))
            self.say(f"number {sent.number} (windows {sorted(sent.windows)}) was told contradictions: {words}")
        sums = [self.sums[window] for window in sent.windows if window in self.sums]
        if not sums:
            if promised and not self.restored:
                self.lost.add(sent.number)
                which = ", ".join(f"{window} ({states.get(window)})" for window in sorted(sent.windows))
                self.say(f"window {which} has promises, and no sum was ever read")
            return
        count = sum(int(sealed.sketch.counters.reshape(-1)[sent.number]) for sealed in sums)
        if promised and count == 0 and not self.restored:
            self.lost.add(sent.number)
        if denied and count and not self.restored:
            self.say(f"number {sent.number} is counted, and was told: {', '.join(sorted(said.values()))}")

    def _audit_sequence(self, account: Account) -> None:
        """One charge with the first reservation; each outcome is the step that its reservation says, and no other."""
        if len(account.spends) != bool(self.steps):
            self.say(f"{len(account.spends)} charges of a sequence of {len(self.steps)} steps")
        state = None
        for window in sorted(self.drawn):
            if window not in self.steps or window not in self.sums:
                self.say(f"window {window} has an outcome that was not reserved, or whose sum was not read")
                return
            data, state = compute_step(self.sums[window], window, self.steps[window]._replace(state=state))
            if hashlib.sha256(data).digest() != self.drawn[window]:
                self.say(f"window {window}: its outcome is not the step that was reserved")

    def _audit_sums(self) -> None:
        windows: dict[int, set[int]] = defaultdict(set)
        counts: Counter[int] = Counter()
        for sent in self.sent.values():
            windows[sent.number] |= sent.windows
        for window, sealed in self.sums.items():
            counters = sealed.sketch.counters.reshape(-1)
            for number in map(int, np.flatnonzero(counters)):
                counts[number] += int(counters[number])
                if window not in windows[number]:
                    self.say(f"window {window} counts number {number}, which nobody sent for it")
        self.doubled |= {number for number, count in counts.items() if count > 1}
