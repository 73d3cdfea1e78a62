"""What an import takes, beside that of NumPy: medians of fresh processes, one of each after the other in one run.

Every process runs with compiled bytecode. ``times`` is the time of the whole process, as that of NumPy.
"""

import compileall
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from statistics import median

from benchmarks.report import Row

TITLE = "Import of what a device and an analyst need, medians of 9 fresh processes"
#: The bound on each, in times of NumPy.
IMPORTS = {"numpy": 1.0, "hushsum": 2.2, "edge_client": 3.0}
_PROCESSES = 9
_MEASURED = """
from time import perf_counter
begun = perf_counter()
import {}
ended = perf_counter()
try:  # ru_maxrss may be that of the process that started this one
    with open("/proc/self/status") as status:
        peak = next(1024 * int(line.split()[1]) for line in status if line.startswith("VmHWM"))
except OSError:
    import resource, sys
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
print(ended - begun, peak)
"""


def measure(*, quick: bool) -> list[Row]:
    """One row an import; the time of the process holds the interpreter's own start."""
    _compile()
    taken: dict[str, list[tuple[float, float, int]]] = {name: [] for name in IMPORTS}
    for _ in range(1 if quick else _PROCESSES):
        for name, figures in taken.items():
            figures.append(_process(name))
    medians = {name: [median(column) for column in zip(*figures, strict=True)] for name, figures in taken.items()}
    numpy = medians["numpy"]
    return [
        {
            "import": name,
            "process, ms": whole * 1e3,
            "times numpy": whole / numpy[0],
            "import alone, ms": alone * 1e3,
            "its times": alone / numpy[1],
            "aimed at": IMPORTS[name],
            "resident, MB": peak / 1e6,
        }
        for name, (whole, alone, peak) in medians.items()
    ]


def _compile() -> None:
    """As an installer does, of these sources and of the packages beside them."""
    top = Path(__file__).parents[1]
    for folder in (top / "hushsum", top / "edge_client", top / "proto", Path(sysconfig.get_path("purelib"), "numpy")):
        compileall.compile_dir(folder, quiet=2)


def _process(name: str) -> tuple[float, float, int]:
    begun = time.perf_counter()
    ended = subprocess.run([sys.executable, "-c", _MEASURED.format(name)], check=True, capture_output=True, text=True)
    whole = time.perf_counter() - begun
    alone, peak = ended.stdout.split()
    return whole, float(alone), int(peak)
