"""Benchmarks of the device SDK, each beside the least that a device needs."""
