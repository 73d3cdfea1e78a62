"""Tables of records: data frames, Arrow tables, columns by name, lists of dicts, and files of them.

Columns are found by the names in the plan (``record.names``), in any order. If the plan has no names, columns are used
by position only if the caller asks for it: two columns in the wrong order give plausible records and wrong answers.

A wrong *column* is a mistake of the caller, so it is an error for the whole table. A list of rows has no columns: each
row is read separately. If the plan names its columns, a row with names (a mapping, a named tuple, a dataclass, a
``pandas.Series``, a ``sqlite3.Row``) is read by name, and a row with other names is dropped alone.

Coordinates of a table are float64, converted value by value, like those of a list. With a common type for a column, one
missing value would change the last bits of other records. Labels and client ids are not converted.
"""

import codecs
import csv
import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from numbers import Real
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import numpy.typing as npt

from hushsum.collection import items_of
from hushsum.errors import RecordError
from hushsum.families import SetRecords, VectorRecords, vectors
from hushsum.plan import Plan

Floats = npt.NDArray[np.float64]
#: The columns to use: their names, or a mapping of names in the plan to names in the table.
Columns = Sequence[str] | Mapping[str, str]
_SUFFIXES: Final = (".parquet", ".csv", ".npy")
_HEADER_MAX: Final = 2**16  # bytes
_LINE_END: Final = re.compile(rb"[\r\n]")
_OTHER_DELIMITERS: Final = re.compile(r"[;|\x00-\x1f\x7f-\x9f\u2028\u2029]")
_LIKE_A_VALUE: Final = re.compile(r"^\s*[\d.+\-\u2212]|@")  # numbers, dates, percentages, e-mail addresses
_LINES_SHOWN: Final = 3
_BLOCK_BYTES: Final = 2**20
#: Cells of a CSV that Arrow reads as numbers, without spaces and tabs around them: decimal, or (64 bits) hexadecimal.
_DECIMAL: Final = r"(?i)^[-+]?(([0-9]+\.?[0-9]*|\.[0-9]+)(e[-+]?[0-9]+)?|inf|infinity|nan(\([0-9a-z_]*\))?)$"
_HEXADECIMAL: Final = r"(?i)^0x[0-9a-f]{1,16}$"
_PLAIN: Final = frozenset({float, int, bool})
_NAMELESS: Final = frozenset({list, tuple, np.ndarray})  # types of most rows, which have no names


