"""One compile, from the model to the bundle, as a chain of frozen values (decision 93).

    request.py     Request    what a command is asked to do, checked before any work
    imported.py    Imported   the model at one set of sizes, and its variants (`variants.py`)
    queried.py     Queried    which device can run which node
    placed.py      Placed     which device runs which node
    expected.py    Expected   what ONNX Runtime computes
    checked.py     Checked    code that was compared with it; a node that fails moves (`repair.py`)
    packed.py      Packed     the bundle

Each value has all of the one before, and is made whole by one step. `compile.py` is the conductor: it runs the steps,
each at all requested sizes, and commands that stop early. `fallback.py` leaves a model that is refused to ONNX Runtime
(decision 104). `timing/` chooses among plans by timing them (decisions 82 and 92), `explained.py` has the reasons of
plans, and `report.py` what a compile reports.
"""
