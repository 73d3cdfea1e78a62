"""The windows of a plan: half-open intervals of UTC time with consecutive indices from the plan's epoch."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from hushsum.errors import Missing, PlanError
from hushsum.schema import Table

#: What a release is of: one window, or all windows so far.
TUMBLING: Final = "tumbling"
CUMULATIVE: Final = "cumulative"
#: The most outcomes of a cumulative sequence.
HORIZON_MAX: Final = 10**6
_UNITS_MS: Final = {"d": 86_400_000, "h": 3_600_000, "m": 60_000, "s": 1_000, "ms": 1}
_DURATION: Final = re.compile(r"([0-9]{1,15})(d|h|m|s|ms)")
_EPOCH_FORM: Final = "%Y-%m-%dT%H:%M:%SZ"
_LONGEST_MS: Final = 3_660 * _UNITS_MS["d"]
# Each running device shows itself in each window, and makes that durable: a plan must not wear its disk out by it.
_SHOWN_LENGTH_MS: Final = _UNITS_MS["m"]
_SHOWN_LATENESS_MAX: Final = 64  # windows
_AFTER_END_MS: Final = _UNITS_MS["s"]

#: What becomes of a delta that comes after its window's seal (``[window] late``): it counts nowhere, or the device
#: binds it to the next open window.
DROP: Final = "drop"
NEXT: Final = "next"
#: What gives a record its window (``[window] time``): when it happened, or when its device first sends it.
EVENT: Final = "event"
ARRIVAL: Final = "arrival"


@dataclass(frozen=True)
class Schedule:
    """When windows begin and end, and how long they wait (``[window]``).

    Attributes:
        length_ms: Length of a window, in milliseconds.
        epoch_ms: Start of window 0, in milliseconds since 1970-01-01T00:00:00Z.
        lateness_ms: How long after a window's end its deltas are still taken, before it is sealed.
        min_clients: A window with fewer clients is withheld; 0: every window is released.
        min_reports: A window with fewer reports is withheld, in plans of reports alone; 0: every window is released.
        late: ``drop``: a delta that comes after its window's seal counts nowhere; ``next``: its device binds it anew to
            the next open window.
        time: ``event``: a record belongs to the window of its event time; ``arrival``: to the window that is open when
            its device first sends it, which then binds it to that one; ``late`` is ``next``.
        horizon: How many outcomes of a cumulative sequence ε covers; None: each window is released alone.
        windows_per_client: In how many windows of a cumulative sequence a client may be, for unit ``client`` alone.
    """

    length_ms: int
    epoch_ms: int
    lateness_ms: int
    min_clients: int = 0
    min_reports: int = 0
    late: str = DROP
    time: str = EVENT
    horizon: int | None = None
    windows_per_client: int | None = None

    @classmethod
    def from_table(cls, table: Table) -> "Schedule":
        """Reads ``[window]``.

        Raises:
            PlanError: With the key, what came and what was expected.
        """
        length = duration(table, "length", "1h", low_ms=1)
        epoch = _epoch(table)
        lateness = duration(table, "lateness", "5m", low_ms=0)
        time = table.choice("time", built=[EVENT, ARRIVAL], default=EVENT)
        cumulative = table.choice("release", built=[TUMBLING, CUMULATIVE], default=TUMBLING) == CUMULATIVE
        min_clients = table.integer("min_clients", low=0, default=0)
        min_reports = table.integer("min_reports", low=0, default=0)
        late = table.choice("late", built=[DROP, NEXT], default=NEXT if time == ARRIVAL else DROP)
        if time == ARRIVAL and late == DROP:
            expected = f"{NEXT!r} with window.time {ARRIVAL!r}: no record has a window of its own to be late for"
            raise PlanError("window.late", late, expected)
        horizon, windows = _sequence(table, cumulative=cumulative)
        table.finish()
        return cls(length, epoch, lateness, min_clients, min_reports, late, time, horizon, windows)

    def to_fields(self) -> dict[str, object]:
        """Every key of ``[window]``, canonical; ``min_reports``, ``late`` and those of a sequence only where set."""
        epoch = datetime.fromtimestamp(self.epoch_ms // 1000, UTC)
        fields: dict[str, object] = {
            "length": duration_text(self.length_ms),
            "epoch": epoch.strftime(_EPOCH_FORM),
            "lateness": duration_text(self.lateness_ms),
            "time": self.time,
            "release": self.kind,
            "min_clients": self.min_clients,
        }
        if self.min_reports:
            fields["min_reports"] = self.min_reports
        if self.late != DROP:
            fields["late"] = self.late
        for key in ("horizon", "windows_per_client"):
            if (value := getattr(self, key)) is not None:
                fields[key] = value
        return fields

    @property
    def kind(self) -> str:
        """``tumbling``: a release is of one window; ``cumulative``: of all windows so far."""
        return TUMBLING if self.horizon is None else CUMULATIVE

    def check_sequence(self, mode: str, *, central: bool) -> None:
        """Refuses a cumulative sequence where windows are withheld, or where no aggregator has exact counters.

        Args:
            mode: The plan's, for the error.
            central: Whether an aggregator has exact counters in it.

        Raises:
            PlanError: ``release`` or ``min_clients`` does not go with it.
        """
        if self.horizon is None:
            return
        if not central:
            expected = f"{TUMBLING!r} with privacy.mode {mode!r}: only mode 'central' has cumulative releases"
            raise PlanError("window.release", CUMULATIVE, expected)
        if self.min_clients:
            expected = f"0 with window.release {CUMULATIVE!r}: no outcome of a sequence is withheld"
            raise PlanError("window.min_clients", self.min_clients, expected)

    def check_late(self) -> None:
        """Refuses windows that a device chooses by what it is told, where what it sends for a window is spent.

        Raises:
            PlanError: ``time`` is ``arrival``, or ``late`` is ``next``.
        """
        if self.time == ARRIVAL:
            expected = f"{EVENT!r} with modes 'secure' and 'local': what a device sends for a window is spent there"
            raise PlanError("window.time", ARRIVAL, expected)
        if self.late == NEXT:
            expected = "'drop' with modes 'secure' and 'local': what a device sends for a window is spent, late or not"
            raise PlanError("window.late", self.late, expected)

    def check_clients(self) -> None:
        """Refuses a number of reports where clients send no reports.

        Raises:
            PlanError: ``min_reports`` is set.
        """
        if self.min_reports:
            expected = "0: only for plans of reports (mode 'local'); use window.min_clients"
            raise PlanError("window.min_reports", self.min_reports, expected)

    def check_reports(self) -> None:
        """Refuses a number of clients where reports carry no client.

        Raises:
            PlanError: ``min_clients`` is set.
        """
        if self.min_clients:
            expected = "0 with reports, which carry no client id; use window.min_reports"
            raise PlanError("window.min_clients", self.min_clients, expected)

    def check_after_end(self, why: str) -> None:
        """Refuses a lateness in which nothing arrives that is sent once the window has ended.

        Args:
            why: Which key asks for it, and who sends then.

        Raises:
            PlanError: A lateness below a second.
        """
        if self.lateness_ms < _AFTER_END_MS:
            least = duration_text(_AFTER_END_MS)
            expected = f"at least '{least}' with {why} when the window has ended"
            raise PlanError("window.lateness", duration_text(self.lateness_ms), expected)

    def check_shown(self) -> None:
        """Refuses windows in which no device should have to submit, with records or without.

        Raises:
            PlanError: Windows shorter than a minute, or a lateness of more than 64 of them.
        """
        where = "where every client submits in every window (mode 'secure', form 'silo')"
        if self.length_ms < _SHOWN_LENGTH_MS:
            expected = f"at least '{duration_text(_SHOWN_LENGTH_MS)}' {where}"
            raise PlanError("window.length", duration_text(self.length_ms), expected)
        if self.lateness_ms > (most := _SHOWN_LATENESS_MAX * self.length_ms):
            expected = f"at most {_SHOWN_LATENESS_MAX} windows ('{duration_text(most)}') {where}"
            raise PlanError("window.lateness", duration_text(self.lateness_ms), expected)

    def check_rounds(self, wait_ms: int) -> None:
        """Refuses a lateness in which no secure sum fits: its round begins when the window has ended.

        Args:
            wait_ms: The longest wait for a cohort to fill.

        Raises:
            PlanError: The lateness is shorter than that.
        """
        if self.lateness_ms < wait_ms:
            expected = f"at least privacy.secure.cohort_wait ('{duration_text(wait_ms)}'), in which a cohort fills"
            raise PlanError("window.lateness", duration_text(self.lateness_ms), expected)

    def index_at(self, time_ms: int) -> int:
        """The index of the window that holds a time, in ms since 1970 UTC; negative before the epoch."""
        return (time_ms - self.epoch_ms) // self.length_ms

    def start_ms(self, index: int) -> int:
        """The first millisecond of a window."""
        return self.epoch_ms + index * self.length_ms

    def end_ms(self, index: int) -> int:
        """The first millisecond after a window."""
        return self.start_ms(index + 1)


#: Every key of ``[window]`` left out.
HOURLY: Final = Schedule(_UNITS_MS["h"], 0, 5 * _UNITS_MS["m"])


def _sequence(table: Table, *, cumulative: bool) -> tuple[int | None, int | None]:
    """``horizon`` and ``windows_per_client`` of a cumulative sequence; None both where there is none."""
    if not cumulative:
        for key in ("horizon", "windows_per_client"):
            if table.has(key):
                expected = f"no value: only for window.release {CUMULATIVE!r}"
                raise PlanError(table.name(key), table.value(key), expected)
        return None, None
    if not table.has("horizon"):
        expected = (
            f"an integer from 1 to {HORIZON_MAX:,}: how many releases one ε covers, such as 8760 for hourly windows of "
            "a year"
        )
        raise PlanError(table.name("horizon"), Missing.MISSING, expected)
    horizon = table.integer("horizon", low=1, high=HORIZON_MAX)
    if not table.has("windows_per_client"):
        return horizon, None
    return horizon, table.integer("windows_per_client", low=1, high=horizon)


def duration(table: Table, key: str, default: str, *, low_ms: int) -> int:
    """The milliseconds of a duration such as ``90s``, at least ``low_ms`` and at most ten years.

    Raises:
        PlanError: With the key, what came and what was expected.
    """
    text = table.text(key, default)
    match = _DURATION.fullmatch(text)
    milliseconds = int(match[1]) * _UNITS_MS[match[2]] if match else -1
    if not low_ms <= milliseconds <= _LONGEST_MS:
        expected = f"a duration such as '90s', '5m', '1h' or '7d', from {low_ms} ms to ten years"
        raise PlanError(table.name(key), text, expected)
    return milliseconds


def duration_text(milliseconds: int) -> str:
    """A duration in the largest unit that divides it: one text for one duration."""
    if milliseconds == 0:
        return "0s"
    unit = next(unit for unit, size in _UNITS_MS.items() if milliseconds % size == 0)
    return f"{milliseconds // _UNITS_MS[unit]}{unit}"


def _epoch(table: Table) -> int:
    text = table.text("epoch", "1970-01-01T00:00:00Z")
    try:
        moment = datetime.strptime(text, _EPOCH_FORM).replace(tzinfo=UTC)
    except ValueError as error:
        raise PlanError(
            table.name("epoch"), text, "a UTC time in whole seconds, such as 1970-01-01T00:00:00Z"
        ) from error
    milliseconds = int(moment.timestamp()) * 1000
    if moment.strftime(_EPOCH_FORM) != text or milliseconds < 0:
        raise PlanError(table.name("epoch"), text, "a UTC time from 1970 on, such as 1970-01-01T00:00:00Z")
    return milliseconds
