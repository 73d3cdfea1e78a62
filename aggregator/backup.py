"""`hushsum admin backup` and `restore`: a copy of a running service's store, log and receipts, and the way back.

A back-up is taken in this order: store, log, receipts. So the log is never older than the store, and the receipts are
never older than either. Then it is opened, as a start would: if a window was released meanwhile, the parts may not fit
each other, and it is taken again. A manifest is written last: a folder without one is no back-up.

A restore takes the receipts from where they survived, never from a back-up: these are what tells which outcomes were
published after it was taken.
"""

import hashlib
import json
import os
import shlex
import shutil
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aggregator.config import Config
from aggregator.data_dir import FILE_MODE, FOLDER_MODE, DataDir
from aggregator.errors import AggregatorError, LogGapError, ReceiptsError
from aggregator.log.sqlite import LOG_FILE, SqliteLog
from aggregator.model import RegisteredPlan
from aggregator.release.lost import LostOutcomes, find_lost, mark_every_lost
from aggregator.release.receipts import ALL_LOST, ReceiptLines, ReceiptsFile, plural, reconcile
from aggregator.release.receipts_copy import check_prefix
from aggregator.runtime import Runtime
from aggregator.sqlite import DatabaseKind
from aggregator.store.schema import STORE_FILE
from aggregator.store.store import Store, open_sqlite_store, read_sqlite_store
from hushsum.entropy import OsEntropy
from hushsum.fsync import sync_folder, write_whole

MANIFEST: Final = "manifest.json"
MANIFEST_FORMAT: Final = 1
STORE, LOG, RECEIPTS = "store.db", "log.db", "receipts.jsonl"
_DATABASES: Final = {STORE: STORE_FILE, LOG: LOG_FILE}
_TRIES: Final = 5  # a window may be released during each
OLDER: Final = (
    "the store was written by an older version: start the service once with this version, and back it up then"
)
_BYTES_MAX: Final = 1 << 20  # of a manifest


class BackupError(AggregatorError):
    """A back-up cannot be taken, or is not what it should be."""


@dataclass(frozen=True)
class BackedUp:
    """What a back-up has.

    Attributes:
        files: SHA-256 by name, hexadecimal.
        plans: (name, published outcomes) of each.
        receipts: Their lines.
    """

    made_ms: int
    files: Mapping[str, str]
    plans: Sequence[tuple[str, int]]
    receipts: int


@dataclass(frozen=True)
class Restored:
    """What a restore has proved: every outcome of some receipts is in the store, but for those that are lost.

    Attributes:
        lost: What the store lacks; nothing but where it was to be marked.
        receipts: How many were compared.
        places: Where they are.
        other_copy: Where the store knows a copy of its receipts that was not compared; empty if there is none.
    """

    lost: LostOutcomes
    receipts: int
    places: str
    other_copy: str = ""


async def back_up(config: Config, target: Path, runtime: Runtime) -> BackedUp:
    """Copies store, log and receipts of a service in one process, which may run, into a new folder, and opens the copy.

    Neither tokens, keys nor certificates are in the data folder:
    they are not copied.

    Raises:
        BackupError: The target exists, there is no store, or the copies do not fit each other after some tries.
        AggregatorError: A file is damaged, or of a newer format.
    """
    data = config.folder
    if not await runtime.blocking((data / STORE).exists):
        raise BackupError(f"{data}: no {STORE}: it is no data directory of a service in one process")
    await runtime.blocking(made_folder, target)
    try:
        return await _taken(data, config.receipts or data / RECEIPTS, target, runtime)
    except BaseException:
        await runtime.blocking(shutil.rmtree, target)
        raise


def made_folder(target: Path) -> None:
    """A new folder for a back-up.

    Raises:
        BackupError: It exists, or cannot be made.
    """
    try:
        target.mkdir(mode=FOLDER_MODE)
    except FileExistsError as error:
        raise BackupError(f"{target}: it exists; a back-up goes into a new directory") from error
    except OSError as error:
        raise BackupError(f"{target}: cannot be made: {error.strerror}") from error


async def _taken(data: Path, receipts: Path, target: Path, runtime: Runtime) -> BackedUp:
    plans: list[tuple[str, int]] = []
    for attempt in range(1, _TRIES + 1):
        try:
            for name, kind in _DATABASES.items():
                await runtime.blocking(_copy_database, kind, data / name, target / name)
            await runtime.blocking(_copy_receipts, receipts, target / RECEIPTS)
            plans = await _opened(target, runtime)
            break
        except (LogGapError, ReceiptsError) as error:
            if attempt == _TRIES:
                raise BackupError(
                    f"{_TRIES} times the copies of store, log and receipts did not fit each other: {error}. Stop the "
                    "service, and find out why: `hushsum admin verify`"
                ) from error
    lines = (await _read(target / RECEIPTS, runtime)).lines
    return await write_back_up(target, [STORE, LOG, RECEIPTS], plans, lines, runtime)


