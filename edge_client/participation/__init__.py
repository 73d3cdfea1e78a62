"""The trust modes: deltas and reports that are sent at once, and sums that are submitted once a window."""
