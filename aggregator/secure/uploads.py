"""Masked vectors as they come in, chunk by chunk: in order, of exactly the plan's length, from those who may send."""

from typing import Final

from hushsum.errors import SecureSumError

CHUNK_BYTES_MAX: Final = 256 * 1024


class Uploads:
    """The vectors of one round that are under way.

    Args:
        total_bytes: Of a packed vector.
        at_once: How many clients may be sending: so many vectors are held here at most.

    Attributes:
        granted: Clients that were ever allowed to send: it may be spent for them.
        begun: Those of whose vector anything came: it is spent for them.
    """

    def __init__(self, total_bytes: int, at_once: int) -> None:
        self._total = total_bytes
        self._at_once = at_once
        self._held: dict[str, bytearray] = {}
        self.granted: set[str] = set()
        self.begun: set[str] = set()

    @property
    def held_bytes(self) -> int:
        """What is held of vectors that are not whole."""
        return sum(map(len, self._held.values()))

    def grant(self, client_id: str) -> None:
        """From here on this client may send its vector."""
        assert len(self._held) < self._at_once, "more uploads granted than this server holds"
        assert client_id not in self.granted, "a vector is granted once"
        self.granted.add(client_id)
        self._held[client_id] = bytearray()

    def drop(self, client_id: str) -> None:
        """It sends nothing more; what came of it is let go."""
        self._held.pop(client_id, None)

    def add(self, client_id: str, offset: int, data: bytes) -> bytes | None:
        """Takes the next chunk.

        Args:
            client_id: Whose.
            offset: Where it stands in the vector: where the last one ended.
            data: 1 to ``CHUNK_BYTES_MAX`` bytes.

        Returns:
            The vector, once it is whole.

        Raises:
            SecureSumError: It was not granted, does not follow the last one, or is too long.
        """
        held = self._held.get(client_id)
        if held is None:
            raise SecureSumError("a chunk of a vector that was not granted, expected none")
        if offset != len(held):
            raise SecureSumError(f"a chunk at {offset}, expected the next one, at {len(held)}")
        if not 1 <= len(data) <= CHUNK_BYTES_MAX:
            raise SecureSumError(f"a chunk of {len(data)} bytes, expected 1 to {CHUNK_BYTES_MAX}")
        if offset + len(data) > self._total:
            raise SecureSumError(f"a vector beyond {self._total} bytes, expected exactly so many")
        self.begun.add(client_id)
        held += data
        if len(held) < self._total:
            return None
        del self._held[client_id]
        return bytes(held)
