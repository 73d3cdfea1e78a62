"""The cohort of a secure sum (``[privacy.secure]``): who is invited, who may be corrupt or vanish, and what follows.

The derived numbers are exact, with every rounding against us: the corrupt are rounded up, those that may vanish down.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Final, Self

from hushsum.canonical import INTEGER_LIMIT, real_text
from hushsum.errors import Missing, PlanError
from hushsum.privacy.cohort_draw import BAD_DRAW, corrupt_drawn
from hushsum.privacy.graph_degree import DEGREE_MAX, Degrees, degrees
from hushsum.schedule import duration, duration_text
from hushsum.schema import Table

#: X25519, HKDF-SHA256, AES-256, Ed25519: the one that is built.
SUITE: Final = 1
#: Rounds of one window in which a client opens its part of the graph's order: a server that may retry may choose.
ATTEMPTS_MAX: Final = 8
#: The probability that the protocol fails one window's client, over all its attempts: 2^-40 each.
FAILURE: Final = Fraction(ATTEMPTS_MAX, 2**40)
#: The same where cohorts are drawn from a pool: no attempt needs more than one draw.
FAILURE_DRAWN: Final = FAILURE + ATTEMPTS_MAX * BAD_DRAW

MALICIOUS: Final = "malicious"
HONEST_BUT_CURIOUS: Final = "honest-but-curious"
ADVERSARIES: Final = (MALICIOUS, HONEST_BUT_CURIOUS)

SIZE_MIN, SIZE_MAX = 3, 10_000
#: Each that waits holds an open call at one gateway: more would not fit there, and would hardly allow less corrupt.
POOL_MAX: Final = 1_000_000
_HALF: Final = Fraction(1, 2)
#: ``privacy.secure.failures``: failures may use the whole of total_delta, or the part of it that is kept for them.
WHOLE: Final = "whole"
RESERVED: Final = "reserved"
_SHARE: Final = "a number from 0 to below 0.5"
_HEX: Final = frozenset("0123456789abcdef")
_DIRECTORY_DIGITS: Final = 64
_KEY: Final = "privacy.secure"


@dataclass(frozen=True)
class Cohort:
    """Who takes part in one round of a secure sum.

    Attributes:
        suite: Of key agreement, cipher and signature; 1.
        size: N, the clients invited to a round: 3 to 10,000.
        corrupt: γ, the greatest share of them that may be corrupt: 0 to below ½; with a pool at least what follows
            from it (:attr:`corrupt_needed`).
        dropout: The greatest share that may vanish: 0 to below ½.
        adversary: ``malicious``, or ``honest-but-curious``: a server that keeps to the protocol, and weaker degrees.
        directory: The digest of the client directory, 64 hexadecimal digits; empty: the server is trusted to pass on
            keys truthfully.
        wait_ms: The longest wait for a cohort to fill, in milliseconds.
        fleet_corrupt: c (``corrupt_clients``), how many clients of the whole fleet may be corrupt; None: nothing is
            said of it, and γ is assumed of every cohort, however it is formed.
        pool: P, the least number of clients that wait where a cohort is drawn from them, uniformly: above N, to
            1,000,000; 0: with ``fleet_corrupt`` None, and no cohort need be drawn.
        reserved: Whether failures use no more than an eighth of the population's total δ, so that a ledger may count
            pure windows by the zCDP that they imply (``failures = "reserved"``).

    Raises:
        PlanError: No round can be as these ask; it names the key under ``privacy.secure``.
    """

    suite: int = SUITE
    size: int = 100
    corrupt: Fraction = Fraction(1, 10)
    dropout: Fraction = Fraction(1, 10)
    adversary: str = MALICIOUS
    directory: str = ""
    wait_ms: int = 30_000
    fleet_corrupt: int | None = None
    pool: int = 0
    reserved: bool = False

    def __post_init__(self) -> None:
        self._check_keys()
        try:
            self._check_rounds()
        except PlanError as error:
            if not self.pool or self.corrupt_clients > self.corrupt_needed:
                raise
            raise _refused_pool(self.fleet_corrupt, self.pool, self.size, str(error)) from error

    def _check_rounds(self) -> None:
        """Refuses numbers with which no round can end well."""
        if self.honest_survivors < 1:
            raise PlanError(
                f"{_KEY}.corrupt",
                real_text(self.corrupt),
                f"less, or less dropout: of the {self.survivors_min} clients that stay, {self.corrupt_clients} may be "
                "corrupt, and that leaves no honest one",
            )
        if self.quorum(self.size) > self.survivors_min:
            raise PlanError(
                f"{_KEY}.dropout",
                real_text(self.dropout),
                f"less, or less corrupt: {self.quorum(self.size)} of {self.size} clients must sign who survived, and "
                f"only {self.survivors_min} need stay",
            )
        assert 1 <= self.threshold <= self.degree <= DEGREE_MAX
        if self.threshold > self.survivors_min - 1:
            raise PlanError(
                f"{_KEY}.cohort",
                self.size,
                f"more clients, or less dropout: {self.threshold} neighbours open a mask, and of {self.size} clients "
                f"only {self.survivors_min - 1} others need stay",
            )

    def _check_keys(self) -> None:
        if type(self.suite) is not int or self.suite != SUITE:
            raise PlanError(f"{_KEY}.suite", self.suite, str(SUITE))
        if type(self.size) is not int or not SIZE_MIN <= self.size <= SIZE_MAX:
            raise PlanError(f"{_KEY}.cohort", self.size, f"an integer from {SIZE_MIN} to {SIZE_MAX}")
        _check_pool(self.fleet_corrupt, self.pool, self.size)
        for key, share in (("corrupt", self.corrupt), ("dropout", self.dropout)):
            if not isinstance(share, Fraction) or not 0 <= share < _HALF:
                came = real_text(share) if isinstance(share, Fraction) else share
                raise PlanError(f"{_KEY}.{key}", came, _SHARE)
        if self.adversary not in ADVERSARIES:
            raise PlanError(f"{_KEY}.adversary", self.adversary, " or ".join(map(repr, ADVERSARIES)))
        if self.directory and (len(self.directory) != _DIRECTORY_DIGITS or not set(self.directory) <= _HEX):
            expected = "64 lower-case hexadecimal digits, or no key registry"
            raise PlanError(f"{_KEY}.directory", self.directory, expected)
        if type(self.wait_ms) is not int or self.wait_ms < 1:
            raise PlanError(f"{_KEY}.cohort_wait", self.wait_ms, "a duration of at least 1 ms")
        if self.corrupt_clients < (needed := self.corrupt_needed):
            expected = (
                f"at least {real_text(Fraction(needed, self.size))}: {self.fleet_corrupt} corrupt clients in a pool "
                f"of {self.pool} allow {needed} corrupt in a cohort of {self.size}, this is {self.corrupt_clients}"
            )
            raise PlanError(f"{_KEY}.corrupt", real_text(self.corrupt), expected)

    @classmethod
    def from_table(cls, table: Table) -> Self:
        """Reads ``[privacy.secure]``.

        Raises:
            PlanError: With the key, what came and what was expected.
        """
        size = table.integer("cohort", low=SIZE_MIN, high=SIZE_MAX, default=100)
        fleet_corrupt = (
            table.integer("corrupt_clients", low=0, high=INTEGER_LIMIT) if table.has("corrupt_clients") else None
        )
        pool = table.integer("pool", low=SIZE_MIN + 1, high=POOL_MAX) if table.has("pool") else 0
        corrupt = "0.1"
        if fleet_corrupt is not None or pool:
            corrupt = real_text(Fraction(_check_pool(fleet_corrupt, pool, size), size))
        cohort = cls(
            suite=table.integer("suite", low=SUITE, high=SUITE, default=SUITE),
            size=size,
            corrupt=table.real("corrupt", expected=_SHARE, default=corrupt),
            dropout=table.real("dropout", expected=_SHARE, default="0.1"),
            adversary=table.choice("adversary", built=ADVERSARIES, default=MALICIOUS),
            directory=table.text("directory", ""),
            wait_ms=duration(table, "cohort_wait", "30s", low_ms=1),
            fleet_corrupt=fleet_corrupt,
            pool=pool,
            reserved=table.choice("failures", built=(WHOLE, RESERVED), default=WHOLE) == RESERVED,
        )
        table.finish()
        return cohort

    def to_fields(self) -> dict[str, object]:
        """Every key of ``[privacy.secure]``, canonical; those of a pool, and ``failures``, only where they are set."""
        fields: dict[str, object] = {
            "suite": self.suite,
            "cohort": self.size,
            "corrupt": real_text(self.corrupt),
            "dropout": real_text(self.dropout),
            "adversary": self.adversary,
            "directory": self.directory,
            "cohort_wait": duration_text(self.wait_ms),
        }
        if self.pool:
            fields |= {"corrupt_clients": self.fleet_corrupt, "pool": self.pool}
        if self.reserved:
            fields["failures"] = RESERVED
        return fields

    @property
    def failure(self) -> Fraction:
        """The probability that δ pays for in a window: that the protocol fails, or that a cohort is drawn badly."""
        return FAILURE_DRAWN if self.pool else FAILURE

    @property
    def corrupt_needed(self) -> int:
        """The least :attr:`corrupt_clients` that the pool allows; 0 without one."""
        if self.fleet_corrupt is None:
            return 0
        return corrupt_drawn(self.pool, self.fleet_corrupt, self.size)

    @property
    def corrupt_clients(self) -> int:
        """⌈γN⌉: the most of a cohort that may be corrupt."""
        return -(-self.corrupt.numerator * self.size // self.corrupt.denominator)

    @property
    def survivors_min(self) -> int:
        """N − ⌊dropout·N⌋: with fewer survivors a round ends without a sum."""
        return self.size - self.dropout.numerator * self.size // self.dropout.denominator

    @property
    def honest_survivors(self) -> int:
        """h: the least number of honest survivors, whose noise is what the guarantee counts."""
        return self.survivors_min - self.corrupt_clients

    def quorum(self, members: int) -> int:
        """How many of a roster must sign the survivors before a client reveals anything: more than half of it + γN.

        Two such quorums for different survivors then share an honest client, and that signs once.
        """
        return (members + self.corrupt_clients) // 2 + 1

    @property
    def degree(self) -> int:
        """k: the neighbours of a client, with whom it shares masks."""
        return self._degrees.degree

    @property
    def threshold(self) -> int:
        """t: how many of them open a mask together."""
        return self._degrees.threshold

    @property
    def window_survivors(self) -> int:
        """How many survivors each run of k/2 places of the graph must hold; 0: that is not looked at."""
        return self._degrees.window_survivors

    @cached_property
    def _degrees(self) -> Degrees:
        malicious = self.adversary == MALICIOUS
        try:
            return degrees(self.size, self.survivors_min, self.corrupt_clients, malicious=malicious)
        except ValueError as error:
            raise PlanError(f"{_KEY}.cohort", self.size, f"a cohort with a safe graph ({error})") from error


def _check_pool(fleet_corrupt: int | None, pool: int, size: int) -> int:
    """How many clients of a cohort may be corrupt, if c and P allow any cohort of N at all; 0 where neither stands."""
    key = f"{_KEY}.corrupt_clients"
    if fleet_corrupt is None and pool == 0:
        return 0
    if fleet_corrupt is None:
        expected = "the number of corrupt clients in the fleet, required with pool"
        raise PlanError(key, Missing.MISSING, expected)
    if type(fleet_corrupt) is not int or not 0 <= fleet_corrupt <= INTEGER_LIMIT:
        raise PlanError(key, fleet_corrupt, f"an integer from 0 to {INTEGER_LIMIT}")
    if pool == 0:
        expected = "the number of clients that must wait before a cohort is drawn, required with corrupt_clients"
        raise PlanError(f"{_KEY}.pool", Missing.MISSING, expected)
    if type(pool) is not int or not size < pool <= POOL_MAX:
        raise PlanError(f"{_KEY}.pool", pool, f"an integer above cohort ({size}), to {POOL_MAX}")
    corrupt = corrupt_drawn(pool, fleet_corrupt, size)
    if 2 * corrupt >= size:
        raise _refused_pool(fleet_corrupt, pool, size, "fewer than half of it may be")
    return corrupt


def _refused_pool(fleet_corrupt: int | None, pool: int, size: int, why: str) -> PlanError:
    """Blames c and P for what γ makes impossible, where γ follows from them."""
    assert fleet_corrupt is not None, "a pool has both numbers"
    corrupt = corrupt_drawn(pool, fleet_corrupt, size)
    expected = (
        f"fewer, or a larger pool or cohort: {fleet_corrupt} corrupt clients in a pool of {pool} allow {corrupt} "
        f"corrupt in a cohort of {size} ({why})"
    )
    return PlanError(f"{_KEY}.corrupt_clients", fleet_corrupt, expected)
