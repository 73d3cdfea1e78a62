"""The log, the receipts and the membership on Apache Kafka."""
