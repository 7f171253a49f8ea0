"""Estimates from shapes: the operations of nodes, and the cost of constants."""
