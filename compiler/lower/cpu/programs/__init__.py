"""Partitions with branches, loops and sizes known only at run time: straight parts, and the code that joins them."""
