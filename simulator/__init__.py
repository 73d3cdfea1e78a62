"""A fleet of clients over real data: the demo and its fault injector. Nothing here is part of the service."""

from simulator.errors import SimulatorError
from simulator.material import Settings
from simulator.simulation import simulate
from simulator.summary import Summary

__all__ = ["Settings", "SimulatorError", "Summary", "simulate"]
