"""Set records: sets of ids from a public universe, many of them in two arrays."""

import hashlib
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from hushsum.errors import RecordError

Integers = npt.NDArray[np.integer[Any]]
Int64 = npt.NDArray[np.int64]
UInt32 = npt.NDArray[np.uint32]
Bools = npt.NDArray[np.bool_]
_UNUSABLE: Final = np.empty(0, np.int64)
_OUTSIDE: Final = np.int64(-1)  # of every universe


def set_id(text: str, universe: int) -> int:
    """The id of a string: the first 8 bytes of SHA-256 of its UTF-8 form, big-endian, modulo the universe's size.

    **Frozen**: every device and every version gives a string the same id. Of k different strings about k²/2 pairs share
    an id with probability 1/universe each; those strings are one to the sketch.

    Args:
        text: Any string that UTF-8 can write.
        universe: Of the plan (``record.universe``), 1 to 2³².

    Raises:
        UnicodeEncodeError: The string has a lone surrogate.
    """
    return int.from_bytes(hashlib.sha256(text.encode("utf-8")).digest()[:8], "big") % universe


@dataclass(frozen=True, eq=False)
class Sets:
    """n sets, one after the other.

    Attributes:
        starts: (n + 1,) int64, from 0: where each set begins in ``ids``, and the end of the last.
        ids: (nnz,) uint32; strictly increasing within a set.
    """

    starts: Int64
    ids: UInt32

    def __len__(self) -> int:
        """n."""
        return len(self.starts) - 1

    def __getitem__(self, which: slice | Bools | Int64) -> "Sets":
        """Some of the sets: a slice of step 1, which copies no id, a mask (n,), or their numbers from 0."""
        if isinstance(which, slice):
            first, stop, step = which.indices(len(self))
            assert step == 1, "sets are cut into runs"
            stop = max(first, stop)
            return Sets(
                self.starts[first : stop + 1] - self.starts[first], self.ids[self.starts[first] : self.starts[stop]]
            )
        if which.dtype == np.bool_:
            return Sets(*_masked(self.starts, self.ids, which.astype(np.bool_, copy=False)))
        sizes = np.diff(self.starts)[which]
        starts = _starts(sizes)
        places = np.arange(starts[-1]) + np.repeat(self.starts[:-1][which] - starts[:-1], sizes)
        return Sets(starts, self.ids[places])

    def runs(self, ids_max: int) -> Iterator[slice]:
        """Slices of all sets in order, each of at most so many ids, or of one set that has more."""
        first = 0
        while first < len(self):
            most = int(np.searchsorted(self.starts, self.starts[first] + ids_max, "right")) - 1
            stop = max(first + 1, most)
            yield slice(first, stop)
            first = stop


@dataclass(frozen=True)
class Universe:
    """Reads sets of ids from 0 to ``size`` − 1.

    Attributes:
        size: Of the universe, at most 2³².
    """

    size: int

    def accept(self, records: Any) -> tuple[Sets, Bools]:
        """Usable sets, and the mask (n,) of those that were kept.

        The ids of a set may be in any order, and one that stands twice is in it once. Strings become ids by
        :func:`set_id`. A set that is empty, has an id outside the universe, or is neither of integers nor of strings,
        is dropped alone, and so is a row of a CSR matrix that stores a
        zero: nobody can tell whether its id is meant. The ids of a CSR matrix with 32-bit indices are not copied where
        they are sorted and all sets are kept.

        Args:
            records: A list, an array of objects or a column of a data frame, of n sets or integer arrays of one axis,
                a pyarrow array of lists, or an (n, universe) scipy CSR matrix whose stored entries are the ids.

        Raises:
            RecordError: Neither, or a CSR matrix of another width or type. What the items of a list are never raises.
        """
        starts, ids = _sorted(*self._read(records, "records"))
        kept = self._usable(starts, ids)
        if not kept.all():
            starts, ids = _masked(starts, ids, kept)
        return Sets(starts, _words(ids)), kept

    def queries(self, queries: Any) -> Sets:
        """Sets to ask about.

        Raises:
            RecordError: As for :meth:`accept`, and for a set that cannot be used.
        """
        starts, ids = _sorted(*self._read(queries, "queries"))
        bad = np.flatnonzero(~self._usable(starts, ids))
        if len(bad):
            expected = f"a non-empty set of ids from 0 to {self.size - 1}"
            raise RecordError(f"queries: number {bad[0]} cannot be used, expected {expected}")
        return Sets(starts, _words(ids))

    def accepted(self, records: object) -> Sets:
        """The same sets, once it is sure that they come from :meth:`accept`.

        Raises:
            RecordError: They do not.
        """
        if isinstance(records, Sets) and _described(records) and self._usable(records.starts, records.ids).all():
            return records
        raise RecordError("records: expected the sets that accept() returned")

    def _usable(self, starts: Int64, ids: Integers) -> Bools:
        kept = np.diff(starts) > 0
        if not len(ids):
            return np.asarray(kept, np.bool_)
        self._spoil(kept, starts, np.flatnonzero(_falls(starts, ids)) + 1)
        if int(ids.min()) < 0 or int(ids.max()) >= self.size:
            self._spoil(kept, starts, np.flatnonzero((ids < 0) | (ids >= self.size)))
        return np.asarray(kept, np.bool_)

    @staticmethod
    def _spoil(kept: Bools, starts: Int64, places: Int64) -> None:
        kept[np.searchsorted(starts, places, "right") - 1] = False

    def _read(self, sets: Any, what: str) -> tuple[Int64, Integers]:
        if hasattr(sets, "indptr") and hasattr(sets, "indices"):
            return self._read_csr(sets, what)
        if hasattr(sets, "to_pylist"):  # pyarrow's lists
            sets = sets.to_pylist()
        elif hasattr(sets, "to_list"):  # a column of pandas or polars
            sets = sets.to_list()
        if isinstance(sets, np.ndarray) and sets.dtype == np.object_ and sets.ndim:
            sets = sets.tolist()
        if isinstance(sets, str | bytes) or not isinstance(sets, Sequence):
            came = f"an array of shape {sets.shape}" if isinstance(sets, np.ndarray) else type(sets).__name__
            raise RecordError(f"{what}: got {came}, expected a list of sets or integer arrays, or a scipy CSR matrix")
        found = [_ids(item, self.size) for item in sets]
        refused = [(number, why) for number, why in enumerate(found) if isinstance(why, str)]
        if refused and what == "queries":
            raise RecordError(f"{what}: number {refused[0][0]}: {refused[0][1]}")
        arrays = [_UNUSABLE if isinstance(ids, str) else ids for ids in found]
        sizes = np.fromiter(map(len, arrays), np.int64, len(arrays))
        return _starts(sizes), np.concatenate([_UNUSABLE, *arrays])

    def _read_csr(self, matrix: Any, what: str) -> tuple[Int64, Integers]:
        if getattr(matrix, "format", "") != "csr":
            raise RecordError(f"{what}: got a {type(matrix).__name__}, expected CSR: matrix.tocsr()")
        if matrix.ndim != 2 or matrix.shape[1] != self.size:
            raise RecordError(f"{what}: got a matrix of shape {matrix.shape}, expected (n, {self.size})")
        starts = matrix.indptr.astype(np.int64)
        ids, entries = matrix.indices[: starts[-1]], matrix.data[: starts[-1]]  # both may have room for more
        if len(ids) != starts[-1] or starts[0] != 0 or np.any(np.diff(starts) < 0):
            raise RecordError(f"{what}: invalid CSR matrix: indptr must increase from 0 to the number of entries")
        if entries.dtype.kind not in "biuf":
            raise RecordError(f"{what}: got a matrix of {entries.dtype}, expected real numbers or booleans")
        if not entries.all():
            if what == "queries":
                expected = "no zero entries: matrix.eliminate_zeros()"
                raise RecordError(f"{what}: the CSR matrix stores zeros explicitly, expected {expected}")
            ids = np.where(entries == 0, _OUTSIDE, ids.astype(np.int64))  # their rows drop alone
        return starts, ids


