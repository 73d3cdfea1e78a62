"""A guarantee says in plain words what it promises, and survives its encoding."""

from dataclasses import replace
from fractions import Fraction

import pytest

from hushsum.canonical import decode, encode
from hushsum.errors import PlanError
from hushsum.privacy.guarantee import Guarantee
from hushsum.privacy.mechanisms import Mechanism
from tests.hushsum.local_plans import report_plan, silo_plan

RECORD = Guarantee(
    epsilon=Fraction(1),
    delta=Fraction(0),
    unit="record",
    relation="add/remove",
    mode="central",
    mechanism=Mechanism("discrete-laplace", Fraction(1053), 53),
    records_per_client=None,
)
CLIENT = replace(RECORD, epsilon=Fraction(1, 3), unit="client", records_per_client=5)
GAUSSIAN = replace(
    RECORD,
    delta=Fraction(1, 10**6),
    mechanism=Mechanism("discrete-gaussian", Fraction("24039.5"), 8, clients_scale=Fraction(30)),
    rho=Fraction("0.0221303"),
)


@pytest.mark.parametrize("guarantee", (RECORD, CLIENT, GAUSSIAN), ids=("record", "client", "gaussian"))
def test_it_survives_the_canonical_encoding(guarantee: Guarantee) -> None:
    assert Guarantee.from_fields(decode(encode(guarantee.to_fields()))) == guarantee


def test_records_per_client_is_written_only_where_it_means_something() -> None:
    assert "records_per_client" not in RECORD.to_fields()
    assert CLIENT.to_fields()["records_per_client"] == 5


def test_the_statement_for_records_in_plain_words() -> None:
    assert RECORD.statement(accounted=True) == (
        "ε = 1, δ = 0, unit record, add/remove: adding or removing one record changes the probability of "
        "anything that this release can show by a factor of at most e^1 = 2.72. The aggregator is trusted with the "
        "exact counters and adds the noise once (discrete-laplace of scale 1053 on every counter, the number of "
        "records included). It was charged to the ledger of its population."
    )


def test_the_statement_of_an_approximate_guarantee_says_what_delta_and_the_test_of_the_clients_mean() -> None:
    assert GAUSSIAN.statement(accounted=True) == (
        "ε = 1, δ = 1e-6, unit record, add/remove: adding or removing one record changes the probability of anything "
        "that this release can show by a factor of at most e^1 = 2.72, except with probability 1e-6. The aggregator "
        "is trusted with the exact counters and adds the noise once (discrete-gaussian of standard deviation 155 on "
        "every counter, the number of records included: 0.0221303-zCDP). Whether a window is released depends on a "
        "noisy number of clients (discrete-laplace of scale 30), which uses ε = 0.0333334 of the total. It was "
        "charged to the ledger of its population."
    )


def test_a_power_that_is_no_plain_number_stands_in_brackets() -> None:
    assert "by a factor of at most e^(1/3) = 1.4" in CLIENT.statement(accounted=True)
    assert "by a factor of at most e^0.5 = 1.65" in replace(RECORD, epsilon=Fraction(1, 2)).statement(accounted=True)
    assert "by a factor of at most e^(1e-4) = 1" in replace(RECORD, epsilon=Fraction(1, 10**4)).statement(
        accounted=True
    )


@pytest.mark.parametrize("relation", ["zero-out", "replace"])
def test_a_central_guarantee_is_of_clients_that_come_or_go_and_of_nothing_else(relation: str) -> None:
    with pytest.raises(PlanError, match=r"guarantee\.relation.*'add/remove' with mode 'central'"):
        replace(CLIENT, relation=relation)
    assert "not hidden" not in CLIENT.statement(accounted=True)


def test_rho_is_written_only_where_it_means_something() -> None:
    assert "rho" not in RECORD.to_fields()
    assert GAUSSIAN.to_fields()["rho"] == "0.0221303"


def test_the_statement_for_clients_names_the_bound() -> None:
    assert "all records of one client (at most 5 in a window)" in CLIENT.statement(accounted=True)


def test_a_release_without_a_ledger_says_that_it_is_unaccounted() -> None:
    assert "unaccounted" in RECORD.statement(accounted=False)
    assert "unaccounted" not in RECORD.statement(accounted=True)


def test_each_relation_is_told_apart() -> None:
    told = {"adding or removing": RECORD, "emptying": silo_plan().guarantee, "replacing": report_plan().guarantee}
    for words, guarantee in told.items():
        assert f"{guarantee.relation}: {words}" in guarantee.statement(accounted=True)


@pytest.mark.parametrize(
    ("field", "value"),
    (
        ("epsilon", Fraction(0)),
        ("epsilon", 1.0),
        ("delta", Fraction(1)),
        ("delta", Fraction(-1, 2)),
        ("unit", "household"),
        ("relation", "edit"),
        ("mode", "edge"),
        ("records_per_client", 5),
        ("rho", Fraction(1)),
    ),
    ids=str,
)
def test_a_field_out_of_range_is_refused_by_its_name(field: str, value: object) -> None:
    with pytest.raises(PlanError) as refusal:
        replace(RECORD, **{field: value})  # type: ignore[arg-type]  # of the wrong type on purpose
    assert refusal.value.key == f"guarantee.{field}"


@pytest.mark.parametrize("value", (None, 0, True))
def test_a_client_guarantee_needs_its_bound(value: object) -> None:
    with pytest.raises(PlanError, match="records_per_client"):
        replace(CLIENT, records_per_client=value)  # type: ignore[arg-type]  # of the wrong type on purpose


@pytest.mark.parametrize("value", (None, Fraction(0), 0.02))
def test_a_gaussian_guarantee_needs_its_rho(value: object) -> None:
    with pytest.raises(PlanError, match=r"guarantee\.rho"):
        replace(GAUSSIAN, rho=value)  # type: ignore[arg-type]  # of the wrong type on purpose


@pytest.mark.parametrize("field", ("epsilon", "delta", "unit", "relation", "mode", "mechanism"))
def test_a_missing_or_unknown_field_is_refused_by_its_name(field: str) -> None:
    fields = RECORD.to_fields()
    value = fields.pop(field)
    with pytest.raises(PlanError, match=rf"guarantee\.{field}"):
        Guarantee.from_fields(fields)
    with pytest.raises(PlanError, match=rf"guarantee\.{field}s"):
        Guarantee.from_fields({**fields, field: value, f"{field}s": value})


def test_a_statement_of_a_plan_says_nothing_of_a_ledger() -> None:
    told = RECORD.statement(accounted=None)
    assert RECORD.statement(accounted=True).startswith(f"{told} It was charged")
    assert RECORD.statement(accounted=False).startswith(f"{told} It is unaccounted")
