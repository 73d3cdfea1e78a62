"""Releases in ``.hush`` files as a source of the page, for `hushsum view`."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hushsum.errors import ReleaseError
from hushsum.plan import Plan
from hushsum.release_format import COUNTERS_MAX
from hushsum.releases import Release
from hushsum_page.source import ID_DIGITS, RELEASED, MissingReleaseError, OutcomeEntry, PlanEntry


@dataclass(frozen=True)
class _File:
    path: Path
    plan: Plan
    outcome: OutcomeEntry


class FilesSource:
    """The releases of some files, by their plans. A file is read again when it is shown, and must not have changed.

    Args:
        paths: Of ``.hush`` files; a file with the same bytes as another is shown once.
        counters_max: A release with more counters is refused, before anything of that size is allocated.

    Raises:
        ReleaseError: A file is no release, or has more counters; the text names it.
        OSError: One cannot be read.
    """

    title = "Releases in files"

    def __init__(self, paths: Iterable[Path], *, counters_max: int = COUNTERS_MAX) -> None:
        self._files: dict[str, _File] = {}
        for path in paths:
            data = path.read_bytes()
            try:
                release = Release.from_bytes(data, counters_max=counters_max)
            except ReleaseError as error:
                raise ReleaseError(f"{path}: {error}") from error
            id = _id_of(data)
            outcome = OutcomeEntry(id, RELEASED, release.kind, release.window, len(data), path.name)
            self._files.setdefault(id, _File(path, release.plan, outcome))

    async def plans(self) -> list[PlanEntry]:
        """In the order of the files; of a plan the newest window first."""
        found: dict[bytes, tuple[Plan, list[OutcomeEntry]]] = {}
        for file in self._files.values():
            found.setdefault(file.plan.id, (file.plan, []))[1].append(file.outcome)
        return [
            PlanEntry(plan, tuple(sorted(outcomes, key=lambda each: -1 if each.window is None else -each.window)))
            for plan, outcomes in found.values()
        ]

    async def data(self, plan: Plan, outcome: OutcomeEntry) -> bytes:
        """The bytes of the file, as they were at the start."""
        file = self._files.get(outcome.id)
        if file is None or file.plan != plan:
            raise MissingReleaseError(f"no release {outcome.id}")
        try:
            data = file.path.read_bytes()
        except OSError as error:
            raise MissingReleaseError(f"the file {file.path.name} cannot be read any more: {error.strerror}") from error
        if _id_of(data) != outcome.id:
            raise MissingReleaseError(f"the file {file.path.name} has changed: start `hushsum view` again")
        return data


def _id_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:ID_DIGITS]
