"""Guarantees, the mechanisms that support them, and the ledger that adds them up. No noise is drawn here."""
