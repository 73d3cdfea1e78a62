"""A fleet of clients over real data: the demo and its fault injector. Nothing here is part of the service."""

from simulator.demo.runner import simulate
from simulator.demo.summary import Summary
from simulator.errors import SimulatorError
from simulator.scenario import RunSettings

__all__ = ["RunSettings", "SimulatorError", "Summary", "simulate"]
