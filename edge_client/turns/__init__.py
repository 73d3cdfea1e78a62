"""What a device does once a window, after its end and whatever it holds: what secure sums and silos have in common."""