@dataclass(frozen=True, eq=False)
class NamedColumns:
    """Columns with names.

    Attributes:
        names: Names of the columns, all different.
        column: Returns a column by its name: an array, or another sequence of n values.
        source: The subject of error messages: ``the table``, or the name of a file.
        csv: The line numbers of a CSV. Its columns of text are read as numbers cell by cell.
    """

    names: tuple[str, ...]
    column: Callable[[str], Any]
    source: str = "the table"
    csv: "CsvLines | None" = None

    def numbers(self, names: Sequence[str], *, forgiving: bool = False) -> Floats:
        """Rows of these columns, (n, d): NaN where a value is missing or is not a number.

        Args:
            names: Names of d columns.
            forgiving: A column without any number is NaN throughout, instead of an error.

        Raises:
            RecordError: A column is missing, masked or has no numbers, or columns have different lengths.
        """
        return self.read(names, forgiving=forgiving)[0]

    def read(self, names: Sequence[str], *, forgiving: bool = False) -> tuple[Floats, tuple[str, ...]]:
        """:meth:`numbers`, and some of the CSV lines that have a wrong number of cells, or text instead of numbers."""
        wrong: dict[int, list[str]] = {}
        columns = [
            self._numbers(name, forgiving=forgiving)
            if self.csv is None
            else self._cells(name, wrong, forgiving=forgiving)
            for name in names
        ]
        if len({len(column) for column in columns}) > 1:
            lengths = ", ".join(f"{name} {len(column)}" for name, column in zip(names, columns, strict=True))
            raise RecordError(f"{self.source}: columns have different lengths: {lengths}")
        return np.column_stack(columns), () if self.csv is None else self.csv.described(wrong)

    def values(self, name: str) -> Any:
        """One column without conversion: labels, or client ids; a list if the column is Arrow's.

        Raises:
            RecordError: There is no such column.
        """
        self.check(name)
        column = self.column(name)
        return items_of(column) if hasattr(column, "to_pylist") else column

    def check(self, name: str) -> None:
        """Checks that a column exists.

        Raises:
            RecordError: There is no such column; the error lists the columns.
        """
        if name not in self.names:
            raise RecordError(f"{self.source}: no column {name!r}; it has {', '.join(self.names)}")

    def _cells(self, name: str, wrong: dict[int, list[str]], *, forgiving: bool) -> Floats:
        """A column of a CSV. The first cells that are text are added to ``wrong``, by record number."""
        self.check(name)
        column = self.column(name)
        if str(column.type) != "string":
            return self._numbers(name, forgiving=forgiving)
        numbers, is_text, is_number = _cells(column)
        if not (is_number.any() or forgiving):
            raise RecordError(f"{self.source}: column {name!r} contains str, expected numbers")
        for number in np.flatnonzero(is_text)[:_LINES_SHOWN].tolist():
            wrong.setdefault(number, []).append(name)
        return numbers

    def _numbers(self, name: str, *, forgiving: bool) -> Floats:
        self.check(name)
        column = self.column(name)
        if isinstance(column, np.ma.MaskedArray):
            raise RecordError(f"{self.source}: column {name!r} is masked; fill or drop masked values first")
        if not isinstance(column, list | tuple):
            try:
                column = np.asarray(column)
            except Exception as error:
                raise RecordError(f"{self.source}: column {name!r} cannot be read: {error}") from error
        if isinstance(column, np.ndarray) and column.ndim != 1:
            raise RecordError(f"{self.source}: column {name!r} contains arrays of shape {column.shape[1:]}")
        if isinstance(column, np.ndarray) and column.dtype.kind in "biuf":
            return column.astype(np.float64)
        if isinstance(column, np.ndarray) and column.dtype != np.object_:
            values, kind = np.full(len(column), np.nan), str(column.dtype)
        else:  # each value is read separately
            plain = _at_once(column)
            if plain is not None:
                return plain
            read = [_number(value) for value in column]
            values = np.array([math.nan if value is None else value for value in read], np.float64)
            kind = next(
                (type(value).__name__ for value, number in zip(column, read, strict=True) if number is None), ""
            )
            if not kind or not np.isnan(values).all():
                return values
        if forgiving:
            return values
        raise RecordError(f"{self.source}: column {name!r} contains {kind}, expected numbers")


@dataclass(frozen=True, eq=False)
class CsvLines:
    """The line numbers of the records of a CSV.

    Attributes:
        path: The file.
        first: The number of the first record among the lines that are not empty, from 1.
        ragged: Some of the records with a wrong number of cells, with a description.
    """

    path: Path
    first: int
    ragged: Mapping[int, str]

    def described(self, texts: Mapping[int, Sequence[str]]) -> tuple[str, ...]:
        """Some of the lines that cannot be used, with the reason.

        Args:
            texts: For record numbers, from 0, the columns that have text instead of numbers.
        """
        wrong = {**{number: f"not a number: {', '.join(names)}" for number, names in texts.items()}, **self.ragged}
        left = {number + self.first: wrong[number] for number in sorted(wrong)[:_LINES_SHOWN]}
        found: list[str] = []
        if not left:
            return ()
        number = 0
        with self.path.open(encoding="utf-8-sig", errors="replace", newline="") as lines, suppress(csv.Error):
            reader = csv.reader(lines)
            for cells in reader:
                number += bool(cells)
                if cells and number in left:
                    found.append(f"line {reader.line_num} of {self.path.name}: {left.pop(number)}")
                if not left:
                    break
        return tuple(found)


@dataclass(frozen=True, eq=False)
class RecordTable:
    """The records, labels and client ids of a table or of another argument.

    Attributes:
        records: The input of :func:`hushsum.usable_records.read`.
        labels: n labels, or None.
        clients: n ids, or None.
        lines: Some lines of a CSV with records that cannot be used, with the reason.
    """

    records: Any
    labels: Any
    clients: Any
    lines: tuple[str, ...] = ()


