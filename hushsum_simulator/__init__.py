"""A fleet of clients over real data: demo, audits and fault injection. Nothing here is part of the service.

Names are imported when they are asked for: to talk to a service takes none of the packages of a simulation.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from hushsum_simulator.demo.runner import simulate
    from hushsum_simulator.demo.summary import Summary
    from hushsum_simulator.errors import SimulatorError
    from hushsum_simulator.scenario import RunSettings

__all__ = ["RunSettings", "SimulatorError", "Summary", "simulate"]
_HOMES: Final = {
    "RunSettings": "hushsum_simulator.scenario",
    "SimulatorError": "hushsum_simulator.errors",
    "Summary": "hushsum_simulator.demo.summary",
    "simulate": "hushsum_simulator.demo.runner",
}


def __getattr__(name: str) -> Any:  # Any: of each its own type
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
