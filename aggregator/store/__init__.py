"""The store, written once in SQL for two databases: functions on a transaction, and what runs them."""
