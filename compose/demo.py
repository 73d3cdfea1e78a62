"""`make compose-demo`: the whole service in containers, real faults under load, and whether each still counts once.

    python -m compose.demo [--mode central|local|secure] [--keep] [--project NAME] [--stand-ins]

Needs a Docker engine with `docker compose` or docker-compose (the variable COMPOSE names another), and nothing but
Python's own library. Sizes are set in the environment, or in compose/.env: see .env.example. Exits with 0 when nothing
is lost, doubled or wrong; whatever happens, containers, volumes and image are gone afterwards, unless --keep is given.
"""

import argparse
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from compose.engine import HERE, STOPPING, Compose, DemoError, State, docker, find_compose, ignore_signals
from compose.environment import Sizes, read, resolved
from compose.images import prepare_stand_ins, wants_stand_ins

BACKENDS = ("kafka", "postgres")
SERVICE = ("gateway-1", "gateway-2", "worker-1", "worker-2", "releaser")
OF_OURS = "password"  # the service that says how our image is built
LAYERS = "hushsum:layers"

BUILD_S = 1800.0
START_S = 240.0
FAULT_DOWN_S = 3.0  # how long what was killed stays away: the others have to notice
SILENT_LOOKS = 20  # without a new answer in a window, half a second between them
ANSWERS_S = 300.0  # beyond the windows: until the fleet has all its answers, and every window its outcome

_began = time.monotonic()


def say(text: str) -> None:
    """One line with the seconds since the start."""
    print(f"{time.monotonic() - _began:7.1f} s  {text}", flush=True)


def wait(what: str, done: Callable[[], bool], limit_s: float) -> None:
    """Returns once it is done.

    Raises:
        DemoError: Not in time.
    """
    end = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > end:
            raise DemoError(f"{what}: not within {limit_s:.0f} s")
        time.sleep(0.5)


class Demo:
    """One run.

    Args:
        compose: The project.
        sizes: Of it.
    """

    def __init__(self, compose: Compose, sizes: Sizes) -> None:
        self._compose, self._sizes = compose, sizes

    def bring_up(self) -> None:
        """Backends, plan and keys, the service, the fleet: each once what it needs is there."""
        say("starting Kafka and PostgreSQL; making plan, certificates and tokens")
        self._compose.up("kafka", OF_OURS)
        wait("the database's password", lambda: self._has_finished(OF_OURS), START_S)
        self._compose.up("postgres", "prepare")
        wait("plan and keys", lambda: self._has_finished("prepare"), START_S)
        say("starting two gateways, two workers and the releaser")
        self._compose.up(*SERVICE)
        wait("Kafka and PostgreSQL", lambda: self._are_healthy(*BACKENDS), START_S)
        wait("the service", lambda: self._are_healthy(*SERVICE), START_S)
        self._compose.up("fleet")
        say("all healthy; the fleet begins with the next window")

    def strike(self) -> None:
        """Kills and restarts while deltas flow, each fault in a window of its own where there are enough.

        The next one does not wait until all is well again: a slow machine would run out of windows.
        """
        self._wait_for_flow(1)
        self._kill("worker-1")
        self._wait_for_flow(2)
        self._kill("gateway-1")
        self._wait_for_flow(3)
        say("Kafka is restarted")
        docker("restart", "--time", "20", self._compose.container("kafka"))
        before = self._acknowledged
        wait("everything", lambda: self._are_healthy(*BACKENDS, *SERVICE), START_S)
        say("all are back and healthy")
        wait("an answer after the last fault", lambda: self._goes_on(before), self._limit_s)

    def finish(self) -> int:
        """Waits for the fleet, then lets `check` compare; returns its exit status."""
        wait("the fleet's last answers", lambda: self._has_finished("fleet"), self._limit_s)
        say("the fleet has all its answers; waiting for the last outcomes")
        status = self._compose.show("run", "--rm", "--no-deps", "-T", "check", limit_s=self._limit_s)
        self._require_no_restarts()
        return status

    @property
    def _limit_s(self) -> float:
        return self._sizes.windows * self._sizes.window_s + self._sizes.lateness_s + ANSWERS_S + START_S

    @property
    def _acknowledged(self) -> int:
        return int(self._compose.progress().get("acknowledged", 0))

    def _goes_on(self, before: int) -> bool:
        """Whether more is acknowledged than before."""
        ended = self._has_finished("fleet")
        if self._acknowledged > before:
            return True
        if ended:
            raise DemoError("nothing was acknowledged after the last fault")
        return False

    def _require_no_restarts(self) -> None:
        """What we kill and start does not count: a service that ended by itself does."""
        if restarts := self._compose.restarts():
            told = ", ".join(f"{service} {count} times" for service, count in sorted(restarts.items()))
            raise DemoError(f"the engine had to start again what had ended by itself: {told}")

    def _wait_for_flow(self, window: int) -> None:
        """Returns in this window, or the last one, while answers are coming."""
        window = min(window, self._sizes.windows)
        seen: list[int] = []

        def flows() -> bool:
            if self._states().get("fleet", State("gone")).has_ended:
                raise DemoError("the fleet ended before every fault had struck; see its last lines below")
            progress = self._compose.progress()
            if progress.get("window", 0) < window:
                return False
            seen.append(progress["acknowledged"])
            if not self._sizes.in_turns:
                return len(seen) > 1 and seen[-1] > seen[-2]
            # These are answered in a burst at the end of a round: halfway to it is a good moment, too.
            return seen[-1] > seen[0] or progress["deltas"] > seen[-1] or len(seen) > SILENT_LOOKS

        wait(f"deltas in window {window}", flows, (self._sizes.windows + 1) * self._sizes.window_s + START_S)
        say(f"window {window} of {self._sizes.windows}: {seen[-1]} deltas acknowledged")
        self._require_no_restarts()

    def _kill(self, service: str) -> None:
        say(f"{service} is killed (SIGKILL)")
        killed = self._compose.container(service)
        docker("kill", "--signal", "SIGKILL", killed)
        time.sleep(FAULT_DOWN_S)
        docker("start", killed)
        say(f"{service} is started again")

    def _states(self) -> dict[str, State]:
        return self._compose.states()

    def _are_healthy(self, *services: str) -> bool:
        states = self._states()
        for service in services:
            if states.get(service, State("created")).has_ended:
                raise DemoError(f"{service} has ended ({states[service]}); see its last lines below")
        return all(states.get(service, State("created")).is_healthy for service in services)

    def _has_finished(self, service: str) -> bool:
        state = self._states().get(service, State("created"))
        if state.has_ended and state.exit_status != 0:
            raise DemoError(f"{service} failed ({state}); see its last lines below")
        return state.has_ended


