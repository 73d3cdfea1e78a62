"""Who calls, and what proves it."""
