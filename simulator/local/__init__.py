"""A run in local mode: clients that randomise what leaves them, a kill on the way, and what is then known."""