async def write_back_up(
    target: Path,
    names: Sequence[str],
    plans: Sequence[tuple[str, int]],
    lines: ReceiptLines,
    runtime: Runtime,
    **more: object,
) -> BackedUp:
    """Writes the manifest of files that are there: from here on it is a back-up. ``more`` are other fields of it."""
    files = {name: await runtime.blocking(_sha256, target / name) for name in names}
    backed_up = BackedUp(runtime.now_ms(), files, plans, lines.mark.lines)
    manifest = {
        "format": MANIFEST_FORMAT,
        "made_ms": backed_up.made_ms,
        "files": {name: {"bytes": (target / name).stat().st_size, "sha256": files[name]} for name in files},
        "plans": [{"name": name, "published_outcomes": count} for name, count in plans],
        "receipts": {"id": lines.mark.id.hex(), "lines": lines.mark.lines, "digest": lines.mark.digest.hex()},
        **more,
    }
    await runtime.blocking(_write_manifest, target, manifest)
    return backed_up


async def copied_store(source: Path, target: Path, runtime: Runtime) -> Store:
    """A copy of a store in a file, which may be in use, opened to be read alone."""
    await runtime.blocking(_copy_database, STORE_FILE, source, target)
    store, is_current = await read_sqlite_store(target, runtime)
    if not is_current:
        await store.close()
        raise BackupError(OLDER)
    return store


async def _opened(folder: Path, runtime: Runtime) -> list[tuple[str, int]]:
    """Opens copies as a start does, and compares them; (name, published outcomes) of each plan.

    Raises:
        LogGapError: The log lacks what the folds need next.
        ReceiptsError: The receipts lack an outcome of the store, or the store lacks one of theirs.
        AggregatorError: A file is damaged.
    """
    store, is_current = await read_sqlite_store(folder / STORE, runtime)
    try:
        if not is_current:
            raise BackupError(OLDER)
        receipts = await ReceiptsFile.open(folder / RECEIPTS, runtime, OsEntropy(), repairs=False)
        found = []
        for plan in await store.plans():
            await _check_log(folder, store, plan, runtime)
            problem, _ = await reconcile(plan.plan_id, store, receipts, fence=None)
            if problem:
                raise ReceiptsError(problem)
            found.append((plan.name, sum(each.published for each in await store.outcomes(plan.plan_id))))
        return found
    finally:
        await store.close()


async def _check_log(folder: Path, store: Store, plan: RegisteredPlan, runtime: Runtime) -> None:
    passed = {partition: mark.position for partition, mark in (await store.fold_marks(plan.plan_id)).items()}
    await SqliteLog.look(folder / LOG, plan.plan_id, plan.partitions, passed, runtime)


async def restore(
    source: Path, target: Path, receipts: Sequence[Path], runtime: Runtime, *, marks_lost: bool = False
) -> Restored:
    """Makes a data folder of a back-up and of the newest receipts that survived; nothing is started.

    Args:
        source: The back-up; its digests are compared.
        target: The new data folder; it must be empty or not exist.
        receipts: Every file of receipts, or of their copy, that survived. The longest is taken; the others, and that of
            the back-up, must be beginnings of it. One that the back-up's own is longer than did not survive: it is an
            older copy, and does not tell what was published after the back-up was taken. No more do the files of a
            back-up, this one or another, which are refused.
        runtime: Runs what blocks.
        marks_lost: Whether outcomes that the receipts prove and the store lacks are marked as lost. Without that they
            are an error.

    Raises:
        BackupError: The source is no back-up or was changed, receipts are those of a back-up or cut off, the target is
            not empty, or outcomes are lost.
        ReceiptsError: The receipts are not those of the back-up's store, or contradict each other.
        StoreError: A cumulative sequence has lost steps.
    """
    await runtime.blocking(check_digests, source, {STORE, LOG, RECEIPTS})
    if not receipts:
        raise BackupError(
            f"receipts that survived are required: they tell what was published after the back-up was taken. {ALL_LOST}"
        )
    for path in receipts:
        if await runtime.blocking(_is_of_a_back_up, path, source):
            raise BackupError(
                f"receipts {path}: this file is part of a back-up, and cannot tell what was published after that was "
                "taken: those windows would be drawn again. Give the receipts that the service wrote last "
                "(receipts.jsonl in its data directory, or the file of the setting receipts), or their copy "
                f"(receipts_copy). {ALL_LOST}"
            )
    newest = await _newest(source / RECEIPTS, receipts, runtime)
    made = await runtime.blocking(_make_empty, target)
    try:
        return await _restored(source, target, newest, receipts, runtime, marks_lost=marks_lost)
    except BaseException:
        await runtime.blocking(_remove, target, made)
        raise


