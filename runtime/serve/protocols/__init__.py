"""The protocols of the service: REST with its page, and gRPC."""
