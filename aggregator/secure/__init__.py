"""Secure sums in the service: cohorts form, rounds run, and the sum of each goes into the log once."""
