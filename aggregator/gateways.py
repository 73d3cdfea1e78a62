"""Several gateway processes on one machine behind one port, and the process that starts, restarts and stops them.

Each child is a whole gateway with a listening socket of its own: the system spreads new connections over them
(SO_REUSEPORT). The parent holds the port without listening, so that no other service takes it while a child starts. A
child that ends is started again, later after each failure; it stops when its parent is gone.
"""

import asyncio
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Final

from aggregator.app import serve
from aggregator.config import Config, host_and_port
from aggregator.data_dir import DataDir
from aggregator.errors import ConfigError
from aggregator.logs import journal, write_journal
from aggregator.runtime import Runtime, SystemRuntime, within
from hushsum.errors import HushsumError

_LISTENING: Final = b"listening"
_WAIT_FIRST_S: Final = 0.5
_WAIT_LONGEST_S: Final = 30.0
#: A new interpreter: a process that was forked could not use gRPC.
_SPAWN: Final = multiprocessing.get_context("spawn")

_journal = journal("gateways")


def run(config: Config) -> None:
    """Serves until SIGTERM or SIGINT: in this process, or in as many as the settings ask for.

    Raises:
        HushsumError: It cannot start, or cannot go on.
    """
    if config.processes == 1:
        asyncio.run(serve(config))
    else:
        asyncio.run(supervise(config, SystemRuntime(1)))


def config_of(config: Config, address: str, number: int) -> Config:
    """The settings of one child: the shared address, pages on ports of their own, a data directory of its own."""
    own: dict[str, object] = {"listen": address}
    for key in ("metrics_listen", "health_listen"):
        if getattr(config, key):
            own[key] = above(getattr(config, key), number)
    if config.data is not None:
        own["data"] = config.data / f"process-{number}"
    return config.model_copy(update=own)


def above(address: str, number: int) -> str:
    """The address with a port so many above; a free one stays a free one."""
    host, _, port = address.rpartition(":")
    return f"{host}:{int(port) + number if int(port) else 0}"


async def supervise(config: Config, runtime: Runtime) -> None:
    """Runs the gateways until SIGTERM or SIGINT, which they are sent as SIGTERM; a second signal kills them.

    Raises:
        ConfigError: The address is in use, or a gateway ended before it listened for the first time.
    """
    with ExitStack() as stack:
        folder = None if config.data is None else DataDir.open(config.data)
        if folder is not None:
            stack.callback(folder.close)
        address = stack.enter_context(held_port(config.listen))
        gateways = _Gateways(config, address, runtime)
        loop = asyncio.get_running_loop()
        for name in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(name, gateways.stop)
        tasks = [runtime.spawn(gateways.keep(number), f"gateway {number}") for number in range(config.processes)]
        announced = runtime.spawn(gateways.announce(folder), "announcement")
        try:
            await asyncio.gather(*tasks)
        finally:
            announced.cancel()
            gateways.stop()
            await asyncio.wait(tasks)
            if folder is not None:
                folder.forget_listening()
    _journal.info("stopped")


class _Child:
    """One running gateway, as its parent sees it."""

    def __init__(self, config: Config, on_word: Callable[[], None]) -> None:
        self.has_listened = False
        self.ended = asyncio.Event()
        self._on_word = on_word
        self._words, theirs = _SPAWN.Pipe(duplex=True)
        self.process: BaseProcess = _SPAWN.Process(target=_run_child, args=(config, theirs))
        self.process.start()
        theirs.close()
        loop = asyncio.get_running_loop()
        loop.add_reader(self._words.fileno(), self._hear)
        loop.add_reader(self.process.sentinel, self._end)

    def _hear(self) -> None:
        try:
            self.has_listened = self._words.recv_bytes() == _LISTENING
        except (EOFError, OSError):
            asyncio.get_running_loop().remove_reader(self._words.fileno())
        else:
            self._on_word()

    def _end(self) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(self.process.sentinel)
        loop.remove_reader(self._words.fileno())
        self._words.close()
        self.process.join()
        self.ended.set()

    def send(self, name: signal.Signals) -> None:
        if self.process.pid is not None and not self.ended.is_set():
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, name)


