"""The deployed fleet: what ``python -m simulator.deployment prepare | fleet | check`` does inside the containers."""
