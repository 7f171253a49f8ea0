"""One record for each ONNX operator: what the compiler knows of it, but for the code that computes it.

`record.py` has the fields, and each module in the rooms `elements`, `arrays`, `layers` and `flow` a family of
operators: their rules and, at its end, their records. `table.py` looks them up. To add an operator is to add a record,
here or by `table.add` (decision 87); a family is a file, which no list names.
"""
