"""Converters of pooling, and of windows with padding that depends on the size of an image."""
