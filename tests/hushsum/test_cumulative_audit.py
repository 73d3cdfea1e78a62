"""What one unit moves in the noise of cumulative releases stays within what is charged; planted mistakes do not."""

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import hushsum as hs
from hushsum import cumulative
from hushsum.entropy import Entropy, KeyedEntropy
from hushsum.privacy.events import CUMULATIVE
from hushsum.privacy.factorisation import BufferedToeplitz, SignedDigitTree
from hushsum.privacy.spending import spend_of
from tests.hushsum.cumulative_audit import OneHot, epsilon_by_tree, incidence, moved_by_buffers
from tests.hushsum.cumulative_plans import cumulative_plan

_HORIZON = 60
Ints = npt.NDArray[np.int64]


def moves(plan: hs.Plan) -> Ints:
    """One record in the first bucket of every row."""
    moved = np.zeros(plan.counters_shape, np.int64)
    moved[..., 0] = 1
    counts = np.zeros(plan.count_counters, np.int64)
    counts[:1] = plan.privacy.mechanism.count_scale
    return np.concatenate([moved.reshape(-1), counts])


def buffered(**keys: Any) -> hs.Plan:
    return cumulative_plan(delta="0.000001", horizon=_HORIZON, **keys)


def audited(plan: hs.Plan) -> tuple[float, float]:
    """The ρ of the running code of a record in the first window, and the ρ that is charged."""
    found, _ = moved_by_buffers(plan, moves(plan), steps=_HORIZON, window=1)
    (event,) = spend_of(plan, kind=CUMULATIVE, window=None).events
    return float(found), float(event.loss.rho)


def test_what_buffers_move_is_what_is_charged() -> None:
    found, charged = audited(buffered())
    assert 0.999 * charged < found <= charged


def test_epsilon_charged_for_one_window_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BufferedToeplitz, "squared_norm", lambda *_: Fraction(1))
    found, charged = audited(buffered())
    assert found > 1.5 * charged


def test_a_buffer_that_is_not_advanced_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, real = buffered(), cumulative._share
    made = plan.privacy.mechanism.factorisation
    assert isinstance(made, BufferedToeplitz)

    def stuck(share: int, buffer: Ints) -> Ints:
        return 0 * buffer if share == made.theta[-1] else real(share, buffer)

    monkeypatch.setattr(cumulative, "_share", stuck)
    found, charged = audited(plan)
    assert not 0.999 * charged < found <= charged


@pytest.mark.parametrize("bits", [24, 31])
def test_roundings_move_noise_by_less_than_is_charged(bits: int) -> None:
    plan = buffered()
    made = plan.privacy.mechanism.factorisation
    assert isinstance(made, BufferedToeplitz)
    mechanism = plan.privacy.mechanism.to_fields() | {"factorisation": made.to_fields() | {"bits": bits}}
    mechanism["scale"] = "2000"
    plan = plan.replace_privacy(mechanism=mechanism)
    _, rounded = moved_by_buffers(plan, moves(plan), steps=_HORIZON, window=1)
    assert 1 <= rounded <= 2 * 2 * made.rounding  # of two counters, each by up to 2η: it is not 0, as uncharged it was


def tree(**keys: Any) -> hs.Plan:
    return cumulative_plan(horizon=_HORIZON, sketch={"rows": 8, "buckets": 16}, **keys)


def test_the_loss_of_a_tree_is_epsilon() -> None:
    plan = tree()
    found = epsilon_by_tree(plan, int(np.abs(moves(plan)).sum()), steps=_HORIZON)
    assert 0.99 < found <= 1 + 1e-9


def test_a_tree_with_a_wrong_l1_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SignedDigitTree, "l1", lambda self, windows: (self.levels - 1) * windows)
    plan = tree()
    assert epsilon_by_tree(plan, int(np.abs(moves(plan)).sum()), steps=_HORIZON) > 1.4


def test_each_node_enters_and_leaves_with_the_same_noise() -> None:
    rows = incidence(tree(), steps=_HORIZON)
    assert set(np.unique(rows)) == {-1.0, 0.0, 1.0}
    assert max(np.abs(rows).sum(axis=1)) == tree_of(tree()).worst_variance(_HORIZON)


def test_a_node_that_leaves_with_other_noise_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, real = tree(), KeyedEntropy
    serial = iter(range(10**6))
    monkeypatch.setattr(cumulative, "KeyedEntropy", lambda _: real(next(serial).to_bytes(32, "big")))
    monkeypatch.setattr(OneHot, "sample", _spread)
    broken = incidence(plan, steps=_HORIZON)
    assert np.abs(broken[-1]).sum() > 2 * tree_of(plan).worst_variance(_HORIZON)


def tree_of(plan: hs.Plan) -> SignedDigitTree:
    made = plan.privacy.mechanism.factorisation
    assert isinstance(made, SignedDigitTree)
    return made


def _spread(_: object, size: int, entropy: Entropy) -> Ints:
    values = np.zeros(size, np.int64)
    values[int.from_bytes(entropy.read(4), "big") % size] = 1
    return values
