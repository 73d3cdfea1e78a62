"""A spend is checked when it is made, and comes back from its encoding as it was."""

from dataclasses import replace
from fractions import Fraction

import pytest

from hushsum.canonical import decode, encode
from hushsum.errors import PlanError
from hushsum.privacy.event import Spend

WINDOW = Spend(
    population="patients",
    plan_id="ab" * 32,
    kind="tumbling",
    window=7,
    unit="client",
    relation="add/remove",
    mode="central",
    mechanism="discrete-laplace",
    epsilon=Fraction(1, 3),
    delta=Fraction(0),
)
IN_PROCESS = replace(WINDOW, kind="in-process", window=None, population="")


@pytest.mark.parametrize("spend", (WINDOW, IN_PROCESS, replace(WINDOW, window=-3)), ids=("7", "none", "-3"))
def test_it_survives_the_canonical_encoding(spend: Spend) -> None:
    assert Spend.from_fields(decode(encode(spend.to_fields()))) == spend


def test_the_bytes_of_a_spend_are_frozen() -> None:
    assert encode(WINDOW.to_fields()) == (
        b'{"delta":"0","epsilon":"1/3","kind":"tumbling","mechanism":"discrete-laplace","mode":"central",'
        b'"plan_id":"' + b"ab" * 32 + b'","population":"patients","relation":"add/remove","unit":"client","window":7}'
    )


@pytest.mark.parametrize(
    ("field", "value"),
    (
        ("plan_id", "ab"),
        ("plan_id", "AB" * 32),
        ("kind", "cumulative"),
        ("window", None),
        ("window", True),
        ("window", 2**53),
        ("unit", "household"),
        ("relation", "edit"),
        ("mode", "local"),
        ("epsilon", Fraction(0)),
        ("epsilon", 1.0),
        ("delta", Fraction(1)),
    ),
    ids=str,
)
def test_a_field_out_of_range_is_refused_by_its_name(field: str, value: object) -> None:
    with pytest.raises(PlanError) as refusal:
        replace(WINDOW, **{field: value})  # type: ignore[arg-type]  # of the wrong type on purpose
    assert refusal.value.key == f"spend.{field}"


def test_a_release_without_a_window_names_none() -> None:
    with pytest.raises(PlanError, match=r"spend\.window"):
        replace(IN_PROCESS, window=7)


def test_an_unknown_field_is_refused() -> None:
    with pytest.raises(PlanError, match=r"spend\.epsilom"):
        Spend.from_fields({**WINDOW.to_fields(), "epsilom": "2"})
