"""TOML of users: numbers stay exact, and what the parser fails on is refused like any other mistake."""

from decimal import Decimal

import pytest

from hushsum.errors import PlanError
from hushsum.plan import Plan
from hushsum.schema import tables_of


def test_a_float_is_read_as_it_is_written() -> None:
    assert tables_of("a = 0.1\nb.c = 1e-3") == {"a": Decimal("0.1"), "b": {"c": Decimal("0.001")}}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a = [", "Invalid"),
        ("a = " + "[" * 3000, "nested too deeply"),
        ("a = 1e9999999999999999999", "a number within range"),
        ("a = " + "9" * 5000, "digits"),
    ],
)
def test_what_cannot_be_read_is_a_value_error(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        tables_of(text)


@pytest.mark.parametrize("value", ["0x" + "f" * 5000, "[" * 300 + "]" * 300, ".".join("a" * 400) + " = 1"])
def test_a_value_that_cannot_be_written_out_is_refused_in_a_plan(value: str) -> None:
    with pytest.raises(PlanError):
        Plan.from_toml(f"name = {value}\n" if "=" not in value else f"name.{value}\n")
