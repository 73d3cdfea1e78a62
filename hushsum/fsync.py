"""What makes a change of a folder survive power loss."""

import os
from pathlib import Path


def sync_folder(folder: Path) -> None:
    """Makes a file that was made in a folder, or renamed, durable there.

    Raises:
        OSError: The folder cannot be synced. One that cannot even be opened is none that needs it (Windows).
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:
        return
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
