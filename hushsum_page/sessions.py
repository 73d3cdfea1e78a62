"""Who is signed in: sessions in memory, and the tokens of forms."""

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final, Protocol

from hushsum.entropy import Entropy

#: A session ends so long after it began, whatever happens in it.
SESSION_S_MAX: Final = 8 * 3600.0
#: And so long after its last request.
IDLE_S_MAX: Final = 30 * 60.0
#: Beyond them the one that was idle for longest is ended.
SESSIONS_MAX: Final = 1000
#: And so many of one token, so that nobody ends the sessions of others by signing in.
SESSIONS_OF_ONE_MAX: Final = 16
_SECRET_BYTES: Final = 32


@dataclass(frozen=True)
class Holder:
    """Who has signed in.

    Attributes:
        name: For people.
        may_read: Whether this holder may see published releases.
        may_administer: Whether this holder may see exact counts, and seal and release windows.
        proof: The id of the token, for :class:`Accounts` alone; it is no secret.
    """

    name: str
    may_read: bool
    may_administer: bool
    proof: str = ""

    @property
    def key(self) -> str:
        """Whose share of what all holders use a request takes: that of a token, or of a proxy's name."""
        return self.proof or self.name


class Accounts(Protocol):
    """Who may sign in."""

    @property
    def asks_for(self) -> str:
        """What a holder shows, for the form."""
        ...

    def holder_of(self, token: str) -> Holder | None:
        """The holder of a valid token; None for any other text. The work is the same for both."""
        ...

    def is_good(self, holder: Holder) -> bool:
        """Whether the token that a session began with is still valid, with the same scopes."""
        ...


@dataclass
class Session:
    """One browser that has signed in.

    Attributes:
        holder: Who.
        form_token: What every form of this session sends back, masked.
        began_s: When it began.
        used_s: When its last request was.
    """

    holder: Holder
    form_token: str = field(repr=False)
    began_s: float
    used_s: float


class Sessions:
    """Sessions by the hashes of their cookies' values, so that a copy of this memory opens none.

    Args:
        accounts: Who may sign in.
        entropy: For the values of cookies and forms.
        clock: Seconds that never go back.
        session_s_max: A session ends so long after it began, whatever happens in it.
        idle_s_max: And so long after its last request.
    """

    def __init__(
        self,
        accounts: Accounts,
        entropy: Entropy,
        clock: Callable[[], float],
        *,
        session_s_max: float = SESSION_S_MAX,
        idle_s_max: float = IDLE_S_MAX,
    ) -> None:
        self.accounts = accounts
        self._entropy, self._clock = entropy, clock
        self._session_s_max, self._idle_s_max = session_s_max, idle_s_max
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()  # the one that was used last is at the end

    def __len__(self) -> int:
        return len(self._sessions)

    def secret(self) -> str:
        """A new value that nobody can guess."""
        return _text_of(self._entropy.read(_SECRET_BYTES))

    def masked(self, token: str) -> str:
        """A form token as it stands in a page: other letters in each.

        Pages are compressed, and show what an address says: the length of a page would tell whether its address has a
        part of a secret that is the same in all of them (BREACH).
        """
        mask = self._entropy.read(_SECRET_BYTES)
        return _text_of(mask) + _text_of(_xor(mask, _bytes_of(token)))

    def begin(self, holder: Holder) -> str:
        """Begins a session; the value of its cookie."""
        now_s, value = self._clock(), self.secret()
        own = [key for key, session in self._sessions.items() if session.holder.proof == holder.proof]
        for key in own[: max(0, len(own) + 1 - SESSIONS_OF_ONE_MAX)]:
            del self._sessions[key]
        self._sessions[_digest(value)] = Session(holder, self.secret(), now_s, now_s)
        while len(self._sessions) > SESSIONS_MAX:
            self._sessions.popitem(last=False)
        return value

    def find(self, value: str) -> Session | None:
        """The session of a cookie's value, which is used now; None if there is none, or it has ended."""
        key = _digest(value)
        session = self._sessions.get(key)
        if session is None:
            return None
        now_s = self._clock()
        is_old = now_s - session.began_s >= self._session_s_max or now_s - session.used_s >= self._idle_s_max
        if is_old or not self.accounts.is_good(session.holder):
            del self._sessions[key]
            return None
        session.used_s = now_s
        self._sessions.move_to_end(key)
        return session

    def end(self, value: str) -> None:
        """Ends the session of a cookie's value, if there is one."""
        self._sessions.pop(_digest(value), None)


def is_same(one: str, other: str) -> bool:
    """Whether two secrets are the same, in a time that does not tell where they differ; empty ones never are."""
    return bool(one) and hmac.compare_digest(one.encode(), other.encode())


def is_masked(value: str, token: str) -> bool:
    """Whether a value is what :meth:`Sessions.masked` makes of a form token; an empty token has none."""
    mask, rest = _bytes_of(value[:_TEXT_LETTERS]), _bytes_of(value[_TEXT_LETTERS:])
    return len(mask) == len(rest) == _SECRET_BYTES and is_same(_text_of(_xor(mask, rest)), token)


def _digest(value: str) -> bytes:
    return sha256(value.encode()).digest()


def _text_of(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _bytes_of(text: str) -> bytes:
    """The bytes of a text of :func:`_text_of`; none of another one."""
    try:
        return urlsafe_b64decode(f"{text}=" if text else "")
    except ValueError:
        return b""


def _xor(one: bytes, other: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(one, other, strict=False))


_TEXT_LETTERS: Final = len(_text_of(bytes(_SECRET_BYTES)))


class OneTimeToken:
    """One token for one sign-in, as ``hushsum view`` prints it; it may read.

    Attributes:
        text: The token.
    """

    def __init__(self, entropy: Entropy) -> None:
        self.text = _text_of(entropy.read(_SECRET_BYTES))
        self._is_used = False

    asks_for = "the token of the address that `hushsum view` printed; it opens one session"

    def holder_of(self, token: str) -> Holder | None:
        """The reader, at the first time."""
        is_right = is_same(token, self.text) and not self._is_used
        self._is_used = self._is_used or is_right
        return Holder("reader", may_read=True, may_administer=False) if is_right else None

    def is_good(self, holder: Holder) -> bool:
        """Sessions last as long as the process."""
        return holder.may_read