@contextmanager
def torn_down(compose: Compose, *, keep: bool, image: str | None = None) -> Iterator[None]:
    """Shows the last lines of what went wrong, and removes everything at the end, an image that was built too."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, DemoError):
            compose.show_last_lines()
        raise
    finally:
        if keep:
            say(f"kept; look around with: {compose.shown}")
            say(f"and when you are done: {compose.shown} down --volumes --remove-orphans")
        else:
            try:
                say("taking it all down")
                compose.down()
            except SystemExit:  # stopped right here, for the first time and the last one
                compose.down()
                raise
            if image is not None:
                docker("image", "rm", image, fails=True)


def build(compose: Compose, image: str, *, stand_ins: bool) -> None:
    """Our image, and where they are wanted the ones that stand in for others."""
    say("building the image (minutes the first time, then seconds)")
    began = time.monotonic()
    compose.run("build", OF_OURS, *(BACKENDS if stand_ins else ()), limit_s=BUILD_S)
    # Layers stay while some image has them: the next build costs seconds, whichever image is removed.
    docker("tag", image, LAYERS)
    say(f"built {image} in {time.monotonic() - began:.0f} s")


def parsed() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description="Runs the whole service in containers, breaks it, and checks it.")
    parser.add_argument("--mode", choices=["central", "local", "secure"], help="default: as MODE says")
    parser.add_argument("--keep", action="store_true", help="leave everything running afterwards")
    parser.add_argument("--project", default=f"hushsum-demo-{secrets.token_hex(3)}", help="name of the containers")
    parser.add_argument("--stand-ins", action="store_true", help="build what stands in for Kafka's and PostgreSQL's")
    building = parser.add_mutually_exclusive_group()
    building.add_argument("--build-only", action="store_true", help="build the images, and start nothing")
    building.add_argument("--no-build", action="store_true", help="take the images as they are")
    return parser.parse_args()


def run(options: argparse.Namespace) -> int:
    """The whole demo; returns what to exit with."""
    command = find_compose()
    # An image of this run alone: two checkouts never test each other's.
    own = f"hushsum:{options.project}"
    environment = resolved(options.mode, own, read(HERE / ".env"), os.environ)
    image, sizes = environment["IMAGE"], Sizes.of(environment)
    compose = Compose(command, options.project, environment)
    say(f"mode {environment['MODE']}, project {options.project}, with {' '.join(command)}")
    if not options.no_build:
        stand_ins = options.stand_ins or wants_stand_ins(compose, BACKENDS, say)
        if stand_ins:
            prepare_stand_ins()
            compose.use_stand_ins()
        build(compose, image, stand_ins=stand_ins)
    if options.build_only:
        return 0
    demo = Demo(compose, sizes)
    with torn_down(compose, keep=options.keep, image=own if image == own and not options.no_build else None):
        demo.bring_up()
        demo.strike()
        status = demo.finish()
        say("nothing lost, nothing doubled" if status == 0 else "the check failed: see above")
    return status


def _stopped(number: int, _: object) -> None:
    ignore_signals()
    # Past the buffers: whatever was being printed is not whole yet.
    os.write(2, f"compose-demo: stopped by {signal.Signals(number).name}\n".encode())
    sys.exit(128 + number)


def main() -> int:
    """Says what went wrong in one line; returns the exit status."""
    options = parsed()
    for number in STOPPING:
        signal.signal(number, _stopped)
    try:
        return run(options)
    except DemoError as error:
        print(f"compose-demo: {error}", file=sys.stderr)
    except ValueError as error:
        print(f"compose-demo: WINDOWS, WINDOW_S and LATENESS_S are numbers: {error}", file=sys.stderr)
    except subprocess.TimeoutExpired as error:
        print(f"compose-demo: {' '.join(map(str, error.cmd))}: no end within {error.timeout:.0f} s", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
