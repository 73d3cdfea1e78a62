"""What a size costs: bytes on the wire and in memory, and the time that a device hashes; measured on made-up records.

Bytes of deltas are those of real ones. Memory is that of the arrays alone. Time is that of the machine that asks, by a
clock that the caller brings: the core reads none. What is measured at 8,192 rows counts in proportion beyond.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Final

import numpy as np

from hushsum import delta
from hushsum.advice.guesses import Guesses
from hushsum.advice.sizes import row_unit, rows_of, with_rows
from hushsum.advice.stand_in import StandIn
from hushsum.delta import DeltaId
from hushsum.families import Family
from hushsum.plan import Plan

#: Seconds since some moment.
Clock = Callable[[], float]

_MEASURED_ROWS: Final = 8192
_DELTAS: Final = 4  # that a mean is taken of
_TIMED_RECORDS: Final = 16
_TIMED: Final = 3  # of which the quickest counts
_ID: Final = DeltaId(2**63, 1000)
# Of a secure sum, about: keys, signatures and bitmaps; a sealed share, and one that is shown, for each neighbour.
_KEYS, _SHARES = 500, 48 + 17
_KIB, _MIB = 2.0**10, 2.0**20


@dataclass(frozen=True)
class Costs:
    """What one size of a plan costs.

    Attributes:
        delta_bytes: On the wire, of one record, as far as may be expected.
        client_delta_bytes: Of as many records as one client is expected to send together.
        device_bytes: The hash parameters of a device, and of whoever answers queries.
        aggregator_bytes: The exact counters of one open window.
        release_bytes: Of a ``.hush`` file, at most.
        record_seconds: Hashing one record, on the machine that advises; None without a clock.
        upload_bytes: What a client sends in a window, whatever it has: of a secure sum its masked vector, and shares of
            masks for each neighbour; of form ``silo`` its noised counters. None in mode ``central``, where it sends
            deltas.
    """

    delta_bytes: float
    client_delta_bytes: float
    device_bytes: float
    aggregator_bytes: float
    release_bytes: float
    record_seconds: float | None
    upload_bytes: float | None = None

    def times(self, factor: float) -> "Costs":
        """In proportion."""
        return Costs(
            delta_bytes=self.delta_bytes * factor,
            client_delta_bytes=self.client_delta_bytes * factor,
            device_bytes=self.device_bytes * factor,
            aggregator_bytes=self.aggregator_bytes * factor,
            release_bytes=self.release_bytes * factor,
            upload_bytes=None if self.upload_bytes is None else self.upload_bytes * factor,
            record_seconds=None if self.record_seconds is None else self.record_seconds * factor,
        )


@dataclass(frozen=True)
class Allowance:
    """The most that a size may cost.

    Attributes:
        device_ms: Milliseconds of hashing a record, as measured where the advice is asked for.
        delta_kib: KiB on the wire for one record.
        memory_mib: MiB of exact counters for one open window.
    """

    device_ms: float = 10.0
    delta_kib: float = 64.0
    memory_mib: float = 512.0

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise ValueError(f"{field.name}: got {getattr(self, field.name)}, expected a number above 0")

    def exceeded(self, costs: Costs) -> tuple[str, ...]:
        """Which of these a size exceeds, by name."""
        asked = {
            "device_ms": 1e3 * (costs.record_seconds or 0.0),
            "delta_kib": costs.delta_bytes / _KIB if costs.upload_bytes is None else 0.0,  # no delta is sent
            "memory_mib": costs.aggregator_bytes / _MIB,
        }
        return tuple(name for name, value in asked.items() if value > getattr(self, name))


class Costing:
    """The costs of a plan's sizes.

    Args:
        plan: Whose rows are changed.
        population: What is hashed.
        guesses: Of the records of a window, which counters grow to, and of its clients.
        clock: None: no time is measured.
    """

    def __init__(self, plan: Plan, population: StandIn, *, guesses: Guesses, clock: Clock | None) -> None:
        self._plan, self._population, self._guesses, self._clock = plan, population, guesses, clock
        together = round(guesses.records / guesses.clients)
        self._together = min(together, plan.delta_records_max, len(population.records))

    def of(self, rows: int | None) -> Costs:
        """Of the plan with so many rows."""
        unit = row_unit(self._plan)
        most = _MEASURED_ROWS // (unit or 1) * (unit or 1)
        if rows is not None and unit is not None and rows > most:
            measured = self._measured(with_rows(self._plan, most)).times(rows / most)
            return replace(measured, **self._counters(with_rows(self._plan, rows)))
        return self._measured(self._plan if rows == rows_of(self._plan) else with_rows(self._plan, rows))

    def _measured(self, plan: Plan) -> Costs:
        return Costs(
            delta_bytes=self._delta_bytes(plan, 1),
            client_delta_bytes=self._delta_bytes(plan, self._together),
            record_seconds=self._record_seconds(plan.family),
            device_bytes=float(_array_bytes(plan.family, set())),
            **self._counters(plan),
        )

    def _counters(self, plan: Plan) -> dict[str, float]:
        counters = int(np.prod(plan.counters_shape)) + plan.counters_shape[0]
        # A counter is at most as large as all records make it, and noise is hardly ever ten times its deviation.
        largest = self._guesses.records * plan.family.sensitivity.linf + 10 * self._noise_std(plan)
        item = next((size for size in (2, 4) if largest < 2.0 ** (8 * size - 1)), 8)
        sizes = {"aggregator_bytes": 8.0 * counters, "release_bytes": float(item * counters + len(plan.bundle))}
        cohort = plan.privacy.cohort
        if cohort is not None:
            neighbours = min(cohort.degree, cohort.size - 1)
            sizes["upload_bytes"] = float(plan.words.bytes + _KEYS + _SHARES * neighbours)
        elif plan.privacy.local is not None:
            sizes["upload_bytes"] = float(plan.upload_bytes_max)
        return sizes

    def _noise_std(self, plan: Plan) -> float:
        """Of one counter of a window."""
        return plan.privacy.mechanism.noise().std * math.sqrt(self._guesses.noised(plan))

    def _delta_bytes(self, plan: Plan, together: int) -> float:
        sizes = []
        labels = [plan.classes[0]] * together if plan.classes else None
        for start in range(0, min(_DELTAS * together, len(self._population.records) - together + 1), together):
            some = self._population.records[start : start + together]
            made, _ = delta.encode(plan, some, window=0, id=_ID, labels=labels)
            assert made is not None, "made-up records are usable"
            sizes.append(len(made.pack(plan)))
        return sum(sizes) / len(sizes)

    def _record_seconds(self, family: Family) -> float | None:
        if self._clock is None:
            return None
        accepted, _ = family.accept(self._population.records[:_TIMED_RECORDS])
        family.encode(accepted)  # which draws the parameters, and compiles
        taken = []
        for _ in range(_TIMED):
            started = self._clock()
            family.encode(accepted)
            taken.append(self._clock() - started)
        return min(taken) / len(accepted)


def _array_bytes(value: Any, seen: set[int]) -> int:
    """Of every array that a value holds, drawn tables included."""
    if id(value) in seen:
        return 0
    seen.add(id(value))
    if isinstance(value, np.ndarray):
        return value.nbytes if value.base is None else _array_bytes(value.base, seen)
    if isinstance(value, tuple | list):
        return sum(_array_bytes(item, seen) for item in value)
    if isinstance(value, dict):
        return sum(_array_bytes(item, seen) for item in value.values())
    held = getattr(value, "__dict__", None)
    if is_dataclass(value) and held is not None:
        return _array_bytes(held, seen)
    return 0
