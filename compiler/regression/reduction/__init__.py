"""Reduction of a failing model to the fewest nodes that still fail."""
