"""Concatenations that are not copied.

`in_place.py` removes concatenations whose parts can be written into the result directly: kernels then get views of the
result. `appended.py` finds the concatenations that lengthen keys and values of a language model where they are
(decision 51).
"""