def _is_of_a_back_up(path: Path, source: Path) -> bool:
    """Whether receipts are in the back-up ``source``, are its own by another name, or those of another back-up.

    A data directory that was copied from a back-up by hand may still have its manifest: what its service wrote since is
    not in that.
    """
    real, own = Path(os.path.realpath(path)), source / RECEIPTS
    if real.is_relative_to(os.path.realpath(source)) or (path.exists() and own.exists() and path.samefile(own)):
        return True
    try:
        with (real.parent / MANIFEST).open("rb") as file:
            written = json.loads(file.read(_BYTES_MAX))["files"][real.name]["sha256"]
        return bool(written == _sha256(real))
    except (OSError, ValueError, KeyError, TypeError):  # it lies beside no manifest of a back-up
        return False


def _make_empty(folder: Path) -> bool:
    """Whether the folder was made; an empty one may exist."""
    made = not folder.exists()
    try:
        folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
        if any(folder.iterdir()):
            raise BackupError(f"{folder}: not empty: a restore goes into an empty directory")
    except OSError as error:
        raise BackupError(f"{folder}: cannot be used: {error.strerror}") from error
    return made


def _remove(folder: Path, made: bool) -> None:  # noqa: FBT001  called in a thread, by its places
    for path in folder.iterdir():
        path.unlink()
    if made:
        folder.rmdir()


async def _restored(
    source: Path, target: Path, newest: Path, given: Sequence[Path], runtime: Runtime, *, marks_lost: bool
) -> Restored:
    for path in (newest, source / STORE, source / LOG):  # a kill never leaves a store without its receipts
        await runtime.blocking(_copy, path, target / (RECEIPTS if path == newest else path.name))
    async with AsyncExitStack() as stack:
        stack.callback(DataDir.open(target).close)
        store = await open_sqlite_store(target / STORE, runtime)
        stack.push_async_callback(store.close)
        found = await ReceiptsFile.open(target / RECEIPTS, runtime, OsEntropy())
        for registered in await store.plans():
            await _check_log(target, store, registered, runtime)
        if marks_lost:
            lost = await mark_every_lost(store, found, runtime, owner="hushsum admin restore")
        else:
            lost = await find_lost(store, found)
            check_nothing_lost(lost, "--mark-lost")
        bound, count = await store.receipts_mark(), len(await found.read())
    sync_folder(target)
    known = "" if bound is None else bound.copy.removeprefix("receipts ")
    is_given = await runtime.blocking(_is_among, known, given)
    return Restored(lost, count, str(newest), "" if is_given else known)


def _is_among(place: str, given: Sequence[Path]) -> bool:
    """Whether one of the files is at this place."""
    path = Path(place).absolute()
    return any(path == each.absolute() or (path.exists() and path.samefile(each)) for each in given)


def check_nothing_lost(lost: LostOutcomes, marks: str) -> None:
    """Raises BackupError if a back-up lacks outcomes; ``marks`` is what marks them."""
    if not lost.windows and not lost.unknown:
        return
    later = (
        ". A plan that was registered later must be started once with its plan file; then `hushsum admin mark-lost` "
        "marks its outcomes"
    )
    raise BackupError(
        f"the back-up is older than the receipts: it lacks outcomes that were published after it was taken: {lost}. "
        f"Restore a newer back-up; if there is none, {marks} enters their charges, and they are never drawn again"
        + (later if lost.unknown else "")
        + "".join(
            f". Plan {name!r} cannot go on with this one in either case: {why}" for name, why in lost.gaps.items()
        )
    )


