"""Compiles, the passes of placement on large graphs, and the report's page in a browser."""