def _ids(item: Any, universe: int) -> Int64 | str:
    """The ids of one set, or what is wrong with it: then it is dropped alone, like an empty set."""
    try:
        if isinstance(item, np.ma.MaskedArray):
            return "got a masked array; fill or drop masked values first"
        items = list(item) if isinstance(item, AbstractSet) else item
        texts = items.tolist() if isinstance(items, np.ndarray) and items.dtype.kind in "UO" else items
        if isinstance(texts, list | tuple) and texts and all(isinstance(each, str) for each in texts):
            items = [set_id(each, universe) for each in texts]
        array = np.asarray(items)
    except Exception as error:  # noqa: BLE001 -- anything may be in a list, and NumPy calls what its items define
        return f"not an array: {error}"
    if array.size == 0 and array.ndim == 1:
        return _UNUSABLE
    if array.dtype.kind not in "iu" or array.ndim != 1:
        return f"got {array.dtype} of shape {array.shape}, expected one axis of integers or of strings"
    if array.dtype == np.uint64:
        array = np.minimum(array, np.uint64(2**63 - 1))  # outside every universe, like what it was
    return array.astype(np.int64, copy=False)


def _falls(starts: Int64, ids: Integers) -> Bools:
    """(nnz − 1,): whether an id is followed, in its set, by one that is not larger."""
    falls = ids[1:] <= ids[:-1]
    falls[starts[1:-1][(starts[1:-1] > 0) & (starts[1:-1] < len(ids))] - 1] = False  # the first follows nothing
    return np.asarray(falls, np.bool_)


def _sorted(starts: Int64, ids: Integers) -> tuple[Int64, Integers]:
    """The same sets, the ids of each strictly increasing."""
    if not len(ids) or not _falls(starts, ids).any():
        return starts, ids
    sizes = np.diff(starts)
    owners = np.repeat(np.arange(len(sizes)), sizes)
    order = np.lexsort((ids, owners))
    ids = ids[order]
    first = np.ones(len(ids), np.bool_)
    first[1:] = (ids[1:] != ids[:-1]) | (owners[1:] != owners[:-1])
    return _starts(np.bincount(owners[first], minlength=len(sizes))), ids[first]


def _described(sets: Sets) -> bool:
    """Whether the arrays are what :class:`Sets` says: compiled loops trust them."""
    starts, ids = sets.starts, sets.ids
    if starts.dtype != np.int64 or ids.dtype != np.uint32 or starts.ndim != 1 or ids.ndim != 1 or not len(starts):
        return False
    return starts[0] == 0 and starts[-1] == len(ids) and not np.any(np.diff(starts) < 0)


def _masked(starts: Int64, ids: npt.NDArray[Any], kept: Bools) -> tuple[Int64, npt.NDArray[Any]]:
    sizes = np.diff(starts)
    return _starts(sizes[kept]), ids[np.repeat(kept, sizes)]


def _starts(sizes: Int64) -> Int64:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])


def _words(ids: Integers) -> UInt32:
    """Ids of a universe as uint32, of 32-bit integers without a copy."""
    ids = np.ascontiguousarray(ids)
    return ids.view(np.uint32) if ids.dtype in (np.int32, np.uint32) else ids.astype(np.uint32)
