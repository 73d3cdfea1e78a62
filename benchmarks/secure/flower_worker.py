"""Does with Flower's own code what each line of standard input says, once a line; the argument is its folder.

    share THRESHOLD SHARES      splits a secret of 32 bytes, as its clients' keys are
    combine THRESHOLD SHARES    puts it together again
    mask WORDS                  adds the mask of one key to a vector
    quantize WORDS              makes integers of a vector of floats, as its clients do before they mask

Only the modules of its helper functions are loaded: its packages' own start would want a web server's libraries.
"""

import functools
import os
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

SECRET = bytes(range(32))
MODULUS = 1 << 32  # these three are what its workflow takes unless told otherwise
QUANTIZED = 1 << 22
CLIPPED = 8.0


class Worker:
    """What the lines say.

    Args:
        packages: The folder that Flower is in.
    """

    def __init__(self, packages: Path) -> None:
        sys.path.append(str(packages))
        for name in ("flwr", "flwr.common"):
            package = ModuleType(name)
            package.__path__ = [str(packages / name.replace(".", "/"))]
            package.__dict__.update(NDArrayInt=Any, NDArrayFloat=Any)  # names of types: all that the helpers take
            sys.modules[name] = package
        helpers = "flwr.common.secure_aggregation"
        self._shamir = import_module(f"{helpers}.crypto.shamir")
        self._masks = import_module(f"{helpers}.secaggplus_utils")
        self._arithmetic = import_module(f"{helpers}.ndarrays_arithmetic")
        self._quantization = import_module(f"{helpers}.quantization")
        self._shares = functools.cache(self._shamir.create_shares)
        self._zeros = functools.cache(np.zeros)

    def share(self, threshold: int, shares: int) -> None:
        """Splits a secret."""
        self._shamir.create_shares(SECRET, threshold, shares)

    def combine(self, threshold: int, shares: int) -> None:
        """Puts it together, of shares that are made once."""
        if self._shamir.combine_shares(self._shares(SECRET, threshold, shares)[:threshold]) != SECRET:
            raise RuntimeError("Flower put another secret together")

    def mask(self, words: int) -> None:
        """Makes a mask and adds it."""
        made = self._masks.pseudo_rand_gen(os.urandom(32), MODULUS, [(words,)])
        self._arithmetic.parameters_addition([self._zeros(words, np.int64)], made)

    def quantize(self, words: int) -> None:
        """Makes integers, rounded at random."""
        self._quantization.quantize([self._zeros(words, np.float64)], CLIPPED, QUANTIZED)


def main() -> None:
    """Reads lines until they end."""
    worker = Worker(Path(sys.argv[1]))
    for line in sys.stdin:
        name, *numbers = line.split()
        getattr(worker, name)(*map(int, numbers))
        print("done", flush=True)


if __name__ == "__main__":
    main()
