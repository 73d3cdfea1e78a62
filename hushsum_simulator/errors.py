"""Every error of the simulator.

HushsumError
└── SimulatorError
    ├── RecordsError         a file of records that cannot be used: what came, what was expected
    ├── ServerError          the aggregator's process did not start, or ended by itself
    ├── ServiceError         a service did not do what an operator or an analyst asked
    ├── JourneyError         a step of the run that did not come to its end
    ├── SettingsConflictError  what was asked of a run does not go together
    └── VariableError        a variable of the environment: what came, what was expected
"""

from hushsum.errors import HushsumError


class SimulatorError(HushsumError):
    """The root of the simulator's errors."""


class RecordsError(SimulatorError):
    """A file whose rows cannot be read as records."""


class ServerError(SimulatorError):
    """The aggregator's process did not start, or ended by itself; the text holds the last line that it wrote."""


class ServiceError(SimulatorError):
    """A service cannot be reached, or refused what was asked; the text holds its own words."""


class JourneyError(SimulatorError):
    """A step of the run did not come to its end in its time."""


class SettingsConflictError(SimulatorError):
    """What was asked of a run does not go together."""


class VariableError(SimulatorError):
    """A variable of the environment does not say what it may.

    Args:
        name: Of the variable.
        came: What it says.
        expected: What it may say.
    """

    def __init__(self, name: str, came: str, expected: str) -> None:
        super().__init__(f"{name}: got {came!r:.100}, expected {expected}")
        self.name = name
