"""The command line of a room of benchmarks: which subjects, how much of them, and where their figures go."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol

from benchmarks.report import Row, print_table, write_json

RESULTS: Final = Path(__file__).parent / "results"
_NOTHING: Final[Mapping[str, Callable[[], str | None]]] = MappingProxyType({})


class Subject(Protocol):
    """A module that measures one thing.

    Attributes:
        TITLE: Of its table.
    """

    TITLE: str

    def measure(self, *, quick: bool) -> Sequence[Row]:
        """The rows of its table."""
        ...


@dataclass(frozen=True)
class Room:
    """Subjects that are measured by one command.

    Attributes:
        command: What is typed: ``python -m benchmarks``.
        about: What ``--help`` says first.
        subjects: By name.
        prefix: Of the names of its JSON files.
        needs: Of subjects that not every machine can measure: what is lacking, or None.
    """

    command: str
    about: str | None
    subjects: Mapping[str, Subject]
    prefix: str = ""
    needs: Mapping[str, Callable[[], str | None]] = field(default_factory=lambda: _NOTHING)

    def main(self) -> None:
        """Measures what was asked for, prints a table of each and writes it as JSON."""
        options = self._options()
        folder = options.out or (None if options.quick else RESULTS)
        for name in options.subjects or self.subjects:
            lacking = self.needs.get(name, lambda: None)()
            if lacking is not None:
                print(f"\n{name}: left out: {lacking}")
                continue
            subject = self.subjects[name]
            rows = subject.measure(quick=options.quick)
            print_table(subject.TITLE, rows)
            if folder is not None:
                write_json(folder / f"{self.prefix}{name}.json", subject.TITLE, rows)

    def _options(self) -> argparse.Namespace:
        known = ", ".join(self.subjects)
        parser = argparse.ArgumentParser(prog=self.command, description=self.about)
        parser.add_argument("subjects", nargs="*", metavar="SUBJECT", help=f"some of {known}; default: all")
        parser.add_argument("--quick", action="store_true", help="little of everything: shows that it runs, no figures")
        parser.add_argument(
            "--out", type=Path, default=None, help="folder for the JSON (default: results, not if --quick)"
        )
        options = parser.parse_args()
        for name in options.subjects:
            if name not in self.subjects:
                parser.error(f"no subject {name!r}; there are {known}")
        return options