def read_table(
    plan: Plan,
    records: Any,
    *,
    labels: Any = None,
    clients: Any = None,
    columns: Columns | None = None,
    by_position: bool = False,
) -> RecordTable:
    """The records of a table in the order of the plan's columns. Other values are returned unchanged.

    Args:
        plan: The plan that collects them.
        records: A pandas or polars data frame (a lazy one is collected), an Arrow table, a mapping of names to columns,
            a list of rows with names, one such row, or the path of a ``.csv``, ``.parquet`` or ``.npy`` file.
        labels: For a plan with classes: the name of a column, or n labels.
        clients: For unit ``client``: the name of a column, or n ids.
        columns: The columns to use, if the table has others too; or a mapping of names in the plan to names here.
        by_position: Use the columns in their order, and ignore their names.

    Raises:
        RecordError: A column is missing, unexpected or without numbers; the plan names no columns and
            ``by_position`` was not given; or a file cannot be read.
    """
    chosen = columns is not None or by_position
    if type(records) is np.ndarray and records.dtype != np.object_ and not chosen:
        return RecordTable(records, labels, clients)
    if isinstance(columns, str):
        raise RecordError(f"columns: got the single name {columns!r}, expected a list or a mapping of names")
    if isinstance(records, str | PathLike):
        records = _read_path(plan, fspath(records), columns, _names_in(labels, clients))
        if isinstance(records, np.ndarray):
            return RecordTable(records, labels, clients)
    by_name = bool(plan.collection.names) or chosen
    table = None
    if type(records) not in _NAMELESS:
        records, table = _one_or_many(plan, records, by_name=by_name)
    if table is not None:
        return _read_columns(plan, table, labels, clients, columns, by_position=by_position)
    rows = _named_rows(records, by_name=by_name) if isinstance(plan.record, VectorRecords) else None
    if rows is not None:
        return _read_rows(plan, rows, labels, clients, columns, by_position=by_position)
    if chosen:
        raise RecordError("columns: cannot be used, because the records are not a table with named columns")
    return RecordTable(records, labels, clients)


def _names_in(*columns: Any) -> list[str]:
    """The columns that are given by name."""
    return [name for name in columns if isinstance(name, str)]


def _read_path(plan: Plan, path: str, columns: Columns | None, others: Sequence[str]) -> Any:
    """:func:`read_file` with the column names of the plan and the caller."""
    if isinstance(plan.record, SetRecords):
        raise RecordError(f"{path}: tables cannot hold sets, which the plan collects; pass a list of sets")
    found = read_file(path, names=plan.collection.names, columns=columns or (), texts=others)
    named = [*others, *(columns or ())]
    if named and isinstance(found, np.ndarray):
        raise RecordError(f"{path}: the columns have no names, so {named[0]!r} cannot be found")
    return found


def _read_columns(
    plan: Plan, table: NamedColumns, labels: Any, clients: Any, columns: Columns | None, *, by_position: bool
) -> RecordTable:
    if isinstance(plan.record, SetRecords):
        raise RecordError("records: got a table, but this plan collects sets: pass the column with the sets")
    others = _names_in(labels, clients)
    for name in others:
        table.check(name)
    wanted = _wanted(plan, table.names, columns, others, by_position=by_position, source=table.source)
    # Under a plan of reports, an error would reveal that there is a record.
    numbers, lines = table.read(wanted, forgiving=plan.report_sizes is not None)
    return RecordTable(
        numbers,
        table.values(labels) if isinstance(labels, str) else labels,
        table.values(clients) if isinstance(clients, str) else clients,
        lines,
    )


def _one_or_many(plan: Plan, records: Any, *, by_name: bool) -> tuple[Any, NamedColumns | None]:
    """The records, and a table if they are one. A single row with names becomes a list of one row."""
    is_mapping = _is_mapping(records)
    table = None if is_mapping else table_of(records)
    has_names = is_mapping or (by_name and table is None and isinstance(plan.record, VectorRecords))
    row = _fields_of(records) if has_names else None
    if row is None:
        return records, table
    # A mapping is one record or one table. A sequence with names may also be a batch with a name for each row.
    is_sequence = isinstance(records, Sequence) or hasattr(records, "__array__")
    if is_sequence and not (set(plan.collection.names) & row.keys() or vectors.is_one_record([*row.values()])):
        return records, None
    if _is_columns(row, forgiving=plan.report_sizes is not None):
        return records, table_of(row)
    return [records], None


