"""What this machine has: its CPU, its devices by driver, and what code may require of them.

`devices.py` finds the devices, `found.py` has their common form, `ranking.py` their names and order for `AUTO`,
`compat.py` the reasons why a variant cannot run here. `ort_trial.py` tries a bundle's ONNX partitions with limits.
"""
