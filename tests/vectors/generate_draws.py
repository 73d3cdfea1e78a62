"""Writes the frozen public draws of format version 1, once: ``python -m tests.vectors.generate_draws``.

What it has written passes unchanged for ever (tests/hushsum/test_public_random.py), so it refuses to write the file
again.
"""

import json
from pathlib import Path

from hushsum.public_random import PublicSeed, PublicStream

PATH = Path(__file__).parent / "v1" / "draws.json"
STREAMS: tuple[tuple[int, str], ...] = (
    (0, "hashed/euclidean/directions"),
    (0, "hashed/euclidean/offsets"),
    (7, "hashed/rehash"),
    (2**53 - 1, ""),
    (12345, "π"),
)
COUNT = 12
SKIPPED = 1020  # the words beyond it span the end of the first block and the start of the second


def vectors_of(seed: int, purpose: str) -> dict[str, object]:
    """Everything that is frozen of one stream: words and little-endian bytes of float64, in hex."""

    def stream() -> PublicStream:
        return PublicStream(PublicSeed(seed), purpose)

    late = stream()
    late.words(SKIPPED)
    return {
        "seed": seed,
        "purpose": purpose,
        "words": [f"{int(word):016x}" for word in stream().words(COUNT)],
        "words_from_1020": [f"{int(word):016x}" for word in late.words(COUNT)],
        "uniform": stream().uniform(COUNT).astype("<f8").tobytes().hex(),
        "normal": stream().normal(COUNT + 1).astype("<f8").tobytes().hex(),
    }


def main() -> None:
    """Writes the file."""
    with PATH.open("x", encoding="utf-8") as file:
        json.dump([vectors_of(seed, purpose) for seed, purpose in STREAMS], file, indent=1, ensure_ascii=False)
        file.write("\n")


if __name__ == "__main__":
    main()
