"""A closed sum becomes a release: noised once, saved, and queried for ever."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hushsum import canonical, query
from hushsum.durable import sync_folder
from hushsum.entropy import Entropy, OsEntropy
from hushsum.errors import CanonicalError, PlanError
from hushsum.families import Answer
from hushsum.hush_format import COUNTERS_MAX, Header, decode, encode
from hushsum.plan import Plan
from hushsum.privacy.event import IN_PROCESS, Spend
from hushsum.privacy.guarantee import Guarantee
from hushsum.privacy.ledger import Ledger
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
    """

    plan: Plan
    kind: str
    window: int | None
    counters: Counters
    counts: Counters
    guarantee: Guarantee
    accounted: bool

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
        return query.kernel_sum(self.plan, self.counters, queries, label=label, groups=groups)

    def density(self, queries: Any, *, label: str | None = None, groups: int | None = None) -> Answer:
        """The same divided by the noisy number of records (taken as at least 1)."""
        return query.density(self.plan, self.counters, self.counts, queries, label=label, groups=groups)

    def statement(self) -> str:
        """What is promised, in plain words."""
        return self.guarantee.statement(accounted=self.accounted)

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
        header = Header(self.kind, self.window, self.counters.shape, self.accounted)
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
        return cls(plan, header.kind, header.window, counters, counts, plan.guarantee, header.accounted)

    def __repr__(self) -> str:
        promise = f"ε={self.guarantee.epsilon} per {self.guarantee.unit}"
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
    """The private release of a sketch that was built in this process.

    Args:
        sketch: Exact counters.
        ledger: Charged before anything is returned; without one the release says "unaccounted".
        epsilon: Another ε than the plan's; the release then carries a plan of its own.
        delta: Another δ than the plan's; only 0 is built yet.

    Raises:
        BudgetError: The ledger's limits do not allow the spend. Nothing was drawn.
        PlanError: The plan does not allow this ε or δ.
    """
    plan, counts, limits = sketch.plan, sketch.counts, sketch.plan.limits
    changes = {key: value for key, value in (("epsilon", epsilon), ("delta", delta)) if value is not None}
    if changes:
        plan = _overridden(plan, changes)
        counts = counts // sketch.plan.privacy.mechanism.count_scale * plan.privacy.mechanism.count_scale
        sketch = Sketch.of_counters(plan, sketch.counters, counts)
    if ledger is not None:
        ledger.charge(spend_of(plan, kind=IN_PROCESS, window=None), limits)
    return draw(sketch, kind=IN_PROCESS, window=None, entropy=OsEntropy(), accounted=ledger is not None)


def draw(sketch: Sketch, *, kind: str, window: int | None, entropy: Entropy, accounted: bool) -> Release:
    """The release of a closed sum: discrete Laplace noise on every counter and count counter, once."""
    plan = sketch.plan
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


def spend_of(plan: Plan, *, kind: str, window: int | None) -> Spend:
    """What one release of this plan spends."""
    return Spend(
        population=plan.privacy.population,
        plan_id=plan.hex_id,
        kind=kind,
        window=window,
        unit=plan.guarantee.unit,
        relation=plan.guarantee.relation,
        mode=plan.guarantee.mode,
        mechanism=plan.privacy.mechanism.name,
        epsilon=plan.privacy.epsilon,
        delta=plan.privacy.delta,
    )


def load(path: str | PathLike[str], *, counters_max: int = COUNTERS_MAX) -> Release:
    """The release in a ``.hush`` file, of at most ``counters_max`` counters (8 bytes each in memory).

    Raises:
        ReleaseError: Truncated, altered, larger than that, or of a newer format.
    """
    return Release.from_bytes(Path(path).read_bytes(), counters_max=counters_max)


def _overridden(plan: Plan, changes: Mapping[str, object]) -> Plan:
    """The plan with another ε or δ; where that alone would pass the plan's own limit, the limit goes with it."""
    try:
        passes = "epsilon" in changes and canonical.real(changes["epsilon"]) > plan.privacy.total_epsilon
    except CanonicalError as error:
        raise PlanError("privacy.epsilon", changes["epsilon"], f"a number above 0 ({error})") from error
    return plan.replace_privacy(**changes, **({"total_epsilon": changes["epsilon"]} if passes else {}))
