"""What local reports cost a device and an aggregator."""
