"""The sizes for which a bundle is compiled.

`requests.py` makes a request for each set of shapes and combination of hinted sizes, `planned.py` the bounds with which
memory of GPUs is planned.
"""
