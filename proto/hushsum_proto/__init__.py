"""The wire: protobuf messages of version 1, and the one translator between them and the core's types."""
