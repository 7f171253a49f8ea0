"""Converters of Resize: to sizes that are known when compiling, and to dynamic ones."""
