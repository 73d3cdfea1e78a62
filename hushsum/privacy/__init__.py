"""Guarantees, the mechanisms that support them, and the ledger that adds them up.

No counter is noised here. The one private draw is that of report noisy max (:mod:`hushsum.privacy.noisy_max`).
"""
