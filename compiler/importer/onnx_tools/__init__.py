"""ONNX's and ONNX Runtime's tools, used within limits on time and memory.

What ONNX Runtime does not check is checked by nodes that are added to a model: `filled.py` has the table of sizes of 0
with which it ends the process, `joins.py` parts of concatenations, `quotients.py` numbers; `safe.py` clears
what it does not write.
"""
