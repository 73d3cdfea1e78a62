"""The one canonical encoding of plans, guarantees and headers of releases (WIRE: canonical encoding).

UTF-8 JSON, keys sorted, no spaces, strings in NFC with no escapes beyond what JSON demands. The field's type decides
how a number is written: integers as JSON integers within ±(2⁵³ − 1); real-valued fields always as strings, plain
decimal without exponent or trailing zeros where there is one, else ``p/q`` in lowest terms.
"""

import json
import math
import re
import unicodedata
from decimal import Decimal
from fractions import Fraction
from typing import Final

import numpy as np

from hushsum.errors import CanonicalError

INTEGER_LIMIT: Final = 2**53 - 1
_REAL: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?|-?[1-9][0-9]*/[1-9][0-9]*")
_DIGITS_MAX: Final = 400  # of a real: more than any float64 needs, and little enough to parse at once


def encode(value: object) -> bytes:
    """The canonical bytes of nested dicts and lists of strings and integers.

    Raises:
        CanonicalError: A float (real-valued fields enter as strings, see :func:`real_text`), an integer beyond
            ±(2⁵³ − 1), a string that is not in NFC, or any other type.
    """
    _check(value, "value")
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8")


def decode(data: bytes) -> object:
    """The value of canonical bytes.

    Raises:
        CanonicalError: The bytes are not JSON, or are not the bytes that :func:`encode` gives for their value.
    """
    try:
        value = json.loads(data.decode("utf-8"))
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise CanonicalError(f"not canonical: {error}") from error
    if encode(value) != data:
        raise CanonicalError("not canonical: the same value has other canonical bytes (key order, spaces or escapes)")
    return value


def real(value: object) -> Fraction:
    """The exact value of a real-valued field, as its author wrote it.

    A float64 means its shortest representation (so 0.1 is 1/10); a float32 is refused, for its shortest representation
    would be a surprise; so are −0, infinities and NaN.

    Args:
        value: An int, float, Decimal, Fraction, or a string in the canonical form of a real.

    Raises:
        CanonicalError: Any other type or value.
    """
    if isinstance(value, Fraction):
        return value
    if isinstance(value, bool) or (isinstance(value, np.floating) and not isinstance(value, np.float64)):
        raise CanonicalError(
            f"{value!r} of type {type(value).__name__} is no exact number; pass a float64 or a Decimal"
        )
    if isinstance(value, int | np.integer):
        return Fraction(int(value))
    if isinstance(value, float):
        _refuse_special(
            finite=math.isfinite(value), zero=value == 0, negative=math.copysign(1.0, value) < 0, value=value
        )
        return Fraction(repr(float(value)))
    if isinstance(value, Decimal):
        _refuse_special(finite=value.is_finite(), zero=value == 0, negative=value.is_signed(), value=value)
        if abs(value.adjusted()) > _DIGITS_MAX or len(value.as_tuple().digits) > _DIGITS_MAX:
            raise CanonicalError(f"a real number of more than {_DIGITS_MAX} digits")
        return Fraction(value)
    if isinstance(value, str) and len(value) <= 2 * _DIGITS_MAX and _REAL.fullmatch(value):
        fraction = Fraction(value)
        if real_text(fraction) == value:
            return fraction
    raise CanonicalError(f"{value!r} is not a real number in canonical form")


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


def _refuse_special(*, finite: bool, zero: bool, negative: bool, value: object) -> None:
    if not finite:
        raise CanonicalError(f"{value!r} is not finite")
    if zero and negative:
        raise CanonicalError("negative zero has no canonical form; write 0")


def _check(value: object, where: str) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise CanonicalError(f"{where}: a key is {key!r}, expected a string")
            _check(key, where)
            _check(item, f"{where}.{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _check(item, f"{where}[{index}]")
    elif isinstance(value, str):
        _check_text(value, where)
    elif isinstance(value, bool) or not isinstance(value, int):
        raise CanonicalError(f"{where}: {value!r} of type {type(value).__name__} has no canonical encoding")
    elif abs(value) > INTEGER_LIMIT:
        raise CanonicalError(f"{where}: {value} is beyond ±(2^53 - 1); larger integers are written as strings")


def _check_text(value: str, where: str) -> None:
    if unicodedata.normalize("NFC", value) != value:
        raise CanonicalError(f"{where}: {value!r} is not in Unicode normal form C")
    if any("\ud800" <= char <= "\udfff" for char in value):
        raise CanonicalError(f"{where}: a lone surrogate has no UTF-8")
