"""Canonical JSON and real numbers, written from the section "Canonical JSON" of docs/reference/wire.md."""

import json
import re
from fractions import Fraction
from typing import TypeAlias
from unicodedata import ucd_3_2_0

Json: TypeAlias = dict[str, "Json"] | list["Json"] | str | int

LARGEST_INTEGER = 2**53 - 1
MOST_CHARACTERS = 1024
MOST_LEVELS = 16
MOST_CHARACTERS_OF_REAL = 64
REAL = re.compile(r"-?[0-9]+(\.[0-9]+|/[0-9]+)?", re.ASCII)


class NotCanonicalError(ValueError):
    """The bytes or the value are not canonical JSON of this format."""


def encode(value: Json) -> bytes:
    """Return the canonical bytes of a value."""
    check(value, 1)
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode("utf-8")


def decode(data: bytes) -> Json:
    """Return the value of canonical bytes, and refuse all others."""
    try:
        value: Json = json.loads(data.decode("utf-8"))
        again = encode(value)
    except (ValueError, RecursionError) as error:
        raise NotCanonicalError(str(error)) from error
    if again != data:
        raise NotCanonicalError("these bytes are not what an encoder writes for their value")
    return value


def check(value: object, level: int) -> None:
    """Refuse a value that canonical JSON cannot hold; `level` is 1 for the outer value."""
    if level > MOST_LEVELS:
        raise NotCanonicalError("more than 16 levels")
    if isinstance(value, str):
        check_string(value)
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise NotCanonicalError("a key that is not a string")
            check_string(key)
            check(item, level + 1)
    elif isinstance(value, list):
        for item in value:
            check(item, level + 1)
    elif isinstance(value, int) and not isinstance(value, bool):
        if abs(value) > LARGEST_INTEGER:
            raise NotCanonicalError("an integer beyond 2^53 - 1")
    else:
        raise NotCanonicalError(f"a value of kind {type(value).__name__}")


def check_string(text: str) -> None:
    """Refuse a string that is too long, not in normal form C, or has characters outside of Unicode 3.2."""
    if len(text) > MOST_CHARACTERS:
        raise NotCanonicalError("a string of more than 1,024 characters")
    if any(ucd_3_2_0.category(character) in ("Cn", "Cs") for character in text):
        raise NotCanonicalError("a character that Unicode 3.2 does not have")
    if ucd_3_2_0.normalize("NFC", text) != text:
        raise NotCanonicalError("a string that is not in normal form C")


def read_real(text: object) -> Fraction:
    """Return the exact number of a real-valued field."""
    if not isinstance(text, str) or len(text) > MOST_CHARACTERS_OF_REAL or not REAL.fullmatch(text):
        raise NotCanonicalError(f"{text!r} is not a real number")
    try:
        value = Fraction(text)
    except ZeroDivisionError as error:
        raise NotCanonicalError(f"{text!r} divides by zero") from error
    if write_real(value) != text:
        raise NotCanonicalError(f"{text!r} is not the canonical text of its number")
    return value


def write_real(value: Fraction) -> str:
    """Return the text of an exact number: the plain decimal if there is a finite one, otherwise p/q."""
    if max(abs(value.numerator), value.denominator) >= 10**64:
        raise NotCanonicalError("a real number with a part of 10^64 or more")
    twos = exponent_of(2, value.denominator)
    fives = exponent_of(5, value.denominator)
    if 2**twos * 5**fives != value.denominator:
        return f"{value.numerator}/{value.denominator}"
    places = max(twos, fives)
    digits = str(abs(value.numerator) * 10**places // value.denominator).rjust(places + 1, "0")
    sign = "-" if value < 0 else ""
    return sign + (f"{digits[:-places]}.{digits[-places:]}" if places else digits)


def exponent_of(prime: int, number: int) -> int:
    """Return how often a prime divides a number."""
    exponent = 0
    while number % prime == 0:
        number //= prime
        exponent += 1
    return exponent
