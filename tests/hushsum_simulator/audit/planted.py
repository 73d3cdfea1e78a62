"""Mistakes that the audits must catch, each planted in the code that runs; and a service that runs in memory."""

import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from aggregator.errors import StoreError
from aggregator.model import StoredOutcome
from aggregator.release import releaser
from aggregator.release.releaser import Releaser
from aggregator.runtime import Runtime
from hushsum import outcomes, releases
from hushsum.entropy import Entropy, OsEntropy, ReplayableEntropy
from hushsum.families.hashed.family import Hashed
from hushsum.families.hermite import Hermite
from hushsum.families.hermite.weights import EQUAL
from hushsum.noise import DiscreteGaussian, DiscreteLaplace, PolyaShare, Sampler, discrete_gaussian, discrete_laplace
from hushsum.noise.exp_thresholds import Form
from hushsum.noise.gaussian_envelope import CHOICE_BITS
from hushsum.outcomes import Withheld
from hushsum.plan import Plan
from hushsum.privacy import accountant, relations
from hushsum.privacy.claim import Claim
from hushsum.privacy.cohort import Cohort
from hushsum.privacy.events import TUMBLING, Event
from hushsum.privacy.mechanisms import Mechanism
from hushsum.privacy.relations import CLIENT, Loss
from hushsum.releases import Release
from hushsum.secure_sum.parameters import RoundParameters
from hushsum.secure_sum.roster import NeighbourGraph
from hushsum.sensitivity import Sensitivity
from hushsum.sketch import Sketch
from hushsum_simulator.audit import pipelines
from hushsum_simulator.audit.pipelines import Durable
from tests.doubles import MemoryReceipts, MemoryStore, PowerLossLog

Plant = Callable[[pytest.MonkeyPatch], None]
Integers = npt.NDArray[np.int64]


def half_the_noise(patch: pytest.MonkeyPatch) -> None:
    """The parameter of every counter's noise says one thing, and half as much is drawn."""
    honest = Mechanism.noise

    def noise(self: Mechanism) -> Sampler:
        sampler = honest(self)
        return replace(sampler, scale=sampler.scale / (4 if isinstance(sampler, DiscreteGaussian) else 2))  # type: ignore[type-var]  # every sampler is a dataclass

    patch.setattr(Mechanism, "noise", noise)


def half_the_noise_in_the_sampler(patch: pytest.MonkeyPatch) -> None:
    """The same, where the parameter does not show it."""
    for kind, factor in ((DiscreteLaplace, 2), (PolyaShare, 2), (DiscreteGaussian, 4)):
        honest: Any = kind.sample

        def sample(self: Any, size: int, entropy: Entropy, honest: Any = honest, factor: int = factor) -> Integers:
            drawn: Integers = honest(replace(self, scale=self.scale / factor), size, entropy)
            return drawn

        patch.setattr(kind, "sample", sample)


def half_the_variance_of_many_shares(patch: pytest.MonkeyPatch) -> None:
    """Shares of 200 or more clients have half their variance: Pólya's in the sampler, Gaussian ones in what it gets."""
    polya, honest = PolyaShare.sample, Mechanism.share

    def sample(self: PolyaShare, size: int, entropy: Entropy) -> Integers:
        return polya(replace(self, shares=2 * self.shares) if self.shares >= 200 else self, size, entropy)

    def share(self: Mechanism) -> Sampler:
        many, sampler = (self.honest_survivors or 0) >= 200, honest(self)
        return replace(sampler, scale=sampler.scale / 2) if many and isinstance(sampler, DiscreteGaussian) else sampler

    patch.setattr(PolyaShare, "sample", sample)
    patch.setattr(Mechanism, "share", share)


def five_percent_less_of_many_shares(patch: pytest.MonkeyPatch) -> None:
    """The scale of Pólya shares of 200 or more clients is 1/1.05 of what it should be."""
    honest = PolyaShare.sample

    def sample(self: PolyaShare, size: int, entropy: Entropy) -> Integers:
        return honest(replace(self, scale=self.scale * 20 / 21) if self.shares >= 200 else self, size, entropy)

    patch.setattr(PolyaShare, "sample", sample)


def no_events_of_one_block(patch: pytest.MonkeyPatch) -> None:
    """Where a Pólya share of 200 or more clients should be ±8 to ±15, it is 0."""
    honest = PolyaShare.sample

    def sample(self: PolyaShare, size: int, entropy: Entropy) -> Integers:
        drawn = honest(self, size, entropy)
        return np.where((np.abs(drawn) >> 3 == 1) & (self.shares >= 200), 0, drawn)

    patch.setattr(PolyaShare, "sample", sample)


