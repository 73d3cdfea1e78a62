"""The records of a run: the pixels of a photograph that scikit-learn ships, or the user's own file."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from simulator.errors import RecordsError

Floats = npt.NDArray[np.float64]
_PHOTOGRAPH: Final = "china.jpg"
_Content = tuple[Floats, tuple[str, ...], tuple[str | None, ...] | None]  # values, names, labels


@dataclass(frozen=True, eq=False)
class Records:
    """Rows of numbers with the names of their columns.

    Attributes:
        values: (n, d) float64; a missing value is NaN, whose record a client drops.
        names: d names of columns.
        source: What they were read from, for people.
        labels: n of them, None for a missing one; or None where no column of labels was named.
    """

    values: Floats
    names: tuple[str, ...]
    source: str
    labels: tuple[str | None, ...] | None = None


def photograph() -> Records:
    """The 273,280 pixels of china.jpg, in the order of its lines, as red, green and blue from 0 to 255."""
    from sklearn.datasets import load_sample_image

    pixels = load_sample_image(_PHOTOGRAPH).reshape(-1, 3).astype(np.float64)
    return Records(pixels, ("red", "green", "blue"), f"the pixels of {_PHOTOGRAPH}")


def load(path: Path, columns: Sequence[str] = (), label_column: str | None = None) -> Records:
    """The rows of a ``.parquet``, ``.csv`` or ``.npy`` file.

    Args:
        path: The file. A CSV may have a line of names first; an array of one axis is one column.
        columns: Names of the columns to take, in this order; all others than the labels where none are named.
        label_column: Name of the column of labels: strings, or integers, which become their decimal text.

    Raises:
        RecordsError: The file cannot be read, or a column of it holds no numbers, or no labels.
    """
    readers = {".parquet": _parquet, ".csv": _csv, ".npy": _npy}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise RecordsError(
            f"{path}: expected a file that ends in {', '.join(readers)}, got {path.suffix or 'no end'!r}"
        )
    if not path.is_file():
        raise RecordsError(f"{path}: no such file")
    values, names, labels = reader(path, tuple(columns), label_column)
    if not values.size:
        raise RecordsError(f"{path}: expected at least one record, got {values.shape[0]} rows of {values.shape[1]}")
    return Records(values, names, path.name, labels)


def hold_out(records: Records, queries_max: int, seed: int) -> tuple[Records, Floats]:
    """Takes some records out, to be queries; the rest keeps its order.

    Args:
        records: All.
        queries_max: How many to take, at most a tenth of the records; those with a NaN or an infinity stay.
        seed: Of the choice, which is uniform.

    Returns:
        The rest with their labels, and the queries (m, d), at least one.

    Raises:
        RecordsError: Fewer than two usable records.
    """
    values, labels = records.values, records.labels
    usable = np.flatnonzero(np.isfinite(values).all(axis=1))
    if len(usable) < 2:
        raise RecordsError(f"expected at least two records without missing values, got {len(usable)}")
    wanted = max(1, min(queries_max, len(usable) // 10))
    chosen = np.random.default_rng(seed).choice(usable, wanted, replace=False)
    kept = np.ones(len(values), np.bool_)
    kept[chosen] = False
    rest = None if labels is None else tuple(label for label, keep in zip(labels, kept, strict=True) if keep)
    return replace(records, values=values[kept], labels=rest), values[chosen]


def _npy(path: Path, columns: tuple[str, ...], label_column: str | None) -> _Content:
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise RecordsError(f"{path}: not a NumPy array file: {error}") from error
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
        raise RecordsError(f"{path}: expected an array of numbers, got {getattr(array, 'dtype', type(array))}")
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2:
        raise RecordsError(f"{path}: expected an array (records, columns), got one of shape {array.shape}")
    names = tuple(f"column {index}" for index in range(array.shape[1]))
    named = (*columns, *([] if label_column is None else [label_column]))
    if named:
        raise RecordsError(f"{path}: the columns of a .npy file have no names; got {', '.join(named)}")
    return array.astype(np.float64), names, None


def _parquet(path: Path, columns: tuple[str, ...], label_column: str | None) -> _Content:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        table = parquet.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise RecordsError(f"{path}: not a Parquet file: {_first_line(error)}") from error
    return _content(path, table, columns, label_column)


def _csv(path: Path, columns: tuple[str, ...], label_column: str | None) -> _Content:
    import pyarrow as pa
    from pyarrow import csv

    nameless = _all_numbers(path)
    try:
        table = csv.read_csv(path, read_options=csv.ReadOptions(autogenerate_column_names=nameless))
    except (pa.ArrowException, OSError) as error:
        raise RecordsError(f"{path}: not a CSV file: {_first_line(error)}") from error
    if nameless:
        table = table.rename_columns([f"column {index}" for index in range(table.num_columns)])
    return _content(path, table, columns, label_column)


def _content(path: Path, table: Any, wanted: tuple[str, ...], label_column: str | None) -> _Content:
    if label_column is None:
        return (*_columns(path, table, wanted), None)
    labels = _labels(path, table, label_column)
    return (
        *_columns(path, table, wanted or tuple(name for name in table.column_names if name != label_column)),
        labels,
    )


def _labels(path: Path, table: Any, name: str) -> tuple[str | None, ...]:
    """A column's strings, or its integers as decimal text."""
    import pyarrow as pa

    if name not in table.column_names:
        raise RecordsError(f"{path}: no column {name!r}; it has {', '.join(table.column_names)}")
    column = table[name]
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_integer(kind)):
        raise RecordsError(f"{path}: column {name!r} holds {kind}, expected labels: strings or integers")
    return tuple(column.cast(pa.string()).to_pylist())


def _columns(path: Path, table: Any, wanted: tuple[str, ...]) -> tuple[Floats, tuple[str, ...]]:
    """The numbers of a table of Arrow, which ships no types."""
    import pyarrow as pa

    names = tuple(table.column_names)
    missing = [name for name in wanted if name not in names]
    if missing:
        raise RecordsError(f"{path}: no column {missing[0]!r}; it has {', '.join(names)}")
    chosen = wanted or names
    values = np.empty((table.num_rows, len(chosen)))
    for place, name in enumerate(chosen):
        column = table[name]
        kind = column.type
        if pa.types.is_boolean(kind):
            column = column.cast(pa.int8())
        elif not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_null(kind)):
            raise RecordsError(
                f"{path}: column {name!r} holds {kind}, expected numbers; name the columns to take with --columns"
            )
        values[:, place] = column.cast(pa.float64(), safe=False).to_numpy()
    return values, chosen


def _all_numbers(path: Path) -> bool:
    """Whether the first line of a CSV holds numbers alone, and so no names."""
    try:
        with path.open(encoding="utf-8-sig") as lines:
            cells = next(lines, "").strip().split(",")
    except (OSError, UnicodeDecodeError) as error:
        raise RecordsError(f"{path}: not a CSV file in UTF-8: {error}") from error
    try:
        return bool([float(cell) for cell in cells])
    except ValueError:
        return False


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]
