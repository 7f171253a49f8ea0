"""Concatenations that are not copied.

`in_place.py` removes concatenations whose parts can be written into the result directly: kernels then get views of the
result. `joined_apart.py` keeps fusion from making one kernel of such a concatenation and one of its parts.
`appended.py` finds the concatenations that lengthen keys and values of a language model where they are (decision 51).
"""