def divide_by_the_exact_n(patch: pytest.MonkeyPatch) -> None:
    """A density is a noisy kernel sum over the exact number of records."""
    honest = releases.draw

    def draw(sketch: Sketch, **keys: Any) -> Release:
        release, records = honest(sketch, **keys), float(max(sketch.records, 1))
        object.__setattr__(release, "density", lambda queries: release.kernel_sum(queries).over(records))
        return release

    patch.setattr(releases, "draw", draw)


def rows_that_sum_to_the_exact_n(patch: pytest.MonkeyPatch) -> None:
    """The last counter of each row is moved so that released rows still sum to the exact number of records."""
    honest = releases.draw

    def draw(sketch: Sketch, **keys: Any) -> Release:
        release = honest(sketch, **keys)
        counters = release.counters.copy()
        counters[..., -1] += sketch.counters.sum(axis=-1) - counters.sum(axis=-1)
        return replace(release, counters=counters)

    patch.setattr(releases, "draw", draw)


def forget_a_row(patch: pytest.MonkeyPatch) -> None:
    """The sensitivity of R rows is that of R − 1."""

    def sensitivity(self: Hashed) -> Sensitivity:
        rows = self.rows - 1
        return Sensitivity(l0=rows, l1=rows, l2_squared=rows, linf=1)

    patch.setattr(Hashed, "sensitivity", property(sensitivity))


def state_every_moment_at_one_scale(patch: pytest.MonkeyPatch) -> None:
    """The sensitivity of weighted moments is that of moments that are all stored at the scale of the first."""
    honest = Hermite.sensitivity

    def sensitivity(self: Hermite) -> Sensitivity:
        stated: Sensitivity = honest.__get__(replace(self, weights=EQUAL))
        return stated

    patch.setattr(Hermite, "sensitivity", property(sensitivity))


def gate_on_the_exact_count(patch: pytest.MonkeyPatch) -> None:
    """Whether a window is released hangs on the exact number of its clients."""

    def enough(plan: Plan, clients: int, entropy: Entropy) -> bool:
        del entropy
        return clients >= plan.window.min_clients

    patch.setattr(outcomes, "_enough", enough)


def redraw_a_withheld_outcome(patch: pytest.MonkeyPatch) -> None:
    """A withheld window is told and not stored: who asks again has it drawn again, up to the third time."""

    class Redraws(Releaser):
        tries = 0

        async def _outcome(self, window: int | None) -> StoredOutcome:
            assert window is not None
            sealed = await self._store.sealed_window(self._plan, window)
            assert sealed is not None
            drawn = outcomes.decide(
                sealed.sketch, kind=TUMBLING, window=window, clients=sealed.clients, entropy=OsEntropy()
            )
            self.tries += 1
            if isinstance(drawn, Withheld) and self.tries < 3:
                data = drawn.to_bytes()
                digest = hashlib.sha256(data).digest()
                return StoredOutcome(self._plan.id, TUMBLING, window, data, digest, withheld=True)
            self.tries = 0
            patch.setattr(releaser, "decide", lambda *_, **__: drawn)  # what was drawn is what is stored
            return await super()._outcome(window)

    patch.setattr(pipelines, "Releaser", Redraws)


def draw_anew_at_every_try(patch: pytest.MonkeyPatch) -> None:
    """The key that a charge fixed is not what its outcome is drawn from: where storing it fails, it is drawn anew."""
    patch.setattr(releaser, "KeyedEntropy", lambda key: OsEntropy())


def draw_until_it_is_released(patch: pytest.MonkeyPatch) -> None:
    """The same, out of sight: the test of the number of clients is given three tries."""
    honest = outcomes._enough

    def enough(plan: Plan, clients: int, entropy: Entropy) -> bool:
        return any(honest(plan, clients, entropy) for _ in range(3))

    patch.setattr(outcomes, "_enough", enough)


def one_bad_record_refuses_its_batch(patch: pytest.MonkeyPatch) -> None:
    """An unusable record takes with it all that came with it."""
    honest = Hashed.accept

    def accept(self: Hashed, records: Any) -> tuple[Any, npt.NDArray[np.bool_]]:
        usable, kept = honest(self, records)
        return (usable, kept) if kept.all() else (usable[:0], np.zeros_like(kept))

    patch.setattr(Hashed, "accept", accept)


def drop_the_top_part(patch: pytest.MonkeyPatch) -> None:
    """What stands above the binary digits of a geometric is never drawn, nor the tail of a Gaussian."""
    laplace, gaussian = discrete_laplace._resolve, discrete_gaussian._resolve

    def no_top(draws: Integers, tie: Any, table: Any, entropy: Entropy) -> None:
        if table.thresholds[tie.column].form is not Form.TAIL:
            laplace(draws, tie, table, entropy)

    def no_tail(envelope: Any, draw: Any, entropy: Entropy) -> int | None:
        strip = int(np.searchsorted(envelope.ends, draw.choice >> CHOICE_BITS, side="right"))
        return None if strip == envelope.tail else gaussian(envelope, draw, entropy)

    patch.setattr(discrete_laplace, "_resolve", no_top)
    patch.setattr(discrete_gaussian, "_resolve", no_tail)


