"""One value has one encoding, and one real has one text."""

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hushsum.canonical import INTEGER_LIMIT, REAL_MAX, decode, encode, real, real_text
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
@example(Fraction(1, 2**62))
@example(Fraction(1, 2**63))
def test_the_text_of_a_real_names_it_exactly_where_it_is_not_too_long(value: Fraction) -> None:
    text = real_text(value)
    if len(text) <= REAL_MAX:
        assert real(text) == value
    else:
        with pytest.raises(CanonicalError):
            real(text)


@pytest.mark.parametrize(
    "value",
    [
        10**64,
        Fraction(1, 3**140),
        Fraction(10**70 + 1, 3),
        Decimal(1).scaleb(-64),
        1e-70,
        1e300,
        "1" * 65,
        "0." + "1" * 63,
    ],
)
def test_a_real_that_takes_more_than_64_characters_is_refused_whatever_its_type(value: object) -> None:
    with pytest.raises(CanonicalError, match=r"64 characters|not a decimal number"):
        real(value)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("1e-6", "; write 0.000001 or 1/1000000"),
        ("0.50", "; write 0.5 or 1/2"),
        ("4/6", "; write 2/3"),
        ("1E2", "; write 100"),
        ("1e99", ""),
        ("1e-60", ""),
        ("1e999999999", ""),
        ("1/0", ""),
        ("1/3e2", ""),
        ("nan", ""),
        ("one", ""),
    ],
)
def test_a_text_in_another_notation_is_refused_with_how_to_write_it(text: str, hint: str) -> None:
    with pytest.raises(CanonicalError) as refusal:
        real(text)
    assert str(refusal.value) == f"{text} is not a decimal number, nor a fraction in lowest terms{hint}"
    for written in hint.removeprefix("; write ").split(" or ") if hint else ():
        assert Fraction(written) == Fraction(text)
    if hint:
        assert real(hint.removeprefix("; write ").split(" or ")[0]) == Fraction(text)


def test_every_real_that_is_accepted_is_accepted_again_as_its_own_text() -> None:
    for value in (10**63, Decimal("1." + "3" * 61), Fraction(1, 2**40), Fraction(10**31, 3), 1e-60, -(10**62)):
        assert real(real_text(real(value))) == real(value)


@pytest.mark.parametrize(
    "text",
    ["a" * 1025, "a\u0315\U00010efd", "\U0001f600", "e\u0301"],
)
def test_a_string_that_another_python_might_read_otherwise_is_refused(text: str) -> None:
    with pytest.raises(CanonicalError):
        encode(text)


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 500_000,
        b"[" * 994 + b"]" * 994,
        b'"' + ("a" + "\u0315\u0300" * 400_000).encode() + b'"',
        b"[" + b'"x",' * 200_000 + b'"x" ]',
        b'{"' + b"k" * 100_000 + b'":[' + b"1," * 100_000 + b"1]}",
    ],
)
@pytest.mark.timeout(60)  # without the bounds on strings and nesting these take from minutes to hours
def test_bytes_of_a_hostile_peer_are_refused_at_once(data: bytes) -> None:
    with pytest.raises(CanonicalError) as caught:
        decode(data)
    assert len(str(caught.value)) < 400


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
