"""Converter of transposed convolutions."""
