"""A run in secure mode: clients that sum in cohorts, some of which vanish, and what the release then holds."""
