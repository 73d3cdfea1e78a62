"""Limits of the process (open files, memory), and the import of all modules before the first call.

Importing a module or compiling a loop opens files, for which there may be no room once calls have taken all of them.
So everything that a role may need is loaded before it listens, and some files are reserved.
"""

import ctypes
import importlib
import pkgutil
import resource
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Final

import aggregator
import hushsum
import hushsum_proto
from aggregator.config import Config
from aggregator.errors import ConfigError, MemoryLimitError
from aggregator.logs import journal
from aggregator.runtime import Runtime
from hushsum import releases

MEMORY_CHECK_S: Final = 1.0
#: Open files other than gRPC connections: databases with their side files, HTTP pages, brokers, event loops.
_FILES_RESERVED: Final = 192
_FILES_MIN: Final = 256
_FILES_MAX_MACOS: Final = 10_240  # a hard limit may be infinite there, and the soft one may not
_CGROUP_SHARE: Final = 0.9  # of a container's limit: at the limit itself the kernel ends the process
_M_ARENA_MAX: Final = -8  # of glibc's malloc.h
_ARENAS_MAX: Final = 2
_TIGHT_SHARE: Final = 0.8
_PAGE_BYTES: Final = resource.getpagesize()
_STATM: Final = Path("/proc/self/statm")
_CGROUPS: Final = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
_UNLIMITED_BYTES: Final = 1 << 60  # version 1 of cgroups writes nearly 2^63 where there is no limit

_OURS: Final = ("hushsum", "hushsum_proto", "aggregator")

#: Modules that are loaded only if a setting needs them; their packages may not be installed.
_OPTIONAL: Final[Mapping[str, Callable[[Config], bool]]] = {
    "aggregator.log.kafka": lambda config: config.log == "kafka",
    "aggregator.release.kafka_receipts": lambda config: config.log == "kafka",
    "aggregator.store.postgres": lambda config: config.store == "postgresql",
    "aggregator.shuffler": lambda config: config.role == "shuffler",
}
#: Never used by a service.
_LEFT_OUT: Final = (
    "aggregator.__main__", "hushsum.advice", "hushsum.choosing", "hushsum.estimators", "hushsum.panels",
    "hushsum.plot_pages", "hushsum.plots",
)  # fmt: skip
#: Modules that the standard library imports at their first use.
_STANDARD: Final = ("encodings.idna", "statistics", "stringprep")

_journal = journal("process")


def check_assertions() -> None:
    """Raises ConfigError if Python runs without assertions, which check invariants here."""
    if not __debug__:
        raise ConfigError("Python runs with -O or PYTHONOPTIMIZE, which removes required checks: start it without")


def bound_arenas() -> None:
    """Bounds the arenas of glibc's allocator, before gRPC starts its threads.

    By default each thread may have one, and memory freed there is seldom returned: with a thousand connections a
    second that never finished their handshake, a process grew by 200 bytes with each. With two arenas it does not.
    """
    with suppress(OSError, AttributeError):  # another C library, which has no such call
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS_MAX)


def raise_file_limit() -> None:
    """Raises this process's limit of open files as far as allowed; ConfigError if a service needs more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limit in (hard, max(soft, _FILES_MAX_MACOS)):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))
            break
        except (OSError, ValueError):
            continue
    if file_limit() < _FILES_MIN:
        raise ConfigError(f"limit of open files: {file_limit()}, expected at least {_FILES_MIN} (ulimit -n)")


def file_limit() -> int:
    """The number of files that this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _UNLIMITED_BYTES if soft == resource.RLIM_INFINITY else soft


def connections_max(wanted: int, config: Config) -> int:
    """The number of connections that gRPC may hold: ``wanted``, or what the limit of open files leaves."""
    room = file_limit() - _FILES_RESERVED - (config.postgres_pool if config.store == "postgresql" else 0)
    most = max(1, min(wanted, max(room, file_limit() // 4)))
    if most < wanted:
        _journal.warning("connections limited by the open-file limit", connections_max=most, wanted=wanted)
    return most


def import_modules(config: Config) -> None:
    """Imports every module that the role may need, and compiles its loops."""
    for package in (hushsum, hushsum_proto, aggregator):
        _import_below(package, config)
    for name in _STANDARD:
        importlib.import_module(name)
    releases.warm_up()


def _import_below(package: ModuleType, config: Config) -> None:
    """Imports the modules of a package. ``pkgutil.walk_packages`` would also import the packages that are left out."""
    for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        if _is_loaded(found.name, config):
            _load(found.name)
            if found.ispkg and found.name in sys.modules:
                _import_below(sys.modules[found.name], config)


def _load(name: str) -> None:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in _OURS:
            raise
        # An extra is not installed: what needs it is off (compiled loops), or reports it.


def _is_loaded(name: str, config: Config) -> bool:
    if name.startswith(_LEFT_OUT):
        return False
    return all(needed(config) for prefix, needed in _OPTIONAL.items() if name.startswith(prefix))


def memory_limit(config: Config) -> int | None:
    """The bytes of memory at which this process stops: as set, or 90 % of its container's limit; None: no limit.

    Raises:
        ConfigError: A limit is set, but the memory of a process cannot be read here.
    """
    if config.memory_max is not None:
        if not _STATM.exists():
            raise ConfigError("memory_max: supported only on Linux (/proc)")
        return config.memory_max
    for path in _CGROUPS:
        try:
            limit = int(path.read_text())
        except (OSError, ValueError):  # no such version of cgroups, or no limit ("max")
            continue
        if limit < _UNLIMITED_BYTES:
            return round(_CGROUP_SHARE * limit)
    return None


def check_memory(config: Config) -> None:
    """Raises ConfigError if the process needs more than its memory limit already; call this with all modules loaded."""
    limit = memory_limit(config)
    if limit is None:
        return
    used = memory_used()
    sizes = f"{used / 2**20:.0f} MiB are in use at start, of {limit / 2**20:.0f} MiB allowed"
    if used >= limit:
        raise ConfigError(f"memory_max: {sizes}: give this process more memory")
    if used > _TIGHT_SHARE * limit:
        _journal.warning("memory is low", why=sizes)


def memory_used() -> int:
    """The resident set size of this process, in bytes."""
    return int(_STATM.read_text().split()[1]) * _PAGE_BYTES


async def watch_memory(limit: int, runtime: Runtime) -> None:
    """Never returns; raises MemoryLimitError once more than ``limit`` bytes are in use."""
    held = 0
    while held <= limit:
        await runtime.sleep(MEMORY_CHECK_S)
        with suppress(OSError):  # no more files can be opened: that passes
            held = memory_used()
    raise MemoryLimitError(
        f"{held / 2**20:.0f} MiB of memory are in use, expected at most {limit / 2**20:.0f} MiB (memory_max): "
        "the service drains and stops; start it again with more memory or lower client limits"
    )