@dataclass(frozen=True)
class _Rows:
    """Rows, and each as a mapping of its names; None for a row without names."""

    items: Sequence[Any]
    named: Sequence[Mapping[Any, Any] | None]


def _named_rows(records: Any, *, by_name: bool) -> _Rows | None:
    """The rows of a sequence; None if no row has names. Without ``by_name`` only mappings count as rows with names."""
    items = vectors.rows_of(vectors.typed(records)) or ()
    try:
        kinds = set(map(type, items))
    except Exception:  # noqa: BLE001 -- a type that cannot be hashed drops its records alone
        items = [item if _is_comparable(type(item)) else [] for item in items]
        kinds = set(map(type, items))
    if kinds <= _NAMELESS:
        return None
    has_names = {kind: has_fields(kind) if by_name else _is_mapping_type(kind) for kind in kinds}
    if not any(has_names.values()):
        return None
    return _Rows(items, [_fields_of(item) if has_names[type(item)] else None for item in items])


def rows_have_names(records: Any) -> bool:
    """Whether one row, or some rows of a list, have names. True for an empty list, which may be a list of such rows."""
    if isinstance(records, np.ndarray) and records.dtype != np.object_:
        return False
    if isinstance(records, list | tuple) and not records:
        return True
    return has_fields(type(records)) or _named_rows(records, by_name=True) is not None


def _read_rows(
    plan: Plan, rows: _Rows, labels: Any, clients: Any, columns: Columns | None, *, by_position: bool
) -> RecordTable:
    """Reads each row with names separately; other rows are unchanged."""
    others = _names_in(labels, clients)
    strict = plan.report_sizes is None and None not in rows.named
    read: list[Any]
    is_mapping = [_is_mapping(item) for item in rows.items] if by_position and columns is None else []
    if is_mapping and not (strict and all(is_mapping)):  # a mapping has no column order: it is dropped alone
        read = [
            item if row is None else [] if unordered else [row[name] for name in row if name not in others]
            for item, row, unordered in zip(rows.items, rows.named, is_mapping, strict=True)
        ]
    else:
        wanted: list[str] = []
        if strict or columns is not None or plan.collection.names:
            wanted = _wanted(plan, None, columns, others, by_position=by_position, source="the list")
        allowed = None if columns is not None else {*wanted, *others}
        read = [
            item if row is None else _row(row, wanted, allowed)
            for item, row in zip(rows.items, rows.named, strict=True)
        ]
        if strict and not any(read):
            first = ", ".join(map(str, rows.named[0] or ()))
            raise RecordError(f"records: the first has {first}, expected {', '.join(wanted)} in each")
    for name in others:
        if strict and all(_get(row, name) is None for row in rows.named):
            raise RecordError(
                f"records: none has the key {name!r} for labels or clients; for one value pass [{name!r}]"
            )
    return RecordTable(
        read,
        [_get(row, labels) for row in rows.named] if isinstance(labels, str) else labels,
        [_get(row, clients) for row in rows.named] if isinstance(clients, str) else clients,
    )


def read_queries(plan: Plan, queries: Any, *, columns: Columns | None = None, by_position: bool = False) -> Any:
    """Points of a table with the plan's columns, in the plan's order. Other values are returned unchanged.

    Raises:
        RecordError: As in :func:`read_table`; or a line of a CSV has a wrong number of cells; or queries of this family
            have other columns than its records.
    """
    if isinstance(queries, str | PathLike):
        return queries
    if isinstance(plan.record, VectorRecords) and plan.family.query_dim != plan.vectors.dim:
        if table_of(queries) is not None or _named_rows(queries, by_name=False) is not None:
            raise RecordError(f"queries: got a table, expected an array (m, {plan.family.query_dim})")
        return queries
    table = read_table(plan, queries, columns=columns, by_position=by_position)
    if table.lines:
        raise RecordError(f"queries: {table.lines[0]}")
    return table.records


