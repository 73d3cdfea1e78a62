"""What makes a new file, and a change of a folder, survive power loss."""

import os
from contextlib import suppress
from pathlib import Path

from hushsum.entropy import OsEntropy


def write_whole(target: Path, data: bytes, *, replace: bool = True) -> None:
    """Writes a file: after a crash there is the whole of it, or what was there before.

    Args:
        target: The file.
        data: All its bytes.
        replace: Whether it replaces a file of this name. If not, none is replaced, also if another process creates it
            while this one is written.

    Raises:
        FileExistsError: The name exists, as a file or a link, and ``replace`` is false. It stays as it is.
        OSError: The file cannot be written.
    """
    new = target.with_name(f".{target.name}.{OsEntropy().read(8).hex()}")
    try:
        with new.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if replace:
            new.replace(target)
        else:
            _rename_to_free_name(new, target)
    except BaseException:
        with suppress(OSError):  # the first error says what is wrong
            new.unlink(missing_ok=True)
        raise
    sync_folder(target.absolute().parent)


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


def _rename_to_free_name(file: Path, target: Path) -> None:
    """Renames a file, unlike ``rename`` without replacing another one.

    Raises:
        FileExistsError: The name exists, as a file or a link.
    """
    try:
        os.link(file, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links: then an empty file of our own is what is replaced
        target.open("xb").close()
        file.replace(target)
    else:
        file.unlink()