def sign_one_survivor_too_few(patch: pytest.MonkeyPatch) -> None:
    """Clients sign a set of survivors of which one honest client less is sure to be there."""
    honest = NeighbourGraph.check_survivors

    def check(self: NeighbourGraph, parameters: RoundParameters, survivors: npt.NDArray[np.bool_]) -> None:
        honest(self, replace(parameters, honest=parameters.honest - 1), survivors)

    patch.setattr(NeighbourGraph, "check_survivors", check)


def a_share_of_one_client_more(patch: pytest.MonkeyPatch) -> None:
    """Each client draws a share of 1/(h + 1)."""
    honest = Mechanism.share

    def share(self: Mechanism) -> Sampler:
        assert self.honest_survivors is not None
        return honest(replace(self, honest_survivors=self.honest_survivors + 1))

    patch.setattr(Mechanism, "share", share)


def count_the_noise_of_the_corrupt(patch: pytest.MonkeyPatch) -> None:
    """Of the survivors none is taken to be corrupt: not by the plan, and not by its clients."""
    patch.setattr(Cohort, "corrupt_clients", 0)


def calibrate_for_one_record(patch: pytest.MonkeyPatch) -> None:
    """The noise of a client is that of one of its m records."""
    patch.setattr(Claim, "records", 1)


def count_a_clients_spend_in_full_for_records(patch: pytest.MonkeyPatch) -> None:
    """The ledger takes what is promised to a client for a promise to each of its records."""
    honest = relations.implied

    def implied(loss: Loss, *, unit: str, relation: str, for_unit: str, for_relation: str) -> Loss | None:
        unit = for_unit if unit == CLIENT else unit
        return honest(loss, unit=unit, relation=relation, for_unit=for_unit, for_relation=for_relation)

    patch.setattr(accountant, "implied", implied)


def forget_the_count_in_zcdp(patch: pytest.MonkeyPatch) -> None:
    """The ledger takes for the L2 norm of a release that of its sketch, without the count counter."""
    _in_zcdp(patch, lambda moved: replace(moved, l2_squared=moved.l2_squared - (moved.l1 - moved.l0 + 1) ** 2))


def count_one_record_of_a_client_in_zcdp(patch: pytest.MonkeyPatch) -> None:
    """All m records of a client are counted as if they were in different counters: m·L2² for m²·L2²."""
    _in_zcdp(patch, lambda moved: replace(moved, l2_squared=moved.l2_squared // 2))


def _in_zcdp(patch: pytest.MonkeyPatch, mistaken: Callable[[Sensitivity], Sensitivity]) -> None:
    def rho(self: Event) -> Fraction:
        return mistaken(self.sensitivity).l2_squared / (2 * self.scale**2)

    patch.setattr(Event, "rho", property(rho))


def seed_by_a_constant(patch: pytest.MonkeyPatch) -> None:
    """Every read begins the same stream."""
    patch.setattr(OsEntropy, "read", lambda self, size: ReplayableEntropy(b"constant").read(size))


def seed_once_a_process(patch: pytest.MonkeyPatch) -> None:
    """One stream a process, from public values: releases of one process differ, and those of two repeat."""
    stream = ReplayableEntropy(b"plan and window")
    patch.setattr(OsEntropy, "read", lambda self, size: stream.read(size))


def stream_across_a_fork(patch: pytest.MonkeyPatch) -> None:
    """One stream a process, from the operating system; a fork copies it."""
    stream = ReplayableEntropy(OsEntropy().read(32))
    patch.setattr(OsEntropy, "read", lambda self, size: stream.read(size))


@asynccontextmanager
async def in_memory(plan: Plan, runtime: Runtime) -> AsyncIterator[Durable]:
    """What a service keeps, without files."""
    del plan
    yield Durable(PowerLossLog(1, runtime), MemoryStore(), MemoryReceipts())


class NearlyFull(MemoryStore):
    """Has room for the outcome of a window that is withheld; a release fits at the third try alone."""

    def __init__(self) -> None:
        super().__init__()
        self.failures: Counter[int] = Counter()

    async def commit_outcome(
        self, plan: Plan, kind: str, window: int, data: bytes, *, fence: int, withheld: bool = False
    ) -> None:
        if not withheld and self.failures[window] < 2:
            self.failures[window] += 1
            raise StoreError("the disk is full")
        await super().commit_outcome(plan, kind, window, data, fence=fence, withheld=withheld)


@asynccontextmanager
async def on_a_full_disk(plan: Plan, runtime: Runtime) -> AsyncIterator[Durable]:
    """The same, where what is stored must be small."""
    del plan
    yield Durable(PowerLossLog(1, runtime), NearlyFull(), MemoryReceipts())