def is_lazy(records: Any) -> bool:
    """Whether the records are not yet read or computed: the path of a file, or a lazy frame of polars."""
    return isinstance(records, str | PathLike) or (hasattr(records, "collect_schema") and hasattr(records, "collect"))


def table_of(records: Any, source: str = "the table") -> NamedColumns | None:
    """A value with named columns as a :class:`NamedColumns`; None for other values.

    Raises:
        RecordError: Two columns have the same name.
    """
    if is_lazy(records) and not isinstance(records, str | PathLike):
        records = records.collect()
    if isinstance(records, NamedColumns):
        return records
    if isinstance(records, Mapping):
        return _named(list(records), list(records), records.__getitem__, source)
    if hasattr(records, "column_names") and hasattr(records, "column"):  # Arrow's table
        return _named(records.column_names, range(len(records.column_names)), records.column, source)
    if hasattr(records, "schema") and hasattr(records, "to_pydict"):  # Arrow's record batch
        return _named(records.schema.names, range(len(records.schema.names)), records.column, source)
    if hasattr(records, "columns") and hasattr(records, "__getitem__") and hasattr(records, "shape"):
        return _named(list(records.columns), list(records.columns), records.__getitem__, source)
    return None


def read_file(
    path: str | PathLike[str],
    *,
    names: Collection[str] = (),
    columns: Columns = (),
    texts: Collection[str | None] = (),
) -> Any:
    """The rows of a file: :class:`NamedColumns`, or an array (n, d) of a ``.npy`` file.

    A line of a CSV that has another number of cells than the first line is a record without values. A cell that is not
    a number, or not in UTF-8, is a missing value.

    Args:
        path: The file. If the first line of a CSV has only numbers, its columns are called ``x0``, ``x1`` and so on.
        names: Known column names: a first line with these is a header, even if they are numbers.
        columns: Columns that are read as numbers.
        texts: Columns of a CSV that are read as text, such as labels: ``01`` is not converted. None is ignored.

    Raises:
        RecordError: The file cannot be read.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in _SUFFIXES:
        raise RecordError(
            f"{path}: expected a file with extension {', '.join(_SUFFIXES)}, got {suffix or 'no extension'!r}"
        )
    if not path.is_file():
        raise RecordError(f"{path}: no such file")
    if suffix == ".npy":
        return _npy(path)
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise RecordError(
            f"{path}: reading CSV and Parquet files needs pyarrow: pip install 'hushsum[files]'"
        ) from error
    try:
        if suffix == ".parquet":
            return table_of(parquet.read_table(path), str(path))
        numbers = columns.values() if isinstance(columns, Mapping) else columns
        return _csv(path, names, [name for name in texts if name is not None and name not in numbers])
    except (pa.ArrowException, OSError) as error:
        what = "a Parquet" if suffix == ".parquet" else "a CSV"
        raise RecordError(f"{path}: not {what} file: {str(error).splitlines()[0]}") from error


def _csv(path: Path, names: Collection[str], texts: Collection[str]) -> NamedColumns | None:
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    nameless = _has_no_names(path, names)
    content = _in_utf8(path)
    ragged: list[Any] = []

    def skip(row: Any) -> str:
        ragged.append(row)
        return "skip"

    def read(*, use_threads: bool) -> Any:
        ragged.clear()
        return arrow_csv.read_csv(
            path if content is None else pa.BufferReader(content),
            read_options=arrow_csv.ReadOptions(autogenerate_column_names=nameless, use_threads=use_threads),
            parse_options=arrow_csv.ParseOptions(invalid_row_handler=skip),
            convert_options=arrow_csv.ConvertOptions(column_types=dict.fromkeys(texts, pa.string())),
        )

    table = read(use_threads=True)
    first = 1 if nameless else 2
    if ragged:
        table = read(use_threads=False)  # only without threads do rows have numbers; empty lines have none
        places = np.array([row.number - first for row in ragged])
        numbers = np.zeros(table.num_rows + len(places), np.int64)
        is_ragged = np.zeros(len(numbers), np.bool_)
        is_ragged[places] = True
        numbers[~is_ragged] = np.arange(table.num_rows)
        table = table.take(pa.array(numbers, mask=is_ragged))
    if nameless:
        table = table.rename_columns([f"x{number}" for number in range(table.num_columns)])
    found = table_of(table, str(path))
    shown = {row.number - first: _cells_of(row) for row in ragged[:_LINES_SHOWN]}
    return None if found is None else replace(found, csv=CsvLines(path, first, shown))


def _in_utf8(path: Path) -> bytes | None:
    """The content of a file with U+FFFD for invalid UTF-8, which drops its own record alone; None if all is valid."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    try:
        with path.open("rb") as file:
            while block := file.read(_BLOCK_BYTES):
                decoder.decode(block)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return path.read_bytes().decode("utf-8", "replace").encode()
    return None


