"""Who is whose neighbour in a round: a Harary graph on an order that no one member could choose.

The members of a roster stand in a circle, in an order drawn from the round's transcript, and each has the nearest
``degree / 2`` on either side for neighbours (Bell et al. 2020, §3.3, with a random order as there). The graph is
regular, symmetric and connected; where the degree reaches all others, it is complete.
"""

from typing import Final

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

TRANSCRIPT_BYTES: Final = 32


def order(transcript: bytes, members: int) -> npt.NDArray[np.int64]:
    """The circle: at each place the index of the member who stands there, of shape (members,).

    Each member draws the block of its index from the stream of AES-256 in counter mode under the transcript; they stand
    in rising order of their blocks. No two blocks of a stream are equal, so no order is preferred.

    Raises:
        ValueError: A transcript of another length than 32, or no member.
    """
    if len(transcript) != TRANSCRIPT_BYTES or members < 1:
        raise ValueError(f"expected a transcript of {TRANSCRIPT_BYTES} bytes and a member, got {len(transcript)}")
    stream = Cipher(algorithms.AES(transcript), modes.CTR(bytes(16))).encryptor().update(bytes(16 * members))
    blocks = np.frombuffer(stream, ">u8").reshape(members, 2)
    return np.lexsort((blocks[:, 1], blocks[:, 0]))


def neighbours(transcript: bytes, members: int, degree: int) -> tuple[tuple[int, ...], ...]:
    """For each member of the roster the indices of its neighbours, rising.

    Args:
        transcript: 32 bytes that nobody could foresee or choose.
        members: Length of the roster.
        degree: Neighbours of each: even and at least 2, or no less than all others, which is the complete graph.

    Raises:
        ValueError: A degree or a transcript that is none.
    """
    circle = order(transcript, members)
    reach = _reach(members, degree)
    near = circle[(np.arange(members)[:, None] + reach) % members]
    near.sort(axis=1)
    rows: list[tuple[int, ...]] = [()] * members
    for member, row in zip(circle.tolist(), near.tolist(), strict=True):
        rows[member] = tuple(row)
    return tuple(rows)


def neighbours_of(transcript: bytes, members: int, degree: int, member: int) -> tuple[int, ...]:
    """The neighbours of one member, as in :func:`neighbours`.

    Raises:
        ValueError: As there, or no such member.
    """
    if not 0 <= member < members:
        raise ValueError(f"expected a member below {members}, got {member}")
    circle = order(transcript, members)
    (place,) = np.flatnonzero(circle == member)
    return tuple(np.sort(circle[(place + _reach(members, degree)) % members]).tolist())


def _reach(members: int, degree: int) -> npt.NDArray[np.int64]:
    """Steps along the circle from a member to each of its neighbours."""
    if degree >= members - 1:
        return np.arange(1, members)
    if degree < 2 or degree % 2:
        raise ValueError(f"expected an even degree from 2, or all {members - 1} others, got {degree}")
    half = np.arange(1, degree // 2 + 1)
    return np.concatenate([half, -half])
