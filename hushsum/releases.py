"""A closed sum becomes a release: noised once, saved, and queried for ever."""

import os
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hushsum import query
from hushsum.durable import sync_folder
from hushsum.entropy import Entropy, OsEntropy
from hushsum.errors import GuaranteeError, ReleaseError
from hushsum.families import Answer
from hushsum.hush_format import COUNTERS_MAX, Header, check_secure, decode, encode
from hushsum.plan import Plan
from hushsum.privacy import plain_words
from hushsum.privacy.event import IN_PROCESS, TUMBLING, Event, Spend
from hushsum.privacy.guarantee import Guarantee
from hushsum.privacy.ledger import Ledger
from hushsum.privacy.mechanism import DISCRETE_LAPLACE
from hushsum.privacy.noise_shares import Shares
from hushsum.privacy.numerals import numeral
from hushsum.sensitivity import Sensitivity
from hushsum.sketch import Sketch

Counters = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Release:
    """A differentially private sketch: it may be shown to anybody, and answers any number of queries.

    Attributes:
        plan: Whose counters these are.
        kind: ``tumbling`` (one window) or ``in-process`` (a sketch built by an analyst).
        window: Index of the window; None without one.
        counters: int64, (classes, shape of the family...): the noised integers.
        counts: int64, (classes,): the noised count counters.
        guarantee: What was promised, and by which mechanism.
        accounted: Whether a ledger was charged.
        submissions: How many clients are in a secure sum, each with its share of the noise; None in other modes.
        cohorts: Of how many cohorts it is the sum; None in other modes.
    """

    plan: Plan
    kind: str
    window: int | None
    counters: Counters
    counts: Counters
    guarantee: Guarantee
    accounted: bool
    submissions: int | None = None
    cohorts: int | None = None

    @property
    def count(self) -> float:
        """The noisy number of records: unbiased, and maybe below 0."""
        return query.count(self.plan, self.counts)

    def count_of(self, label: str) -> float:
        """The noisy number of records of one class."""
        return query.count(self.plan, self.counts, label=label)

    def kernel_sum(self, queries: Any, *, label: str | None = None, groups: int | None = None) -> Answer:
        """Estimates of Σ k(x, q) over all records, at (m, d) queries or m sets, with standard errors.

        Args:
            queries: Where to ask.
            label: Over the records of this class alone.
            groups: The median of the means of so many groups of rows instead of the mean (RACE, Lemma 3.3). It badly
                underestimates where few records are near: a warning says so.

        Raises:
            RecordError: The queries cannot be used, or there is no such class.
            ValueError: The sketch has no such groups.
        """
        return query.kernel_sum(
            self.plan, self.counters, queries, label=label, groups=groups, submissions=self.submissions
        )

    def density(self, queries: Any, *, label: str | None = None, groups: int | None = None) -> Answer:
        """The same divided by the noisy number of records (taken as at least 1)."""
        return query.density(
            self.plan, self.counters, self.counts, queries, label=label, groups=groups, submissions=self.submissions
        )

    def statement(self) -> str:
        """What is promised, and what that tells about one unit, in plain words (what is left: `Ledger.statement`)."""
        spend = spend_of(self.plan, kind=self.kind, window=self.window)
        told = plain_words.spend_told(spend, delta=self.plan.privacy.total_delta, own_delta=self.guarantee.delta)
        promised = self.guarantee.statement(accounted=self.accounted, windowed=self.window is not None)
        if self.submissions is None:
            return f"{promised} {told}"
        clients, cohorts = (
            f"{number:,} {noun}{'' if number == 1 else 's'}"
            for number, noun in ((self.submissions, "client"), (self.cohorts or 0, "cohort"))
        )
        return f"{promised} It is the sum of {clients} in {cohorts}. {told}"

    def save(self, path: str | PathLike[str]) -> None:
        """Writes a ``.hush`` file: after a crash there is the whole of it, or what was there before."""
        target = Path(path)
        new = target.with_name(f".{target.name}.{OsEntropy().read(8).hex()}")
        try:
            with new.open("xb") as file:
                file.write(self.to_bytes())
                file.flush()
                os.fsync(file.fileno())
            new.replace(target)
        except BaseException:
            new.unlink(missing_ok=True)
            raise
        sync_folder(target.absolute().parent)

    def to_bytes(self) -> bytes:
        """The bytes of a ``.hush`` file."""
        shape, of_cohorts = self.counters.shape, (self.submissions, self.cohorts)
        header = Header(self.kind, self.window, shape, self.accounted, *of_cohorts)
        return encode(self.plan, header, np.concatenate([self.counters.reshape(-1), self.counts]))

    @classmethod
    def from_bytes(cls, data: bytes, *, counters_max: int = COUNTERS_MAX) -> "Release":
        """The release of the bytes of a ``.hush`` file.

        Args:
            data: All of them.
            counters_max: A plan with more counters is refused before anything of that size is allocated.

        Raises:
            ReleaseError: Truncated, altered, larger than ``counters_max``, or of a newer format.
        """
        plan, header, values = decode(data, counters_max)
        size = prod(header.shape)
        counters, counts = values[:size].reshape(header.shape), values[size:]
        about = (plan.guarantee, header.accounted, header.submissions, header.cohorts)
        return cls(plan, header.kind, header.window, counters, counts, *about)

    def __repr__(self) -> str:
        delta = f", δ={numeral(self.guarantee.delta, up=True)}" if self.guarantee.delta else ""
        promise = f"ε={numeral(self.guarantee.epsilon, up=True)}{delta} per {self.guarantee.unit}"
        where = "" if self.window is None else f", window={self.window}"
        accounting = "" if self.accounted else ", unaccounted"
        return f"Release({self.plan.name!r}{where}, {promise}{accounting})"


