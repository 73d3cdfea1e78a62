"""Decoders of what others wrote are given millions of broken samples: ``python -m tests.fuzz --help``."""
