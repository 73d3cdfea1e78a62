"""Who calls, what proves it, and how much one of them may send."""
