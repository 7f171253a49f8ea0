"""The kernel of a direction of an LSTM, GRU or RNN, which `converters/recurrent` requests (decision 81).

`kernel.py` is the loop over time, `groups.py` divides a step into groups of columns and tiles of rows, `sums.py`
computes the products with the state, in 8 bits from the bytes of `levels.py`, and `cells.py` what follows from them.
"""
