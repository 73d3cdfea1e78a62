"""A caller's vectors as an array of numbers: a typed array as it is, a list row by row.

An array has a type that its owner chose. A list has none: NumPy would give it one that suits all of its rows, so that
one record would change the last bits of the others, or have them refused. So each row of a list is *defined* as what it
is alone, in float64, and one that is no row of d numbers is NaN, which drops alone. Many rows at once are a short cut,
taken only where it gives the same.
"""

from array import array
from collections.abc import Sequence, Sized
from itertools import chain
from numbers import Number
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hushsum.families.transforms import Float64

_BUFFERS: Final = (bytearray, memoryview, array)
_TYPED: Final = (str, bytes, *_BUFFERS)  # sequences that NumPy reads by a type of their own
_NUMBERS: Final = frozenset({float, int, bool, np.float64, np.float32})  # that float64 holds, or rounds once
_INT64: Final = 2.0**63  # from here on an integer's row may be of another type
_CHUNK: Final = 1024


def rows_of(records: Any) -> list[Any] | None:
    """The items of what has no type for all of them: a list, another sequence, an array of objects. Else None."""
    if isinstance(records, np.ndarray):
        untyped = records.dtype == np.object_ and records.ndim > 0 and not isinstance(records, np.ma.MaskedArray)
        return list(records.tolist()) if untyped else None
    return list(records) if isinstance(records, Sequence) and not isinstance(records, _TYPED) else None


def is_one_record(rows: Sequence[Any]) -> bool:
    """Whether a list is one vector, not a batch: numbers in it, and nothing that could be a row.

    A list of bare numbers is one record by its caller's word; where a row stands among them, they are bad records.
    """
    try:
        return all(map(_is_scalar, rows)) and any(map(_is_number, rows))
    except Exception:  # noqa: BLE001 -- what raises when it is looked at is no number
        return False


def typed(records: Any) -> Any:
    """What has a type for all of its items, as the array that it is; anything else as it came."""
    if isinstance(records, np.ndarray) or not (hasattr(records, "__array__") or isinstance(records, _BUFFERS)):
        return records
    try:
        return np.asarray(records)
    except (ValueError, TypeError):  # no array after all: who expected one says so
        return records


def readable(records: Any, dim: int) -> Any:
    """Records as an array that shows all of them: NaN for a row of a list that is no row of ``dim`` numbers.

    Args:
        records: Anything.
        dim: d.

    Returns:
        (n, dim) float64 for what has no type; else what came, as the array that it is where it is one.
    """
    records = typed(records)
    rows = rows_of(records)
    if rows is None or (isinstance(records, np.ndarray) and records.shape[1:] not in ((), (dim,))):
        return records
    read = np.full((len(rows), dim), np.nan)
    for start in range(0, len(rows), _CHUNK):
        some, into = rows[start : start + _CHUNK], read[start : start + _CHUNK]
        if not _read_at_once(some, into):
            for record, row in zip(some, into, strict=True):
                _read_row(record, row)
    return read


def _read_row(record: Any, row: Float64) -> None:
    """The definition. What a record raises when it is read, it raises for itself alone."""
    try:
        if isinstance(record, Sized) and len(record) != len(row):
            return  # before anything of that length is allocated
        values = np.asarray(record)
        if values.dtype == np.object_:
            values = np.asarray(values.tolist())
        if values.shape == row.shape and values.dtype.kind in "biuf" and not isinstance(record, np.ma.MaskedArray):
            with np.errstate(over="ignore"):  # of more than 64 bits
                row[:] = values.astype(np.float64)
    except Exception:  # noqa: BLE001 -- anything may be in a list, and NumPy calls what its items define
        return


def _read_at_once(records: list[Any], rows: Float64) -> bool:
    """Whether rows that are surely numbers could be read together: arrays, or lists of Python's."""
    kinds = set(map(type, records))
    if kinds == {np.ndarray} and all(_is_row(record, rows.shape[1]) for record in records):
        rows[:] = np.concatenate(records, dtype=np.float64, casting="same_kind").reshape(rows.shape)
        return True
    if not kinds <= {list, tuple} or set(map(len, records)) != {rows.shape[1]}:
        return False
    types = set(map(type, chain.from_iterable(records)))
    if not types <= _NUMBERS:
        return False
    try:
        numbers = np.array(records, np.float64)
    except OverflowError:
        return False
    if int in types and bool((np.abs(numbers) >= _INT64).any()):
        return False
    rows[:] = numbers
    return True


def _is_row(record: npt.NDArray[Any], dim: int) -> bool:
    return record.shape == (dim,) and record.dtype.kind in "biuf" and record.dtype.itemsize <= np.float64().itemsize


def _is_number(item: Any) -> bool:
    return getattr(item, "ndim", None) == 0 or isinstance(item, Number)


def _is_scalar(item: Any) -> bool:
    return item is None or isinstance(item, str | bytes) or _is_number(item)
