"""The thin runtime: loads a bundle and runs it as a chain of compiled models."""
