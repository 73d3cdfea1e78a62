"""The service: a gateway appends deltas to the log, the fold adds them, the releaser draws one release a window."""
