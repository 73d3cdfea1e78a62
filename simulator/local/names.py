"""Whether a service has kept who contributed: every byte of its files is searched for every client's name."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Searched:
    """What a search has come to.

    Attributes:
        names: Of how many clients the name was found.
        bytes: That were looked through.
        control: Whether what is surely there was found: else nothing was looked at.
    """

    names: frozenset[str]
    bytes: int
    control: bool

    def __or__(self, other: "Searched") -> "Searched":
        """Both; each must have found its control."""
        return Searched(self.names | other.names, self.bytes + other.bytes, self.control and other.control)


def search(paths: Iterable[Path], names: Collection[str], control: bytes, *, beside: bytes = b"") -> Searched:
    """Reads files, and those of folders, whole.

    Args:
        paths: Of both; what vanishes meanwhile was of no use to anybody.
        names: As text; SQLite, journals and pages of metrics keep it as UTF-8.
        control: Bytes that are known to be in one of them.
        beside: What else is to be searched, such as a page of metrics.
    """
    found: set[str] = set()
    size, controlled = 0, False
    for content in (*_contents(paths), beside):
        size += len(content)
        controlled = controlled or control in content
        found |= {name for name in names if name.encode() in content}
    return Searched(frozenset(found), size, controlled)


def _contents(paths: Iterable[Path]) -> Iterable[bytes]:
    for path in paths:
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file():
                try:
                    yield file.read_bytes()
                except FileNotFoundError:  # a write-ahead log whose last connection was closed
                    continue
