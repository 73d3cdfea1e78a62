"""Every error of the simulator: a :class:`SimulatorError`."""

from hushsum.errors import HushsumError


class SimulatorError(HushsumError):
    """The root of the simulator's errors."""


class RecordsError(SimulatorError):
    """A file whose rows cannot be read as records."""


class ServerError(SimulatorError):
    """The aggregator's process did not start, or ended by itself; the text holds the last line of its output."""


class ServiceError(SimulatorError):
    """A service cannot be reached, or refused a request; the text holds its own message.

    Args:
        text: One sentence.
        reason: The service's code for it, such as ``window_order``; empty: none.
    """

    def __init__(self, text: str, reason: str = "") -> None:
        super().__init__(text)
        self.reason = reason


class JourneyError(SimulatorError):
    """A step of the run failed or timed out."""


class SettingsConflictError(SimulatorError):
    """Options of a run exclude each other."""


class VariableError(SimulatorError):
    """An environment variable has an invalid value."""

    def __init__(self, name: str, came: str, expected: str) -> None:
        super().__init__(f"{name}: got {came!r:.100}, expected {expected}")
        self.name = name