async def _newest(backed_up: Path, given: Sequence[Path], runtime: Runtime) -> Path:
    """The longest of some files of receipts, of which the others, and that of the back-up, are beginnings.

    Raises:
        BackupError: The back-up's own file is longer than each of them, or one ends with an incomplete line that no
            other one has.
        ReceiptsError: They contradict each other, or one cannot be read.
    """
    read = {path: await _read(path, runtime) for path in dict.fromkeys(given)}
    longest = max(read, key=lambda path: len(read[path].lines.kept))
    own, newest = (await _read(backed_up, runtime)).lines, read[longest].lines
    check_newer(newest, own)
    for path, each in read.items():
        check_prefix(each.lines, newest)
        if each.is_torn and len(each.lines.kept) == len(newest.kept):
            count = each.lines.mark.lines
            raise BackupError(
                f"receipts {path}: the last line is incomplete: either the file was cut off while it was copied, and "
                "receipts are missing whose windows would be drawn again; or the service was killed while it wrote the "
                "line. Name the whole file, or another one that has this line. Only if it is certain that the service "
                f"itself left the file so, as in a power cut: `head -n {count} {shlex.quote(str(path))} > whole.jsonl` "
                "leaves the line out, and use this command again with whole.jsonl in place of the file"
            )
    return longest


def check_newer(newest: ReceiptLines, own: ReceiptLines) -> None:
    """Checks that the newest receipts that survived have all lines of the back-up's own.

    Raises:
        BackupError: They are older than the back-up.
        ReceiptsError: They contradict the back-up's own.
    """
    if len(newest.kept) < len(own.kept):
        check_prefix(newest, own)
        raise BackupError(
            f"{newest.where}: {plural(len(newest.kept), 'line')}, and the back-up's own receipts have {len(own.kept)}: "
            "they are older than the back-up, and cannot tell what was published after it was taken. The newest "
            f"receipts that survived are required. {ALL_LOST}"
        )
    check_prefix(own, newest)


async def _read(path: Path, runtime: Runtime) -> ReceiptsFile:
    if not await runtime.blocking(path.exists):
        raise ReceiptsError(
            f"receipts {path}: no such file: is its disk mounted? Name every one that survived, and no other"
        )
    return await ReceiptsFile.open(path, runtime, OsEntropy(), repairs=False)


def _copy_database(kind: DatabaseKind, source: Path, target: Path) -> None:
    """One moment of a database that may be in use."""
    target.unlink(missing_ok=True)
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, FILE_MODE))
    with closing(kind.open_reading(source)) as here, closing(sqlite3.connect(target)) as there:
        try:
            here.backup(there)
        except sqlite3.Error as error:
            raise kind.translated(error) from error
    _sync(target)


def _copy_receipts(source: Path, target: Path) -> None:
    """All complete lines: one that is being written is of an outcome that is not visible yet."""
    try:
        data = source.read_bytes() if source.exists() else b""
    except OSError as error:
        raise BackupError(f"receipts {source}: {error.strerror}") from error
    target.unlink(missing_ok=True)
    _write(target, data[: data.rfind(b"\n") + 1])


def _copy(source: Path, target: Path) -> None:
    os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, FILE_MODE))
    try:
        shutil.copyfile(source, target)
    except OSError as error:
        raise BackupError(f"{source}: {error.strerror}") from error
    _sync(target)


def _write(path: Path, data: bytes) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, FILE_MODE))
    path.write_bytes(data)
    _sync(path)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    sync_folder(folder)
    write_whole(folder / MANIFEST, json.dumps(manifest, indent=2).encode() + b"\n")
    (folder / MANIFEST).chmod(FILE_MODE)


def check_digests(source: Path, expected: Collection[str]) -> None:
    """Compares the files of a back-up with its manifest, which must name the expected ones.

    Raises:
        BackupError: It is no back-up, of another kind, or a file was changed.
    """
    path = source / MANIFEST
    try:
        with path.open("rb") as file:
            manifest = json.loads(file.read(_BYTES_MAX))
        number, files = manifest["format"], {str(name): str(each["sha256"]) for name, each in manifest["files"].items()}
    except OSError as error:
        raise BackupError(f"{path}: {error.strerror}: {source} is no back-up, or it was not completed") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BackupError(f"{path}: it is no manifest of a back-up") from error
    if number != MANIFEST_FORMAT:
        raise BackupError(f"{path}: format {number}; this version reads {MANIFEST_FORMAT}: update Hushsum")
    if files.keys() != set(expected):
        kinds = f"{', '.join(sorted(files))}, expected {', '.join(sorted(expected))}"
        raise BackupError(f"{path}: it names {kinds}: it is a back-up of a service with another log or store")
    for name, written in files.items():
        try:
            came = _sha256(source / name)
        except OSError as error:
            raise BackupError(f"{source / name}: {error.strerror}") from error
        if came != written:
            raise BackupError(f"{source / name}: its digest is {came[:12]}, expected {written[:12]}: it was changed")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