def _cells_of(row: Any) -> str:
    """The error of an invalid row of Arrow."""
    cell = "cell" if row.actual_columns == 1 else "cells"
    return f"{row.actual_columns} {cell}, expected {row.expected_columns}"


def _cells(column: Any) -> tuple[Floats, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Cells of a CSV as float64, NaN for missing cells and text; which are text, and which are numbers.

    Each cell is read separately, to its value in a column of cells of the same kind. If one text cell decided the type
    of its column, one record would decide about all others. ``true`` and ``false`` are 1 and 0, as in lists.
    """
    import pyarrow as pa
    from pyarrow import compute
    from pyarrow import csv as arrow_csv

    options = arrow_csv.ConvertOptions()

    def mask(found: Any) -> npt.NDArray[np.bool_]:
        return np.asarray(found.fill_null(fill_value=False), np.bool_)

    def is_one_of(names: Sequence[str]) -> npt.NDArray[np.bool_]:
        return mask(compute.is_in(column, value_set=pa.array(names, pa.string())))

    numbers = np.full(len(column), np.nan)
    is_missing = is_one_of(options.null_values) | np.asarray(column.is_null(), np.bool_)
    is_number = np.zeros(len(column), np.bool_)
    trimmed = compute.ascii_trim(column, characters=" \t")
    for pattern, kind in ((_DECIMAL, pa.float64()), (_HEXADECIMAL, pa.int64())):
        matched = mask(compute.match_substring_regex(trimmed, pattern)) & ~is_missing
        numbers[matched] = np.asarray(trimmed.filter(pa.array(matched)).cast(kind), np.float64)
        is_number |= matched
    for names, value in ((options.true_values, 1.0), (options.false_values, 0.0)):
        matched = is_one_of(names) & ~is_number
        numbers[matched] = value
        is_number |= matched
    return numbers, ~(is_number | is_missing), is_number


def _named(names: Sequence[Any], keys: Sequence[Any], column: Callable[[Any], Any], source: str) -> NamedColumns:
    texts = tuple(map(str, names))
    twice = sorted({name for name in texts if texts.count(name) > 1})
    if twice:
        raise RecordError(f"{source}: two columns are named {twice[0]!r}")
    place = dict(zip(texts, keys, strict=True))
    return NamedColumns(texts, lambda name: column(place[name]), source)


def _wanted(
    plan: Plan,
    names: tuple[str, ...] | None,
    columns: Columns | None,
    others: Sequence[str],
    *,
    by_position: bool,
    source: str,
) -> list[str]:
    """The columns of the table in the order of the plan; ``names`` is None if each record has its own names."""
    expected, dim = plan.collection.names, plan.vectors.dim
    given = tuple(_distinct([str(name) for name in columns or ()])) if not isinstance(columns, Mapping) else ()
    if isinstance(columns, Mapping):
        if not expected or by_position:
            raise RecordError("columns: a mapping requires a plan with column names (record.names)")
        unknown = [name for name in columns if name not in expected]
        if unknown:
            raise RecordError(f"columns: the plan has no column {unknown[0]!r}; it has {', '.join(expected)}")
        return _distinct([str(columns.get(name, name)) for name in expected])
    found = given or tuple(name for name in names or () if name not in others)
    if expected and not by_position:
        if names is None and not given:
            return list(expected)
        missing = [name for name in expected if name not in found]
        extra = [name for name in found if name not in expected]
        if missing or extra:
            wrong = "; ".join(
                f"{what}: {', '.join(some)}"
                for what, some in (("missing", missing), ("not in the plan", extra))
                if some
            )
            raise RecordError(
                f"{source}: columns {', '.join(found)}, the plan has {', '.join(expected)} ({wrong}); "
                "select or map them with columns"
            )
        return list(expected)
    if not given and not by_position:
        raise RecordError(
            f"{source}: the plan has no names for its {dim} columns (record.names), so their order is not known; "
            f"list them in the plan's order with columns, or use by_position to take {', '.join(found) or 'them'} "
            "in this order"
        )
    if names is None and not given:
        raise RecordError("columns: dicts have no column order; list the columns in the plan's order")
    if len(found) != dim:
        raise RecordError(f"{source}: {len(found)} columns ({', '.join(found)}), the plan expects {dim}")
    return list(found)


def _distinct(names: list[str]) -> list[str]:
    """The same names.

    Raises:
        RecordError: A name is used twice.
    """
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise RecordError(f"columns: {twice!r} is used twice")
    return names


def _is_mapping(record: Any) -> bool:
    return _is_mapping_type(type(record))


def _is_mapping_type(kind: type) -> bool:
    return issubclass(kind, Mapping)


def _is_comparable(kind: type) -> bool:
    try:
        return bool({kind})
    except Exception:  # noqa: BLE001 -- a foreign type may raise anything
        return False


def has_fields(kind: type) -> bool:
    """Whether rows of a type have names: a mapping, named tuple, dataclass, ``pandas.Series`` or ``sqlite3.Row``."""
    try:
        named = is_dataclass(kind) or (issubclass(kind, Sequence) and hasattr(kind, "_fields"))
        return named or _is_mapping_type(kind) or (hasattr(kind, "keys") and hasattr(kind, "__getitem__"))
    except Exception:  # noqa: BLE001 -- a property of a foreign type may raise anything, and drops its records alone
        return False


def _fields_of(row: Any) -> Mapping[Any, Any] | None:
    """The values of a row by name; None if the row has no names, or raises an error."""
    try:
        if _is_mapping(row):
            return cast("Mapping[Any, Any]", row)
        if not has_fields(type(row)):
            return None
        if is_dataclass(row):
            return {field.name: getattr(row, field.name) for field in fields(row)}
        if hasattr(row, "_fields"):
            return dict(zip(row._fields, row, strict=True))
        names = list(row.keys())  # for a Series without names, the numbers of its items
        return {name: row[name] for name in names} if any(isinstance(name, str) for name in names) else None
    except Exception:  # noqa: BLE001 -- an error of one record drops this record alone
        return None


def _row(record: Any, names: Sequence[str], allowed: set[str] | None) -> list[Any]:
    """Empty if the names differ. It must be a row: a batch of None and numbers would be read as one record."""
    try:
        return [record[name] for name in names] if allowed is None or allowed.issuperset(record) else []
    except Exception:  # noqa: BLE001 -- an error of one record drops this record alone
        return []


def _get(record: Any, name: str) -> Any:
    try:
        return record[name]
    except Exception:  # noqa: BLE001 -- an error of one record drops this record alone
        return None


def _is_columns(records: Mapping[Any, Any], *, forgiving: bool) -> bool:
    """Whether a mapping is a table: a sequence for each name. Otherwise it is one record, with any values."""
    kinds: tuple[type, ...] = (np.ndarray,) if forgiving else (np.ndarray, list, tuple)
    return len(records) > 0 and all(
        issubclass(type(value), kinds) or (hasattr(type(value), "__array__") and hasattr(type(value), "__len__"))
        for value in records.values()
    )


def _at_once(column: Sequence[Any]) -> Floats | None:
    """A column of Python floats and integers, which NumPy converts as :func:`_number` does; None for others."""
    try:
        return np.array(column, np.float64) if _PLAIN.issuperset(map(type, column)) else None
    except Exception:  # noqa: BLE001 -- an integer beyond float64, or a type that cannot be compared
        return None


def _number(value: Any) -> float | None:
    """A value as float64, NaN if it is missing; None if it is not a number."""
    try:
        if value is None or type(value).__name__ in ("NAType", "NaTType"):  # of pandas
            return math.nan
        return float(value) if isinstance(value, Real) else None
    except Exception:  # noqa: BLE001 -- an error of one value drops its record alone
        return None


def _npy(path: Path) -> Any:
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: not a NumPy .npy file: {error}") from error
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
        raise RecordError(f"{path}: expected an array of numbers, got {getattr(array, 'dtype', type(array))}")
    if array.ndim == 1:
        array = array[:, None]
    if array.ndim != 2:
        raise RecordError(f"{path}: expected an array (records, columns), got one of shape {array.shape}")
    return array.astype(np.float64)


def _has_no_names(path: Path, names: Collection[str]) -> bool:
    """Whether the first line of a CSV has only numbers or empty cells, and not these names."""
    cells = [cell.strip() for cell in _first_line(path)]
    if names and set(names) <= set(cells):
        return False
    return any(cells) and all(_is_number(cell) for cell in cells if cell)


def _first_line(path: Path) -> list[str]:
    try:
        # The buffer may contain later lines: invalid UTF-8 in them drops their own record alone.
        with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as lines:
            first = next(csv.reader(lines), [])
        for cell in first:
            cell.encode("utf-8", "surrogateescape").decode("utf-8")
        return first
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RecordError(f"{path}: not a CSV file in UTF-8: {error}") from error


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def column_names(path: str | PathLike[str], *, given: Collection[str] = ()) -> tuple[str, ...]:
    """The column names of a file: the first line of a CSV, the schema of a Parquet file. No value is read.

    Only the first line of a CSV is read and decoded, so later lines do not affect the result.

    Args:
        path: A CSV in UTF-8 with commas between its cells, or a Parquet file.
        given: Names that the caller states: they are accepted even if they look like values, such as ``2019``.

    Raises:
        RecordError: The file cannot be read, its columns have no names, or a name looks like a value of a record. The
            error shows no content of the file.
    """
    path = Path(path)
    suffix = path.suffix.lower()
    if suffix not in {".csv", ".parquet"}:
        raise RecordError(f"{path}: expected a .csv or .parquet file with named columns")
    if not path.is_file():
        raise RecordError(f"{path}: no such file")
    if suffix == ".parquet":
        try:
            from pyarrow import ArrowException, parquet
        except ImportError as error:
            raise RecordError(f"{path}: reading Parquet files needs pyarrow: pip install 'hushsum[files]'") from error
        try:
            names = parquet.read_schema(path).names
        except (ArrowException, OSError):
            raise RecordError(f"{path}: not a Parquet file") from None
        where = "its schema"
    else:
        names, where = _header(path), "its first line"
    unknown = [name for name in names if name not in given]
    if any(map(_OTHER_DELIMITERS.search, unknown)):
        raise RecordError(
            f"{path}: {where} contains a semicolon, tab, vertical bar or control character, "
            "expected column names separated by commas"
        )
    if any(_is_number(name) or _LIKE_A_VALUE.search(name) for name in unknown):  # of a record
        raise RecordError(
            f"{path}: {where} contains a number, a date, an e-mail address or another value, "
            "expected only column names; pass a name that looks like a value explicitly, as in --columns"
        )
    if not names or not all(names):
        raise RecordError(f"{path}: {'a column has no name' if names else 'no column has a name'}")
    if len(set(names)) < len(names):
        raise RecordError(f"{path}: two columns have the same name")
    return tuple(names)


def _header(path: Path) -> list[str]:
    """The cells of the first line of a CSV. Errors do not show its content."""
    try:
        with path.open("rb") as file:
            line = _LINE_END.split(file.readline(_HEADER_MAX + 1), maxsplit=1)[0]
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror}") from None
    if len(line) > _HEADER_MAX:
        raise RecordError(f"{path}: its first line has more than {_HEADER_MAX:,} bytes, expected column names")
    try:
        text = line.decode("utf-8-sig")
        cells = next(csv.reader([text], strict=True), [])
    except (UnicodeDecodeError, csv.Error) as error:
        wrong = "is not UTF-8" if isinstance(error, UnicodeDecodeError) else "has unmatched quotes"
        raise RecordError(f"{path}: its first line {wrong}, expected column names") from None
    if text.count('"') % 2:
        raise RecordError(f"{path}: its first line has unmatched quotes, expected column names")
    return cells
