"""The deployed fleet: what ``python -m hushsum_simulator.deployment`` (prepare, fleet, check) does in containers."""
