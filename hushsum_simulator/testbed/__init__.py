"""Real servers for tests, faults and measurements: Kafka and PostgreSQL on loopback, and a proxy that breaks links."""
