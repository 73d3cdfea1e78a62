"""The service as real processes, with a real Kafka and a real PostgreSQL, killed and paused at random under load."""
