"""Benchmarks of the service, each beside the bare library that it stands on."""
