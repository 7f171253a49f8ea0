"""Placement of nodes on devices by passes (`Plan → Plan`), without TVM and ONNX.

A `Plan` (`plan.py`) covers the graph by partitions; an invalid one cannot be built. A pass, such as `merge.py`, is a
frozen dataclass whose fields are its options and whose `repr` is its `--passes` text; `merging/` has what `merge` is
made of. `mincut.py` finds the best placement by an objective (`objective.py`), with `optimum/` and a solver in C++
(`native/`). `rules.py` runs passes again until no constraint of a device on its partitions is broken. `explain/` gives
the reasons of a plan from the plan alone.
"""
