"""The spool: one SQLite file that outlives the process, and everything that is kept in it."""
