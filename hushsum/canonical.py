"""The one canonical encoding of plans, guarantees and headers of releases.

UTF-8 JSON, keys sorted, no spaces, strings in NFC with no escapes beyond what JSON demands. The field's type decides
how a number is written: integers as JSON integers within ±(2⁵³ − 1); real-valued fields always as strings, plain
decimal without exponent or trailing zeros where there is one, else ``p/q`` in lowest terms.
"""

import json
import re
import unicodedata
from decimal import Decimal
from fractions import Fraction
from typing import Final

import numpy as np

from hushsum.errors import CanonicalError, repr_of

INTEGER_LIMIT: Final = 2**53 - 1
#: Characters of a string, of a key, of a real: checked before any work that grows faster than they do.
STRING_MAX: Final = 1024
REAL_MAX: Final = 64
_DEPTH_MAX: Final = 16
_SHOWN_MAX: Final = 80  # characters of a value in an error
_SUGGESTED_MAX: Final = 24  # characters of a real
_REAL: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?|-?[1-9][0-9]*/[1-9][0-9]*")
#: What people write else: no zero in a denominator, and no exponent that takes long to write out.
_OTHER: Final = re.compile(
    r"[+-]?[0-9]*\.?[0-9]+(e[+-]?[0-9]{1,2})?|[+-]?[0-9]+/[0-9]*[1-9][0-9]*", re.IGNORECASE | re.ASCII
)
_TEN_MAX: Final = 10**REAL_MAX
_UNICODE: Final = unicodedata.ucd_3_2_0  # the version that every Python has: normal forms never change with another


def encode(value: object) -> bytes:
    """The canonical bytes of nested dicts and lists of strings and integers.

    Raises:
        CanonicalError: A float (real-valued fields enter as strings, see :func:`real_text`), an integer beyond
            ±(2⁵³ − 1), a string that is too long, not in NFC or holds a character that Unicode 3.2 does not have (so
            that every Python agrees on its normal form), nesting deeper than 16, or any other type.
    """
    _check(value, _DEPTH_MAX)
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8")


def decode(data: bytes) -> object:
    """The value of canonical bytes.

    Raises:
        CanonicalError: The bytes are not JSON, or are not the bytes that :func:`encode` gives for their value.
    """
    try:
        value = json.loads(data.decode("utf-8"))
        again = encode(value)
    except (ValueError, RecursionError) as error:
        raise CanonicalError(f"invalid encoding: {shown(error)}") from error
    if again != data:
        raise CanonicalError("not in canonical form: wrong key order, spaces or escapes")
    return value


def shown(value: object) -> str:
    """A value as it may stand in an error: never long, whatever a peer sent."""
    text = value if isinstance(value, str) else str(value) if isinstance(value, Exception) else repr_of(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[: _SHOWN_MAX - 1]}…"


def real(value: object) -> Fraction:
    """The exact value of a real-valued field, as its author wrote it.

    A float64 means its shortest representation (so 0.1 is 1/10); a float32 is refused, for its shortest representation
    would be a surprise; so are −0, infinities, NaN, and what takes more than 64 characters to write.

    Args:
        value: An int, float, Decimal, Fraction, or a string in the canonical form of a real.

    Raises:
        CanonicalError: Any other type or value.
    """
    fraction = _exact(value)
    if max(abs(fraction.numerator), fraction.denominator) >= _TEN_MAX or len(real_text(fraction)) > REAL_MAX:
        raise CanonicalError(f"a real number that takes more than {REAL_MAX} characters to write")
    return fraction


def _exact(value: object) -> Fraction:
    if isinstance(value, Fraction):
        return value
    if isinstance(value, bool) or (isinstance(value, np.floating) and not isinstance(value, np.float64)):
        kind = type(value).__name__
        raise CanonicalError(f"{shown(value)} of type {kind} is not an exact number: use a float or a Decimal")
    if isinstance(value, int | np.integer):
        return Fraction(int(value))
    if isinstance(value, float | Decimal):
        decimal = value if isinstance(value, Decimal) else Decimal(repr(float(value)))
        if not decimal.is_finite():
            raise CanonicalError(f"{shown(value)} is not finite")
        if decimal.is_zero() and decimal.is_signed():
            raise CanonicalError("got negative zero, expected 0")
        if abs(decimal.adjusted()) > REAL_MAX or len(decimal.as_tuple().digits) > REAL_MAX:
            raise CanonicalError(f"a real number that takes more than {REAL_MAX} characters to write")
        return Fraction(decimal)
    if isinstance(value, str) and len(value) <= REAL_MAX and _REAL.fullmatch(value):
        fraction = Fraction(value)
        if real_text(fraction) == value:
            return fraction
    raise CanonicalError(f"{shown(value)} is not a decimal number, nor a fraction in lowest terms{_instead(value)}")


def _instead(value: object) -> str:
    """How to write what another notation, such as ``1e-6``, means; empty where that is not known."""
    if not isinstance(value, str) or len(value) > REAL_MAX or not _OTHER.fullmatch(value):
        return ""
    fraction = Fraction(value)
    texts = [real_text(fraction)]
    if fraction.denominator > 1 and "/" not in texts[0]:
        texts.append(f"{fraction.numerator}/{fraction.denominator}")
    short = [text for text in texts if len(text) <= _SUGGESTED_MAX]
    return f"; write {' or '.join(short)}" if short else ""


def real_text(value: Fraction) -> str:
    """The canonical text of a real: plain decimal where it ends, else ``p/q`` in lowest terms."""
    numerator, denominator = value.numerator, value.denominator
    twos, rest = _strip(denominator, 2)
    fives, rest = _strip(rest, 5)
    if rest != 1:
        return f"{numerator}/{denominator}"
    places = max(twos, fives)
    digits = str(abs(numerator) * 10**places // denominator).rjust(places + 1, "0")
    sign = "-" if numerator < 0 else ""
    return sign + (f"{digits[:-places]}.{digits[-places:]}" if places else digits)


def _strip(number: int, prime: int) -> tuple[int, int]:
    power = 0
    while number % prime == 0:
        number //= prime
        power += 1
    return power, number


def check_text(value: str) -> None:
    """Refuses a string that has no canonical form, or not the same one in every Python.

    Raises:
        CanonicalError: It is too long, not in NFC, or holds a character that Unicode 3.2 does not have.
    """
    if len(value) > STRING_MAX:
        raise CanonicalError(f"a string of {len(value)} characters, expected at most {STRING_MAX}")
    for char in value:
        if _UNICODE.category(char) in {"Cn", "Cs"}:
            raise CanonicalError(f"{shown(repr(value))} contains U+{ord(char):04X}, which is not in Unicode 3.2")
    if _UNICODE.normalize("NFC", value) != value:
        raise CanonicalError(f"{shown(repr(value))} is not in Unicode normal form C")


def _check(value: object, depth: int) -> None:
    if depth == 0:
        raise CanonicalError(f"nested deeper than {_DEPTH_MAX}")
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise CanonicalError(f"a key is {shown(key)}, expected a string")
            check_text(key)
            _check(item, depth - 1)
    elif isinstance(value, list | tuple):
        for item in value:
            _check(item, depth - 1)
    elif isinstance(value, str):
        check_text(value)
    elif isinstance(value, bool) or not isinstance(value, int):
        raise CanonicalError(f"{shown(value)} has the unsupported type {type(value).__name__}")
    elif abs(value) > INTEGER_LIMIT:
        raise CanonicalError("an integer beyond ±(2^53 - 1); larger integers are written as strings")
