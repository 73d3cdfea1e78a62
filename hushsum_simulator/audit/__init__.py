"""Audits of the promise: exact over all outcomes, and by what many runs of the whole road prove."""
