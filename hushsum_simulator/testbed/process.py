"""A server's process with all that it started: killed, stopped and continued as one."""

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
from typing import Final

from hushsum_simulator.errors import ServerError

_LOOPBACK: Final = "127.0.0.1"
#: Below the ports that systems give to outgoing connections, so that a server finds its own again after a restart.
_PORTS: Final = range(12_000, 30_000)
_LOOK_S: Final = 0.02
# Not Popen's own `user`: that makes it fork, and the handlers that gRPC has for forks may crash the child.
_AS_USER: Final = """
import os, pwd, sys
entry = pwd.getpwnam(sys.argv[1])
os.setgroups([])
os.setgid(entry.pw_gid)
os.setuid(entry.pw_uid)
os.execv(sys.argv[2], sys.argv[2:])
"""


def free_port() -> int:
    """A port of loopback that nobody listens on now, and that no other call has given, here or in another process.

    A server takes a while to listen, and may be down for a while: until this process ends, a datagram socket on the
    port of the same number shows other calls that it is taken.
    """
    while True:
        port = secrets.choice(_PORTS)  # not of `random`, which tests set to the same state in several processes
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
    """The command that runs one, named by its whole path, as another user; the same one for this user (None)."""
    return list(command) if user is None else [sys.executable, "-I", "-S", "-c", _AS_USER, user, *command]


def is_listening(port: int) -> bool:
    """Whether a connection to a port of loopback is taken."""
    try:
        socket.create_connection((_LOOPBACK, port), timeout=1).close()
    except OSError:
        return False
    return True


class ServerProcess:
    """One server, started again with the same command.

    Args:
        name: For errors.
        command: What runs.
        output: A file that gets what it writes.
        user: Whose process it is; None: this one's.
        environment: Variables beside this process's own.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        output: Path,
        *,
        user: str | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._name, self._command, self._output = name, as_user(user, command), output
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._paused: list[int] = []
        self.starts = 0

    @property
    def is_running(self) -> bool:
        """Whether it is there, paused or not."""
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of the process that was started last."""
        assert self._process is not None, "started first"
        return self._process.pid

    def start(self) -> None:
        """Starts it; :meth:`wait_until` says when it is there."""
        assert not self.is_running, "ended first"
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment,
                cwd=self._output.parent,
                start_new_session=True,  # a Ctrl-C in the terminal is not meant for it
            )
        self.starts += 1

    def wait_until(self, ready: Callable[[], bool], seconds: float) -> None:
        """Waits until it is ready.

        Raises:
            ServerError: It has ended, or is not ready in time.
        """
        deadline = time.monotonic() + seconds
        while not ready():
            if not self.is_running:
                raise ServerError(f"{self._name} ended with status {self._status()}: {self.last_line()}")
            if time.monotonic() > deadline:
                raise ServerError(f"{self._name} is not ready after {seconds:.0f} s: {self.last_line()}")
            time.sleep(_LOOK_S)

    def kill(self) -> None:
        """SIGKILL for it and all its children, stopped or not."""
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
        """SIGSTOP for it and all its children: connections stay open, and nothing answers."""
        assert self.is_running, "started first"
        self._paused = [self.pid, *self._children()]
        for pid in self._paused:
            _send(pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Goes on after :meth:`pause`."""
        for pid in reversed(self._paused):
            _send(pid, signal.SIGCONT)
        self._paused = []

    def stop(self, seconds: float, by: signal.Signals = signal.SIGTERM) -> None:
        """Asks it to end, and kills it where it has not in time."""
        if self._process is None or not self.is_running:
            return
        self.resume()
        self._process.send_signal(by)
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def last_line(self) -> str:
        """The last line that it wrote."""
        lines = self._output.read_text(encoding="utf-8", errors="replace").split("\n") if self._output.exists() else []
        return next((line.strip() for line in reversed(lines) if line.strip()), "it wrote nothing")

    def _status(self) -> int | None:
        return None if self._process is None else self._process.returncode

    def _children(self) -> list[int]:
        """All that it started, at any depth."""
        found: list[int] = []
        pending = [self.pid]
        while pending:
            done = subprocess.run(["pgrep", "-P", str(pending.pop())], capture_output=True, text=True, check=False)
            children = [int(line) for line in done.stdout.split()]
            found += children
            pending += children
        return found


class ServerHandle:
    """What may be done to any server from outside, whatever it is.

    Args:
        process: The server's.
    """

    def __init__(self, process: ServerProcess) -> None:
        self._process = process

    @property
    def is_running(self) -> bool:
        """Whether its process is there, paused or not."""
        return self._process.is_running

    @property
    def pid(self) -> int:
        """Of the process that was started last."""
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL for it and all that it started."""
        self._process.kill()

    def pause(self) -> None:
        """SIGSTOP for all of them."""
        self._process.pause()

    def resume(self) -> None:
        """SIGCONT."""
        self._process.resume()


def _send(pid: int, what: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # it has ended meanwhile
        os.kill(pid, what)


class ServerFolder:
    """A folder of a server's own under the system's temporary one, which any user of the machine may pass through."""

    def __init__(self, prefix: str) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=f"hushsum-{prefix}-"))

    def delete(self) -> None:
        """Deletes it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
