"""Calls of code whose values have sizes that are known only at run time."""
