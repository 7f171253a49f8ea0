"""Lowering of a plan's partitions, and packing of a bundle.

`ahead.py` lowers the variant for the CPU in a thread while a GPU's driver compiles for the check. `kept.py` keeps whole
partitions in the cache, without their weights. `sharing.py` decides which weights are stored plain because variants
read them in different layouts. `conditions.py` packs what a run has to check of sizes (decision 62).
"""
