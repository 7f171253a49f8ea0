"""Branches, loops, sequences and optional values."""
