"""The fold: a pure state machine from log entries to counters, what it remembers, and its compiled loops."""
