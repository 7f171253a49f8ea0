"""Sequences and optional values whose elements are known at import: their tensors take their place."""