def release(
    sketch: Sketch,
    *,
    ledger: Ledger | None = None,
    epsilon: object = None,
    delta: object = None,
) -> Release:
    """The private release of a sketch that was built in this process: of the counters alone, whoever is in it.

    A plan's ``min_clients`` is for the windows of a service; the share of ε that its test takes is not charged here.

    Args:
        sketch: Exact counters.
        ledger: Charged before anything is returned; without one the release says "unaccounted".
        epsilon: Another ε than the plan's; the release then carries a plan of its own.
        delta: Another δ than the plan's: 0 for discrete Laplace noise, above 0 for discrete Gaussian.

    Raises:
        GuaranteeError: The plan is of mode ``secure``: its noise is drawn by clients, and nobody has exact counters.
        BudgetError: The ledger's limits do not allow the spend. Nothing was drawn.
        PlanError: The plan does not allow this ε or δ.
    """
    _refuse_secure(sketch.plan)
    plan, counts, limits = sketch.plan, sketch.counts, sketch.plan.limits
    changes = {key: value for key, value in (("epsilon", epsilon), ("delta", delta)) if value is not None}
    if changes:
        plan = plan.replace_privacy(**changes)
        counts = counts // sketch.plan.privacy.mechanism.count_scale * plan.privacy.mechanism.count_scale
        sketch = Sketch.of_counters(plan, sketch.counters, counts)
    if ledger is not None:
        ledger.charge(spend_of(plan, kind=IN_PROCESS, window=None), limits)
    return draw(sketch, kind=IN_PROCESS, window=None, entropy=OsEntropy(), accounted=ledger is not None)


def draw(sketch: Sketch, *, kind: str, window: int | None, entropy: Entropy, accounted: bool) -> Release:
    """The release of a closed sum: the plan's noise on every counter and count counter of every class, once."""
    plan = sketch.plan
    _refuse_secure(plan)
    noise = plan.privacy.mechanism.noise().sample(sketch.counters.size + sketch.counts.size, entropy)
    split = sketch.counters.size
    return Release(
        plan=plan,
        kind=kind,
        window=window,
        counters=sketch.counters + noise[:split].reshape(sketch.counters.shape),
        counts=sketch.counts + noise[split:],
        guarantee=plan.guarantee,
        accounted=accounted,
    )


