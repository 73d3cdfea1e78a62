"""Up to which window something may have left a shuffler: one number in a small file beside the reports.

Were two pools of one window sent, their difference would be what came in between, or what was lost: the reports of one
device, perhaps. A reports file that is put back from before a cut knows nothing of the first pool; this file does, as
long as it is not put back as well. It is written, and durable, before the first byte of a window leaves.

Against a whole folder that is put back from before a cut nothing in the folder can help. While its window is open, that
sends a second pool: such a copy must not be used.
"""

import os
from pathlib import Path
from typing import Final

from aggregator.errors import StoreError, StoreUnavailableError
from aggregator.private_files import make_private_file
from hushsum.durable import sync_folder

_NONE: Final = "none"


class Departures:
    """The file; its methods block.

    Args:
        path: Where it is.
        fresh: Whether the reports file beside it is about to be made: nothing has left, unless this file says so.

    Attributes:
        through: The newest window of which something may have left; None: nothing has.
        known: False where the file is not there and reports are: they were put back without it.

    Raises:
        StoreError: It holds something else, or cannot be read or written.
    """

    def __init__(self, path: Path, *, fresh: bool) -> None:
        self._path = path
        self.through: int | None = None
        self.known = True
        try:
            self.through = _number(path)
        except FileNotFoundError:
            self.known = fresh
            if fresh:
                self._write(_NONE)
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror}") from error
        except ValueError as error:
            raise StoreError(f"{path}: it holds something else than the newest window that has left") from error

    def reach(self, window: int) -> None:
        """Something of this window, and of all before it, may leave once this returns.

        Raises:
            StoreUnavailableError: It could not be written: nothing may leave.
        """
        if self.known and self.through is not None and self.through >= window:
            return
        newest = window if self.through is None else max(self.through, window)
        self._write(str(newest))
        self.through, self.known = newest, True

    def _write(self, text: str) -> None:
        new = self._path.with_name(f"{self._path.name}.new")
        try:
            make_private_file(new)
            with new.open("w", encoding="ascii") as file:
                file.write(f"{text}\n")
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._path)
            sync_folder(self._path.parent)
        except OSError as error:
            raise StoreUnavailableError(f"{self._path}: {error.strerror}") from error


def _number(path: Path) -> int | None:
    text = path.read_text(encoding="ascii").strip()
    return None if text == _NONE else int(text)
