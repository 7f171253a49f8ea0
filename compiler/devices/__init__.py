"""Devices as the compiler sees them: names, targets, properties, device files."""
