"""Modes that submit once a window: noised sums of a silo, secure sums of a cohort."""
