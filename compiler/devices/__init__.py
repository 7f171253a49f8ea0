"""Devices of the compiler: names, targets, properties, device files."""
