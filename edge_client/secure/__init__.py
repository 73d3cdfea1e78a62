"""A device's part in secure sums: when it takes part, what it has spent, and how an attempt ends."""
