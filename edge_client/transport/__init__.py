"""The ways out of a device: gRPC to a gateway, or straight into the log."""
