"""Reductions: sums, products, maxima and minima over any axes.

`reductions.py` has vectors along outputs, terms, or both; `few_terms.py` a short last dimension, whose terms lie beside
each other in memory.
"""
