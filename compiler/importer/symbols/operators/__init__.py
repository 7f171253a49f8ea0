"""Shapes of the results of operators that have rules of their own, by operator set or kind."""
