"""Lowering of a plan's partitions, and packing of a bundle."""
