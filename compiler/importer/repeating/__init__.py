"""Loops rewritten so that a turn computes less: what every turn computes alike is computed once, before the loop.

`kept.py` takes states that never change out of a loop, `counted.py` writes a Loop that goes over the rows of a tensor
as a Scan, and `hoisted.py` multiplies the rows that a Scan reads by a weight before it, all rows at once.
"""
