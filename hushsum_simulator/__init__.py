"""A fleet of clients over real data: demo, audits and fault injection. Nothing here is part of the service."""

from hushsum_simulator.demo.runner import simulate
from hushsum_simulator.demo.summary import Summary
from hushsum_simulator.errors import SimulatorError
from hushsum_simulator.scenario import RunSettings

__all__ = ["RunSettings", "SimulatorError", "Summary", "simulate"]
