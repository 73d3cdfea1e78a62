"""Runs one step of a change of plan on copies of a spool, each in a process that is killed before another statement.

The copies are named by the number of the statement; the last one is whole. Prints how many there are.
"""

import os
import shutil
import signal
import sqlite3
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

from edge_client.spool.plan_history import PlanHistory
from edge_client.spool.spool import Spool
from hushsum.entropy import OsEntropy
from tests.edge_client.local_plans import NEW_REPORTS


def killer(statement: int) -> Callable[[str], None]:
    """Is called before each statement, and kills its process before the one of this number."""
    left = statement

    def trace(_: str) -> None:
        nonlocal left
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1

    return trace


def run(step: str, path: Path, statement: int, now_ms: int) -> None:
    spool = Spool(path, client_id=None, entropy=OsEntropy(), bytes_max=2**30)
    history = PlanHistory(spool)
    database: sqlite3.Connection = spool._database
    database.set_trace_callback(killer(statement))
    match step:
        case "take up":
            history.take_up(NEW_REPORTS, None, now_ms)
        case "confirm":
            history.confirm(now_ms)
        case "undo":
            history.undo()
        case "erase":
            history.erase(now_ms)
    spool.close()


def is_killed(step: str, path: Path, statement: int, now_ms: int) -> bool:
    """Whether the step was killed before its end."""
    process = os.fork()
    if not process:
        try:
            run(step, path, statement, now_ms)
        except BaseException:  # noqa: BLE001  the process ends here, whatever it was
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(process, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return True
    assert status == 0, "the step has failed"
    return False


def main(step: str, path: str, now_ms: str) -> None:
    statement = 0
    while True:
        copy = Path(f"{path}.{statement}")
        shutil.copy(path, copy)
        if not is_killed(step, copy, statement, int(now_ms)):
            break
        statement += 1
    sys.stdout.write(str(statement + 1))


if __name__ == "__main__":
    main(*sys.argv[1:])
