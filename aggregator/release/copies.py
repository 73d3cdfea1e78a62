"""Copies of published releases in a folder, an object store or a Kafka topic, for readers that never ask the service.

A copy is made after its release is published: releasing never waits for one. Copies are made in the order of the
windows, and again after a failure or a restart until the destination has them: one of another size is written again.
A withheld window has none.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

from aggregator.errors import AggregatorError, ConfigError
from aggregator.logs import journal
from aggregator.release.catalog import NotFoundError, ReleaseCatalog
from aggregator.runtime import Backoff, Runtime
from hushsum.fsync import write_whole
from hushsum.plan import Plan
from hushsum.release_format import file_name, safe_name
from hushsum_proto.messages import ReleaseInfo

_PAUSE_S: Final = 1.0  # after the first failure, doubled after each further one
_PAUSE_MAX_S: Final = 60.0

_journal = journal("release copies")


class CopyError(AggregatorError):
    """A copy of a release cannot be made now; it is retried."""


class Destination(Protocol):
    """Where copies go. Both methods may raise CopyError, and are then repeated.

    Attributes:
        where: Its name in messages, without credentials.
    """

    @property
    def where(self) -> str: ...

    async def has(self, window: int, size: int) -> bool:
        """Whether a copy of this window is there that has ``size`` bytes."""

    async def write(self, window: int, data: bytes) -> None:
        """Writes the copy of a window."""


class ReleaseCopier:
    """Follows the catalog, and copies what is published.

    Args:
        on_pending: Called with the destination, and why a copy cannot be written; an empty text: it is written.
        on_copied: Called with the destination and the window after each copy.
    """

    def __init__(
        self,
        catalog: ReleaseCatalog,
        destination: Destination,
        runtime: Runtime,
        *,
        on_pending: Callable[[str, str], None],
        on_copied: Callable[[str, int], None],
    ) -> None:
        self._catalog, self._destination, self._runtime = catalog, destination, runtime
        self._on_pending, self._on_copied = on_pending, on_copied
        self._done: set[int] = set()

    async def run(self) -> None:
        """Copies every published release, and each one as it is published; ends when the service stops."""
        async for info in self._catalog.watch(None):
            if not info.withheld and not info.removed and info.window not in self._done:
                await self._until_copied(info)
                self._done.add(info.window)

    async def _until_copied(self, info: ReleaseInfo) -> None:
        window, where, backoff = info.window, self._destination.where, Backoff(_PAUSE_S, _PAUSE_MAX_S)
        while True:
            try:
                if not await self._destination.has(window, info.size_bytes):
                    await self._destination.write(window, await self._catalog.release(info.kind, window))
                    self._on_copied(where, window)
            except NotFoundError as error:  # it was removed while the destination was away
                _journal.error("release not copied", where=where, window=window, why=str(error))
                return
            except CopyError as error:
                self._on_pending(where, f"window {window}: {error}")
                await self._runtime.sleep(backoff.next_s())
            else:
                self._on_pending(where, "")
                return


class Folder:
    """A folder of ``.hush`` files, one folder a plan within it. After a crash a file is there whole, or not at all.

    Raises:
        ConfigError: It cannot be made.
    """

    def __init__(self, path: Path, plan: Plan, runtime: Runtime) -> None:
        self._path, self._plan, self._runtime = path / folder_name(plan), plan, runtime
        try:
            self._path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"publish: {self._path}: {error.strerror}") from error

    @property
    def where(self) -> str:
        return str(self._path)

    async def has(self, window: int, size: int) -> bool:
        return await self._runtime.blocking(self._has, self._file(window), size)

    async def write(self, window: int, data: bytes) -> None:
        await self._runtime.blocking(self._write, self._file(window), data)

    def _file(self, window: int) -> Path:
        return self._path / file_name(self._plan.name, window)

    def _has(self, file: Path, size: int) -> bool:
        try:
            return file.stat().st_size == size
        except FileNotFoundError:
            return False
        except OSError as error:
            raise CopyError(error.strerror or str(error)) from error

    def _write(self, file: Path, data: bytes) -> None:
        try:
            write_whole(file, data)
        except OSError as error:
            raise CopyError(error.strerror or str(error)) from error


class ObjectStore:
    """A folder of an object store (or any other file system of fsspec), by its URL such as ``s3://bucket/folder``.

    Raises:
        ConfigError: fsspec, or its package for this kind of URL, is not installed; or the URL is wrong.
    """

    def __init__(self, url: str, plan: Plan, runtime: Runtime) -> None:
        self._plan, self._runtime, self._scheme = plan, runtime, url.partition("://")[0]
        try:
            from fsspec.core import url_to_fs
        except ModuleNotFoundError as error:
            raise ConfigError("publish: a URL needs the package fsspec: pip install 'hushsum[objects]'") from error
        try:
            self._files, folder = url_to_fs(url, use_listings_cache=False)
        except (ImportError, ValueError) as error:
            raise ConfigError(f"publish: {self._scheme}://: {error}") from error
        self._folder = f"{folder.rstrip('/')}/{folder_name(plan)}"

    @property
    def where(self) -> str:
        return f"{self._scheme}://{self._folder.lstrip('/')}"

    async def has(self, window: int, size: int) -> bool:
        def look() -> bool:
            try:
                return bool(self._files.info(self._file(window))["size"] == size)
            except FileNotFoundError:
                return False

        return bool(await self._call(look))

    async def write(self, window: int, data: bytes) -> None:
        def put() -> None:
            self._files.makedirs(self._folder, exist_ok=True)  # which object stores ignore
            self._files.pipe_file(self._file(window), data)

        await self._call(put)

    def _file(self, window: int) -> str:
        return f"{self._folder}/{file_name(self._plan.name, window)}"

    async def _call(self, work: Callable[..., Any], *arguments: object) -> Any:  # fsspec ships no types
        try:
            return await self._runtime.blocking(work, *arguments)
        except Exception as error:  # each store has errors of its own
            raise CopyError(f"{type(error).__name__}: {error}") from error


def destination_of(publish: str, plan: Plan, runtime: Runtime) -> Destination:
    """The destination that the setting ``publish`` names: a URL, or the path of a folder.

    Raises:
        ConfigError: It cannot be used.
    """
    if "://" in publish:
        return ObjectStore(publish, plan, runtime)
    return Folder(Path(publish), plan, runtime)


def folder_name(plan: Plan) -> str:
    """The folder of a plan's copies: its name, and the beginning of its id, which two plans of one name differ in."""
    return f"{safe_name(plan.name)}-{plan.hex_id[:12]}"
