"""Columns that overlap in an image and are added: the last step of transposed convolutions."""
