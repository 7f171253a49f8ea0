"""One compile, from the model to the bundle.

`compile.py` is the conductor: it imports a model at each requested set of sizes, queries the devices, places, lowers
and checks the variants, and packs them. `variants.py` says which variants there are, `report.py` what a compile
reports. `timing/` chooses among plans by timing them (decisions 82 and 92).
"""
