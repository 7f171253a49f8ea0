"""How partitions of a placement become fewer: what `merge` and, for its last step, `mincut` are made of.

`blocks.py` contracts nodes that run together in every plan of least partitions (`schedule.py`), `islands.py` moves
connected parts (`connected.py`) to a neighbour's device, `settling.py` moves single nodes, and `crumbs.py` gives up
small partitions beside ONNX Runtime.
"""
