"""The log: an SQLite file, or a topic of Kafka."""
