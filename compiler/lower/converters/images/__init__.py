"""Converters of operators on images: their regions, grids and columns."""