class _Gateways:
    """The children of one supervisor, by their numbers."""

    def __init__(self, config: Config, address: str, runtime: Runtime) -> None:
        self._config = config
        self._address = address
        self._runtime = runtime
        self._children: dict[int, _Child] = {}
        self._listened: set[int] = set()
        self._all_listened = asyncio.Event()
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Asks every gateway to stop; asked again, ends them at once."""
        name = signal.SIGKILL if self._stopping.is_set() else signal.SIGTERM
        self._stopping.set()
        for child in self._children.values():
            child.send(name)

    async def keep(self, number: int) -> None:
        """Runs one gateway until :meth:`stop`.

        Raises:
            ConfigError: It ended before it had ever listened: its own message says why.
        """
        wait_s = _WAIT_FIRST_S
        while not self._stopping.is_set():
            own = config_of(self._config, self._address, number)
            child = self._children[number] = _Child(own, partial(self._hear, number))
            await child.ended.wait()
            if self._stopping.is_set():
                return
            code = child.process.exitcode
            if number not in self._listened:
                raise ConfigError(f"processes: gateway {number} did not start (exit status {code}), see its message")
            wait_s = _WAIT_FIRST_S if child.has_listened else min(2 * wait_s, _WAIT_LONGEST_S)
            _journal.error("gateway ended, starting it again", gateway=number, exit_status=code, wait_s=wait_s)
            with suppress(TimeoutError):
                await within(wait_s, self._stopping.wait(), runtime=self._runtime)

    async def announce(self, folder: DataDir | None) -> None:
        """Says where the gateways listen, once all of them do."""
        await self._all_listened.wait()
        pages = {
            name: ",".join(above(address, number) for number in range(self._config.processes)) if address else ""
            for name, address in (("metrics", self._config.metrics_listen), ("health", self._config.health_listen))
        }
        if folder is not None:
            folder.announce(grpc=self._address, **pages)
        _journal.info("listening", grpc=self._address, **pages, processes=self._config.processes)

    def _hear(self, number: int) -> None:
        self._listened.add(number)
        if len(self._listened) == self._config.processes:
            self._all_listened.set()


@contextmanager
def held_port(listen: str) -> Iterator[str]:
    """Takes an address for the processes that will listen on it together; gives it with its port.

    Raises:
        ConfigError: Another process has it, its user's own included, or this system cannot share it.
    """
    if sys.platform != "linux":
        raise ConfigError("processes: more than one requires Linux, which spreads the connections of a shared port")
    host, port = host_and_port(listen)
    try:
        family, kind, number, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, number) as alone:  # without sharing: it fails if another one listens there
            alone.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            alone.bind(address)
            port = alone.getsockname()[1]
        held = socket.socket(family, kind, number)
    except OSError as error:
        raise ConfigError(f"listen: cannot listen on {listen}: {error.strerror}") from error
    with held:
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            held.setsockopt(socket.SOL_SOCKET, option, 1)
        try:
            held.bind((address[0], port))
        except OSError as error:
            raise ConfigError(f"listen: cannot listen on {listen}: {error.strerror}") from error
        yield f"{listen.rpartition(':')[0]}:{port}"


def _run_child(config: Config, parent: Connection) -> None:
    """One gateway, in a process of its own."""
    os.setsid()  # a terminal's Ctrl-C reaches the parent alone, which sends one signal
    write_journal(config.log_level, config.log_format)
    try:
        asyncio.run(_serve(config, parent))
    except HushsumError as error:
        sys.stderr.write(f"aggregator: {error}\n")
        sys.exit(1)


async def _serve(config: Config, parent: Connection) -> None:
    loop = asyncio.get_running_loop()

    def orphaned() -> None:  # the parent never writes
        loop.remove_reader(parent.fileno())
        os.kill(os.getpid(), signal.SIGTERM)

    loop.add_reader(parent.fileno(), orphaned)
    await serve(config, on_listening=partial(parent.send_bytes, _LISTENING))
