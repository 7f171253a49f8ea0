"""One record for each ONNX operator: what the compiler knows of it, but for the code that computes it.

`record.py` has the fields, and each other module a family of operators: their rules and, at its end, their records.
`table.py` looks them up. To add an operator is to add a record, here or by `table.add` (decision 87).
"""
