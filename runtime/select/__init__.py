"""Selection of the variant of a bundle that is loaded on this machine.

`select.py` selects, `opening.py` opens what is selected.
"""
