"""Whether a window is released: by a noised number of clients, or always."""

import json

import numpy as np
import pytest

from hushsum.entropy import ReplayableEntropy
from hushsum.outcomes import Withheld, decide
from hushsum.plan import Plan
from hushsum.releases import Release, draw
from hushsum.sketch import Sketch
from tests.plans import small_plan

KEYS = [bytes([number]) for number in range(200)]
NEVER = 10**6  # clients that no noise of these plans makes up for


def plan_of(min_clients: int, **privacy: object) -> Plan:
    return small_plan(privacy=privacy, window={"min_clients": min_clients})


class Scripted(ReplayableEntropy):
    """Tells how much was read."""

    def __init__(self, key: bytes) -> None:
        super().__init__(key)
        self.bytes_read = 0

    def read(self, size: int) -> bytes:
        self.bytes_read += size
        return super().read(size)


def outcome(plan: Plan, clients: int, entropy: ReplayableEntropy) -> Release | Withheld:
    return decide(Sketch(plan), kind="tumbling", window=7, clients=clients, entropy=entropy)


def is_released(plan: Plan, clients: int, key: bytes) -> bool:
    return isinstance(outcome(plan, clients, ReplayableEntropy(key)), Release)


def noised(plan: Plan, key: bytes) -> int:
    """The noise on the number of clients that ``key`` gives."""
    law = plan.privacy.mechanism.clients_noise()
    assert law is not None
    return int(law.sample(1, ReplayableEntropy(key))[0])


def test_without_min_clients_every_window_is_released_and_its_first_noise_is_that_of_the_counters() -> None:
    plan = plan_of(0)
    for clients in (0, 1, 5):
        came = outcome(plan, clients, ReplayableEntropy(b"key"))
        whole = draw(Sketch(plan), kind="tumbling", window=7, entropy=ReplayableEntropy(b"key"), accounted=True)
        assert came.to_bytes() == whole.to_bytes()


@pytest.mark.parametrize("clients", [0, 12, 30])
def test_clients_are_counted_with_the_noise_that_is_drawn_first(clients: int) -> None:
    plan = plan_of(12)
    came = [is_released(plan, clients, key) for key in KEYS]
    assert came == [clients + noised(plan, key) >= 12 for key in KEYS]
    assert {True, False} == set(came), "an empty window too is sometimes released, a full one sometimes withheld"


def test_the_counters_noise_is_drawn_after_the_test_and_only_for_a_release() -> None:
    plan = plan_of(12)
    law = plan.privacy.mechanism.clients_noise()
    assert law is not None
    test_alone = Scripted(b"key")
    law.sample(1, test_alone)
    withheld = Scripted(b"key")
    assert outcome(plan, 12 - noised(plan, b"key") - 1, withheld) == Withheld(plan.id, "tumbling", 7)
    assert withheld.bytes_read == test_alone.bytes_read
    released = outcome(plan, 12 - noised(plan, b"key"), ReplayableEntropy(b"key"))
    rest = draw(Sketch(plan), kind="tumbling", window=7, entropy=test_alone, accounted=True)
    assert released.to_bytes() == rest.to_bytes()


@pytest.mark.parametrize(("epsilon", "share"), [("1", "0.05"), ("0.1", "0.5"), ("4", "0.9")])
def test_one_client_changes_the_odds_of_a_release_by_no_more_than_its_share_of_epsilon(
    epsilon: str, share: str
) -> None:
    plan = plan_of(12, epsilon=epsilon, min_clients_share=share)
    law = plan.privacy.mechanism.clients_noise()
    assert law is not None
    reach = int(60 * law.std) + 20
    lower = np.exp(law.log_probability(np.arange(-reach, reach + 1)))  # what is beyond is below 1e-30
    below = np.concatenate([[0.0], np.cumsum(lower)])  # P(noise < k - reach)
    above = np.concatenate([np.cumsum(lower[::-1])[::-1], [0.0]])
    promised = float(np.exp(float(epsilon) * float(share))) * (1 + 1e-9)
    for clients in range(40):
        at = 12 - clients + reach  # released from this noise on
        for chance in (above, below):
            first, second = chance[at], chance[at - 1]  # with one client more the noise may be one less
            assert first <= promised * second
            assert second <= promised * first


def test_what_is_stored_of_a_withheld_window_is_what_everybody_may_know() -> None:
    plan = plan_of(NEVER)
    stored = {outcome(plan, clients, ReplayableEntropy(key)).to_bytes() for clients in (0, 9, 99_999) for key in KEYS}
    (data,) = stored
    assert json.loads(data) == {
        "format": 1,
        "kind": "tumbling",
        "outcome": "withheld",
        "plan_id": plan.hex_id,
        "window": 7,
    }
