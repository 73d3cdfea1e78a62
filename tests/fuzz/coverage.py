"""The process whose inputs coverage chooses: libFuzzer, through atheris, keeps those that reach something new.

It is asked as :mod:`tests.fuzz.child` is, for seconds in place of inputs, and forks for each target: libFuzzer never
returns. Nothing of the packages under test may be imported before they are instrumented, so this module imports them
when it runs.
"""

import faulthandler
import importlib
import importlib.util
import json
import os
import random
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn, TextIO

from tests.fuzz.found import compiled_modules

if TYPE_CHECKING:
    from tests.fuzz.target import Kit

PACKAGES: Final = ("hushsum", "hushsum_proto", "aggregator", "edge_client")
TARGETS: Final = "tests.fuzz.targets"
#: Why there is no coverage here; empty where there is.
MISSING: Final = (
    ""
    if importlib.util.find_spec("atheris")
    else "atheris is not installed: pip install 'hushsum[dev]' (Linux on x86-64, Python before 3.14)"
)
_BYTES_MAX: Final = 1 << 16
#: Of the changes that are the target's own, which keep checksums and lengths; the others are libFuzzer's.
_OWN_SHARE: Final = 0.5
#: An input that takes too long, or too much, is a finding of :mod:`tests.fuzz.course`, and the run goes on.
_OPTIONS: Final = ("-timeout=0", "-rss_limit_mb=0", "-len_control=0", "-verbosity=0", "-exact_artifact_path=/dev/null")


def serve(current: Path, asked: TextIO, answers: TextIO, module: str = TARGETS) -> None:
    """Answers until nothing more is asked.

    Args:
        current: The file for the input that is tried now.
        asked: Lines of JSON: target, seed, seconds as count, every; found, after which it ends, too.
        answers: Takes lines of JSON.
        module: Has the targets; another one than this tree's is instrumented itself, in place of the packages.
    """
    import atheris

    os.environ["HUSHSUM_KERNELS"] = "plain"  # what is compiled has no coverage
    include = PACKAGES if module == TARGETS else [module]
    with atheris.instrument_imports(include=include, exclude=compiled_modules()):
        targets = importlib.import_module(module).TARGETS
        from tests.fuzz import worlds
        from tests.fuzz.child import sound_kit

        for line in asked:
            task = json.loads(line)
            worlds.thin(task["every"])
            kit = sound_kit(targets[task["target"]])
            if (process := os.fork()) == 0:
                try:
                    _fuzz(kit, task, current, answers)
                except BaseException:  # noqa: BLE001  an error of ours: libFuzzer, in whose midst it is, would wait for ever
                    traceback.print_exc()
                    os._exit(1)
            _, status = os.waitpid(process, 0)
            if status:
                sys.exit(f"the process of {task['target']} ended with {os.waitstatus_to_exitcode(status)}")


def _fuzz(kit: "Kit", task: dict[str, Any], current: Path, answers: TextIO) -> NoReturn:
    """Tries inputs until the time is over, answers, and ends the process."""
    import atheris

    from tests.fuzz.child import ADDRESSES, Watch, limit_addresses, told
    from tests.fuzz.course import Memory, Tally, alarm, try_one

    warnings.simplefilter("error")
    tally, watch = Tally(), Watch(current)
    limit_addresses(ADDRESSES)
    memory, until_s, enough = Memory(), time.monotonic() + task["count"], task.get("found", sys.maxsize)
    first = (sample for sample in kit.samples if len(sample) <= _BYTES_MAX)

    def change(data: bytes, size_max: int, seed: int) -> bytes:
        """Another input: the samples first, for libFuzzer keeps those that reach something new."""
        if (sample := next(first, None)) is not None:
            return sample
        rng = random.Random(seed)
        if not data or rng.random() >= _OWN_SHARE:
            return bytes(atheris.Mutate(data, size_max))
        return kit.change(rng, data, [rng.choice(kit.samples) for _ in range(3)])[:size_max]

    def one_input(data: bytes) -> None:
        if time.monotonic() >= until_s or tally.found >= enough:
            answers.write(json.dumps(told(tally)) + "\n")
            answers.flush()
            os._exit(0)
        watch(tally.inputs, data)
        memory.grown()  # what libFuzzer took in between is not the decoder's
        try_one(kit, data, tally, memory)

    seed = random.Random(task["seed"]).randrange(1, 1 << 32)
    options = [sys.argv[0], *_OPTIONS, f"-seed={seed}", f"-max_len={_BYTES_MAX}"]
    atheris.Setup(options, one_input, custom_mutator=change)
    with alarm():
        atheris.Fuzz()
    raise AssertionError("libFuzzer has returned")


if __name__ == "__main__":
    faulthandler.enable()
    serve(Path(sys.argv[1]), sys.stdin, sys.stdout, *sys.argv[2:3])
