"""Converters of Fourier transforms: of lengths that are known, and of computed ones."""
