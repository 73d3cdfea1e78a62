"""The session: a state machine, the window of what is sent and unanswered, and what runs both on a connection."""
