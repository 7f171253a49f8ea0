"""The choice of a variant's plan by time.

`measuring.py` builds plans, `timed_runs.py` times them, `turns.py` runs them in turns, `sizes.py` says at which sizes,
`choice.py` which plan is kept, and for which sizes, and `remembered.py` keeps this in the cache.
"""
