"""Kernels of rows: softmax, normalisations and their like.

`stages.py` analyses them, `passes.py` determines what each pass over a row computes and stores, `values.py` and
`rows.py` write them (`folded.py`: few rows beside each other), and `joins.py` fuses neighbouring kernels.
"""
