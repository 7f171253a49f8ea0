"""Loads, starts, hops between partitions, memory, several callers and devices, transfers, and an hour's soak."""
