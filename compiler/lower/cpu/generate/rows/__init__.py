"""Kernels of rows: softmax, normalisations, and single sums, products, maxima and minima over any axes.

`stages.py` analyses them, `passes.py` determines what each pass over a row computes and stores, `values.py` and
`rows.py` write them (`neighbours.py`: across rows beside each other; `folded.py`: few of these), and `joins.py` fuses
neighbouring kernels.
"""
