"""The gRPC edge: one file a service, and what they share."""
