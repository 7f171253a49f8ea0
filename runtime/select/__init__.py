"""Selection of the variant of a bundle that is loaded on this machine.

`request.py` parses what the caller asks for, once; `select.py` selects a variant, and `each.py` several for `MULTI`, by
the rules of `matching.py`; `opening.py` opens what is selected.
"""
