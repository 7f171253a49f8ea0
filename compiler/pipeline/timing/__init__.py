"""The choice of a variant's plan by time.

`measuring.py` builds and times plans, `turns.py` runs them in turns, `sizes.py` says at which sizes, and `choice.py`
which plan is kept, and for which sizes.
"""