def of_sums(
    plan: Plan, counters: Counters, counts: Counters, *, window: int, cohorts: int, submissions: int
) -> Release:
    """The release of a window's secure sums: their noise is in them, and none is drawn here.

    Args:
        plan: Of mode ``secure``.
        counters: int64, (classes, shape of the family...): the sum of all cohorts of the window.
        counts: int64, (classes,): of their count counters.
        window: Its index.
        cohorts: How many cohorts are in it.
        submissions: How many clients are in it: the survivors of all cohorts.

    Raises:
        GuaranteeError: The plan is of another mode: these counters would be shown without noise.
        ReleaseError: No such cohorts have so many survivors, or there are none and counters are not zero.
        MergeError: Arrays of another shape or type.
    """
    if plan.privacy.cohort is None:
        raise GuaranteeError(f"plan {plan.name!r} is of mode {plan.privacy.mode!r}: its sums carry no noise of clients")
    Sketch.of_counters(plan, counters, counts)  # refuses other shapes and types
    header = Header(TUMBLING, window, counters.shape, accounted=True, submissions=submissions, cohorts=cohorts)
    check_secure(plan, header)
    if not submissions and (counters.any() or counts.any()):
        raise ReleaseError("counters of no submissions are not all zero")
    return Release(
        plan=plan,
        kind=TUMBLING,
        window=window,
        counters=counters,
        counts=counts,
        guarantee=plan.guarantee,
        accounted=True,
        submissions=submissions,
        cohorts=cohorts,
    )


def _refuse_secure(plan: Plan) -> None:
    if plan.privacy.cohort is not None:
        raise GuaranteeError(
            f"plan {plan.name!r} is of mode 'secure': its noise is drawn by clients, in shares, before anybody sees a "
            "sum; exact counters in one place are what it rules out (for a release of them, make a plan of mode "
            "'central')"
        )


def spend_of(plan: Plan, *, kind: str, window: int | None, withheld: bool = False, entered: bool = True) -> Spend:
    """What one release of this plan spends, or one window that is withheld.

    Args:
        plan: Its parameters are the spend's; they were fixed before any data was seen.
        kind: ``tumbling`` (the counters, and the plan's test of the number of clients) or ``in-process`` (no test).
        window: Index of the window; None without one.
        withheld: The test alone, for the counters were never drawn; nothing where participation is public.
        entered: False: nobody came to this window of a plan of mode ``secure``, so that nothing is spent.

    Raises:
        GuaranteeError: A plan of mode ``secure``, whose windows are neither withheld nor released without a window.
    """
    mechanism, claim = plan.privacy.mechanism, plan.privacy.claim
    if plan.privacy.cohort is not None and (withheld or kind != TUMBLING):
        _refuse_secure(plan)
    events = []
    if kind == TUMBLING and mechanism.clients_scale is not None:
        # One unit changes the number of clients by at most one.
        one = Sensitivity(l0=1, l1=1, l2_squared=1, linf=1)
        events.append(Event(DISCRETE_LAPLACE, mechanism.clients_scale, one, claim.clients_epsilon))
    if not withheld and (entered or plan.privacy.cohort is None):
        size = prod(plan.counters_shape) + plan.counters_shape[0]
        moved = plan.family.sensitivity.with_count(mechanism.count_scale).times(claim.records, size)
        pure = claim.counters_epsilon if mechanism.name == DISCRETE_LAPLACE else Fraction(0)
        events.append(Event(mechanism.name, mechanism.scale, moved, pure, _shares(plan)))
    return Spend(
        population=plan.privacy.population,
        plan_id=plan.hex_id,
        kind=kind,
        window=window,
        unit=plan.guarantee.unit,
        relation=plan.guarantee.relation,
        mode=plan.guarantee.mode,
        events=tuple(events),
    )


def _shares(plan: Plan) -> Shares | None:
    claim = plan.privacy.claim
    if claim.honest_survivors is None or claim.counters is None:
        return None
    return Shares(claim.honest_survivors, claim.counters, claim.failure)


def load(path: str | PathLike[str], *, counters_max: int = COUNTERS_MAX) -> Release:
    """The release in a ``.hush`` file, of at most ``counters_max`` counters (8 bytes each in memory).

    Raises:
        ReleaseError: Truncated, altered, larger than that, or of a newer format.
    """
    return Release.from_bytes(Path(path).read_bytes(), counters_max=counters_max)
