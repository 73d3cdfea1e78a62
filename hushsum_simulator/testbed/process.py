"""A server process and its children: started, killed, paused and stopped together."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from hushsum_simulator.errors import ServerError

_LOOPBACK: Final = "127.0.0.1"
#: Below the ports that systems give to outgoing connections, so that a server finds its own again after a restart.
_PORTS: Final = range(12_000, 30_000)
_LOOK_S: Final = 0.02
_START_S: Final = 180.0  # beside other programs
_STOP_S: Final = 20.0
# Popen's own `user` makes it fork, and gRPC's fork handlers may crash the child.
_AS_USER: Final = """
import os, pwd, sys
entry = pwd.getpwnam(sys.argv[1])
os.setgroups([])
os.setgid(entry.pw_gid)
os.setuid(entry.pw_uid)
os.execv(sys.argv[2], sys.argv[2:])
"""


def free_port() -> int:
    """A loopback port that is free now, and that no other call returned, in this process or another.

    A server needs time to listen, and may be down for a while. Therefore a datagram socket reserves the same port
    number until this process ends.
    """
    while True:
        port = secrets.choice(_PORTS)  # not `random`: tests seed it equally in several processes
        with socket.socket() as probe, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as claim:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((_LOOPBACK, port))
                claim.bind((_LOOPBACK, port))
            except OSError:
                continue
            claim.detach()
            return port


def as_user(user: str | None, command: Sequence[str]) -> list[str]:
    """The command run as another user; its program is an absolute path. None is this user: the command itself."""
    return list(command) if user is None else [sys.executable, "-I", "-S", "-c", _AS_USER, user, *command]


def is_listening(port: int) -> bool:
    """Whether a loopback port accepts connections."""
    try:
        socket.create_connection((_LOOPBACK, port), timeout=1).close()
    except OSError:
        return False
    return True


class ServerProcess:
    """One server, which can be started again with the same command and data.

    ``with`` starts it; at the end it is killed, and its folder deleted.

    Args:
        command: Its program is an absolute path if ``user`` is given.
        output: The file that receives its output.
        ready: Whether it takes requests now.
        folder: A temporary folder of this server, with its data.
        user: Runs the process; None: the current user.
        environment: Variables in addition to those of this process.
    """

    stop_signal = signal.SIGTERM

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        output: Path,
        ready: Callable[[], bool],
        *,
        folder: Path | None = None,
        user: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._name, self._command, self.output, self._ready = name, as_user(user, command), output, ready
        self._folder = folder
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._paused: list[int] = []

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def is_running(self) -> bool:
        """Whether the process exists, paused or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of the process that was started last."""
        assert self._process is not None, "started first"
        return self._process.pid

    def start(self) -> None:
        """Starts it, and returns once it takes requests.

        Raises:
            ServerError: It ended, or is not ready within three minutes.
        """
        assert not self.is_running, "ended first"
        with self.output.open("ab") as output:
            process = self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment,
                cwd=self.output.parent,
                start_new_session=True,  # a Ctrl-C in the terminal must not reach it
            )
        deadline = time.monotonic() + _START_S
        while not self._ready():
            if process.poll() is not None:
                raise ServerError(f"{self._name} ended with status {process.returncode}: {last_line(self.output)}")
            if time.monotonic() > deadline:
                raise ServerError(f"{self._name} is not ready after {_START_S:.0f} s: {last_line(self.output)}")
            time.sleep(_LOOK_S)

    def kill(self) -> None:
        """SIGKILL for it and all its children, paused or not."""
        if self._process is None:
            return
        pids = [*self._children(), *self._paused]
        if self.is_running:
            self._process.kill()
        for pid in pids:
            _send(pid, signal.SIGKILL)
        self._paused = []
        self._process.wait()

    def pause(self) -> None:
        """SIGSTOP for it and all its children: connections stay open without an answer."""
        assert self.is_running, "started first"
        self._paused = [self.pid, *self._children()]
        for pid in self._paused:
            _send(pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT after :meth:`pause`."""
        for pid in reversed(self._paused):
            _send(pid, signal.SIGCONT)
        self._paused = []

    def stop(self) -> None:
        """Asks it to end, and kills it if it has not ended in time."""
        if self._process is None or not self.is_running:
            return
        self.resume()
        self._process.send_signal(self.stop_signal)
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def close(self) -> None:
        """Kills it, and deletes its folder."""
        self.kill()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _children(self) -> list[int]:
        """All descendants."""
        found: list[int] = []
        pending = [self.pid]
        while pending:
            done = subprocess.run(["pgrep", "-P", str(pending.pop())], capture_output=True, text=True, check=False)
            children = [int(line) for line in done.stdout.split()]
            found += children
            pending += children
        return found


def last_line(output: Path) -> str:
    """The last line in the file of a server's output."""
    lines = output.read_text(encoding="utf-8", errors="replace").split("\n") if output.exists() else []
    return next((line.strip() for line in reversed(lines) if line.strip()), "it wrote nothing")


def _send(pid: int, what: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it ended in the meantime
        os.kill(pid, what)


def server_folder(prefix: str) -> Path:
    """A new folder directly under the system's temporary one, which any user may traverse."""
    return Path(tempfile.mkdtemp(prefix=f"hushsum-{prefix}-"))
