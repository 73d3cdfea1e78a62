"""What a decoder must do with any bytes: give a value that can be written again, or refuse with its own error."""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from hushsum.errors import DeltaError

KIB: Final = 1 << 10
MIB: Final = 1 << 20
#: Bytes of memory that a decoder may take for each byte of input: Python's objects of parsed text are the largest.
GROWTH: Final = 64


class BrokenPromiseError(AssertionError):
    """A decoder gave a value that does not stand for the bytes that it was made of."""


@dataclass(frozen=True)
class Refused:
    """A refusal by a decoder's own error: its reason in a word, and its text."""

    reason: str
    text: str

    @classmethod
    def of(cls, error: BaseException) -> "Refused":
        """As the error says."""
        reason = error.reason.value if isinstance(error, DeltaError) else type(error).__name__
        return cls(reason, str(error))


Verdict = Refused | None  # None: accepted
Decode = Callable[[bytes], Any]
Change = Callable[[random.Random, bytes, Sequence[bytes]], bytes]


@dataclass(frozen=True)
class Kit:
    """What a target works with, made once in a process.

    Attributes:
        samples: Good ones, which are accepted.
        attempt: Decodes and checks; any exception that it raises is a finding.
        change: Makes another sample of one.
        room: Bytes of memory that the plans of the samples allow beside :data:`GROWTH` times the input.
        first: Found in the text of a refusal by a header or another first check.
        bad: What is refused, by what is wrong with it: each shows one check that chance alone would seldom show.
    """

    samples: Sequence[bytes]
    attempt: Callable[[bytes], Verdict]
    change: Change
    room: int = 8 * MIB
    first: re.Pattern[str] = field(default_factory=lambda: re.compile(r"(?!)"))
    bad: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Target:
    """Some decoders that are tried together.

    Attributes:
        name: For the command line, and of files of findings.
        decoders: Their qualified names: what :mod:`tests.fuzz.found` finds in the tree must stand in one of these.
        kit: Makes the rest.
        weight: Its share of all inputs: more for what strangers reach first, less for what is slow.
    """

    name: str
    decoders: tuple[str, ...]
    kit: Callable[[], Kit]
    weight: float = 4.0


def judge(decode: Decode, *errors: type[Exception]) -> Callable[[bytes], tuple[Verdict, Any]]:
    """What a decoder says, with the value where it gives one; only its own errors are refusals."""

    def judged(data: bytes) -> tuple[Verdict, Any]:
        try:
            return None, decode(data)
        except errors as error:
            if isinstance(error, tuple(_NOT_OURS)):
                raise
            return Refused.of(error), None

    return judged


_NOT_OURS: Final = (AssertionError, MemoryError, RecursionError)


def plainly(
    decode: Decode, *errors: type[Exception], check: Callable[[bytes, Any], None] | None = None
) -> Callable[[bytes], Verdict]:
    """The attempt of one decoder.

    Args:
        decode: Under test.
        errors: Its documented ones.
        check: Of the bytes and the value that they gave; what it raises is a finding.
    """
    judged = judge(decode, *errors)

    def attempt(data: bytes) -> Verdict:
        verdict, value = judged(data)
        if verdict is None and check is not None:
            check(data, value)
        return verdict

    return attempt


def expect(holds: object, what: str) -> None:
    """Raises BrokenPromiseError unless it holds."""
    if not holds:
        raise BrokenPromiseError(what)


def same_bytes(encode: Callable[[Any], bytes]) -> Callable[[bytes, Any], None]:
    """A check that a value has no other bytes than those that it was read from."""

    def check(data: bytes, value: Any) -> None:
        again = encode(value)
        expect(again == data, f"read from other bytes than it is written to: {again[:80]!r}")

    return check
