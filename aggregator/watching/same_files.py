"""Whether files are still there: SQLite goes on in one that was deleted, and what it writes then is found by nobody."""

from collections.abc import Iterable
from pathlib import Path

from aggregator.errors import StoreUnavailableError
from aggregator.ports import Runtime


class SameFiles:
    """Files that were there when this was made.

    Args:
        paths: Their names; one that is not there now is nobody's business.
        runtime: Threads.
    """

    def __init__(self, paths: Iterable[Path], runtime: Runtime) -> None:
        self._runtime = runtime
        self._known = {path: found for path in paths if (found := _identity(path)) is not None}

    async def look(self) -> None:
        """Looks whether each is still there.

        Raises:
            StoreUnavailableError: One is gone, or another one stands in its place.
        """
        await self._runtime.blocking(self._look)

    def _look(self) -> None:
        for path, known in self._known.items():
            if _identity(path) != known:
                raise StoreUnavailableError(
                    f"{path} is gone, or is another file: what is stored now is lost with this process; stop it, and "
                    "put the file back"
                )


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
