"""One value has one encoding, and one real has one text."""

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hushsum.canonical import INTEGER_LIMIT, decode, encode, real, real_text
from hushsum.errors import CanonicalError


def test_keys_are_sorted_and_nothing_is_padded_or_escaped() -> None:
    assert encode({"b": [1, "ü\n"], "a": {}}) == '{"a":{},"b":[1,"ü\\n"]}'.encode()


@pytest.mark.parametrize(
    "bytes_in",
    [b'{"b":1,"a":2}', b'{"a": 1}', b'{"a":1.0}', b'["\\u00fc"]', b'{"a":1,"a":1}', b"[", b"\xff", b"[true]"],
)
def test_other_bytes_for_a_value_are_refused(bytes_in: bytes) -> None:
    with pytest.raises(CanonicalError):
        decode(bytes_in)


@pytest.mark.parametrize("value", [1.5, True, None, {1: 2}, "e\u0301", INTEGER_LIMIT + 1, "\ud800"])
def test_what_has_no_canonical_form_is_refused(value: object) -> None:
    with pytest.raises(CanonicalError):
        encode([value])


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Fraction(1, 8), "0.125"),
        (Fraction(-21, 2), "-10.5"),
        (Fraction(1, 3), "1/3"),
        (Fraction(-7, 6), "-7/6"),
        (Fraction(0), "0"),
        (Fraction(10**30), "1" + "0" * 30),
        (Fraction(1, 10**7), "0.0000001"),
    ],
)
def test_a_real_has_one_text(value: Fraction, text: str) -> None:
    assert real_text(value) == text
    assert real(text) == value


@given(st.fractions())
def test_the_text_of_a_real_names_it_exactly(value: Fraction) -> None:
    assert real(real_text(value)) == value


def test_a_float64_means_its_shortest_representation() -> None:
    assert real(0.1) == Fraction(1, 10)
    assert real(np.float64(0.1)) == Fraction(1, 10)
    assert real(1e-7) == Fraction(1, 10**7)
    assert real(Decimal("5.00")) == 5


@pytest.mark.parametrize(
    "value",
    [
        np.float32(0.5),
        -0.0,
        Decimal("-0"),
        float("nan"),
        float("inf"),
        Decimal("Infinity"),
        True,
        None,
        "1e5",
        "01",
        "1.50",
        "+1",
        "2/4",
        "1/0",
        " 1",
        "١",
        Decimal("1e999999"),
    ],
)
def test_what_is_no_exact_number_is_refused(value: object) -> None:
    with pytest.raises(CanonicalError):
        real(value)
