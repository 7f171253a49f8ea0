"""Converters of reductions: along axes that are known, and along computed ones."""
