"""Files and folders that nobody but this process's user may read: they hold exact counts, and who contributed.

The mode is given when a file is made, never after, so that there is no moment in which others can open it; and no mask
of the process is changed, which its other threads would share.
"""

import os
import stat
from pathlib import Path
from typing import Final

FILE_MODE: Final = 0o600
FOLDER_MODE: Final = 0o700
_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO


def make_private_file(path: Path) -> None:
    """Makes an empty file where there is none; one that is there stays, and is closed to others.

    A file that is there is never opened: closing it again would drop the locks that SQLite holds on it here.

    Raises:
        OSError: It cannot be made, or is another user's and open to others.
    """
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE))
    except FileExistsError:
        close_to_others(path)


def close_to_others(path: Path) -> bool:
    """Takes away what others may do with a file or a folder that is there; whether there was anything to take.

    Raises:
        OSError: It is not there, or is another user's.
    """
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & _OTHERS:
        path.chmod(mode & ~_OTHERS)
    return bool(mode & _OTHERS)
