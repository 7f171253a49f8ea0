"""Support of nodes by devices: the query, its trial lowering, and its cache.

`query.py` queries each device about each node, so that a plan places only nodes that lower: dtypes, limits, and a trial
lowering: of the whole model first, which the lowering that follows takes (`compiler/lower/tried.py`), else of a node.
"""
