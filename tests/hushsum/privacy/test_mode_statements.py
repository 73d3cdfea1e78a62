"""The statement of a secure plan, read aloud: everything on which the promise rests is said."""

import pytest

from hushsum import Plan
from hushsum.privacy.guarantee import Guarantee
from tests.plans import secure_plan


def statement(plan: Plan) -> str:
    return plan.guarantee.statement(accounted=True)


def test_the_statement_of_a_pure_plan_reads_so() -> None:
    assert statement(secure_plan()) == (
        "ε = 1, δ = 7.27596e-12, unit record, zero-out: emptying one record changes the probability of anything "
        "that this release can show by a factor of at most e^1 = 2.72, except with probability 7.27596e-12. "
        "Participation is not hidden: each client takes part in every window, with or without records, and the number "
        "of clients is published with the release. "
        "Each client adds its share of the noise before it masks its counters, and the server sees only sums of whole "
        "cohorts. The guarantee relies on the shares of exactly 8 honest clients (discrete-laplace of scale 22 "
        "on every counter, the number of records included): of up to 10 clients at least 9 must survive a round, of "
        "whom 1 may be corrupt, and clients refuse to unmask a sum of fewer. More survivors add more noise. "
        "The guarantee is computational: it holds unless the ciphers are broken, except with probability "
        "7.27596e-12 (2^-37: 8 attempts of 2^-40 each) per window, in which the protocol fails; this probability is "
        "charged to δ. The noise itself is pure, so that probability is the whole δ. "
        "The server may be malicious at every step, with one exception: it is trusted to relay keys correctly, because "
        "there is no key registry of clients. With substituted keys it could unmask the counters of one client. "
        "The plan states no pool from which cohorts are drawn: it is assumed of every cohort, however the server forms "
        "it, that at most 1 of it is corrupt. Corrupt clients can make a round fail or falsify its sum, but learn "
        "nothing about other clients. "
        "It was charged to the ledger of its population."
    )


@pytest.mark.parametrize(
    ("cohort", "said", "unsaid"),
    [
        (
            {"directory": "ab" * 32},
            "may be malicious at every step. Clients authenticate each other's keys with",
            "trusted",
        ),
        ({}, "trusted to relay keys correctly", "honest but curious"),
        (
            {"adversary": "honest-but-curious"},
            "trusted to follow the protocol (honest but curious)",
            "may be malicious",
        ),
        (
            {"adversary": "honest-but-curious", "directory": "ab" * 32},
            "a malicious server could learn more. Clients authenticate each other's keys",
            "may be malicious at every step",
        ),
    ],
    ids=["directory", "none", "curious", "curious-with-directory"],
)
def test_who_is_trusted_is_said_as_it_is(cohort: dict[str, object], said: str, unsaid: str) -> None:
    text = statement(secure_plan(cohort))
    assert said in text
    assert unsaid not in text


POOL = {"dropout": "0.1", "cohort": 100, "corrupt_clients": 50, "pool": 1000}


@pytest.mark.parametrize("delta", ["0", "0.000001"])
def test_the_statement_of_a_plan_with_a_pool_counts_the_fleet_and_the_draw(delta: str) -> None:
    text = statement(secure_plan(privacy={"secure": POOL, "delta": delta}))
    for said in (
        "66 honest clients",
        "8.18546e-12 (2^-37: 8 attempts of 2^-40 each, and 2^-40: a draw of 2^-43 for each) per window, in which",
        "the protocol fails or too many corrupt clients are drawn; this probability is charged to δ",
        "It is assumed that at most 50 clients are corrupt in the whole fleet. Each cohort is drawn at random from",
        "at least 1,000 waiting clients: except with the probability above, at most 24 of it are corrupt. Against",
        "Against a server that does not draw at random, this is an assumption about the clients it chose. Corrupt",
    ):
        assert said in text
    assert "every cohort" not in text
    assert ("so that probability is the whole δ" in text) == (delta == "0")


@pytest.mark.parametrize(
    ("corrupt", "said"),
    [
        (0, ("no client is corrupt in the whole fleet. Each cohort is drawn at random from at least 1,000 waiting "
            "clients: except with the probability above, none of it is corrupt.")),
        (1, ("at most 1 client is corrupt in the whole fleet. Each cohort is drawn at random from at least 1,000 "
            "waiting clients: except with the probability above, at most 1 of it is corrupt.")),
    ],
)  # fmt: skip
def test_few_corrupt_clients_are_counted_in_words(corrupt: int, said: str) -> None:
    assert said in statement(secure_plan(privacy={"secure": {**POOL, "corrupt_clients": corrupt}}))


def test_a_server_that_keeps_to_the_protocol_is_not_said_to_lie_about_the_draw() -> None:
    text = statement(secure_plan(privacy={"secure": {**POOL, "adversary": "honest-but-curious"}}))
    assert "at most 24 of it are corrupt. Corrupt clients can make" in text


def test_a_plan_with_delta_does_not_call_its_noise_pure() -> None:
    text = statement(secure_plan(privacy={"delta": "0.000001"}))
    assert "pure" not in text
    assert "in addition to the δ of the noise" in text
    assert "δ = 1e-6, unit record" in text


def test_pure_noise_under_a_larger_delta_does_not_say_that_the_failure_is_all_of_it() -> None:
    """Written, not made: what is made with a delta has Gaussian noise."""
    written = {"name": "discrete-laplace", "scale": "22", "count_scale": 1, "honest_survivors": 8}
    text = statement(secure_plan(privacy={"delta": "0.000001", "mechanism": written}))
    assert "δ = 1e-6, unit record" in text
    assert "discrete-laplace of scale 22" in text
    assert "the whole δ" not in text


@pytest.mark.parametrize("delta", ["0", "0.000001"])
def test_a_guarantee_is_read_back(delta: str) -> None:
    guarantee = secure_plan(privacy={"delta": delta}).guarantee
    assert Guarantee.from_fields(guarantee.to_fields()) == guarantee
