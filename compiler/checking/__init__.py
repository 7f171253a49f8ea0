"""Comparison of compiled code with ONNX Runtime.

`check.py` compares every partition, on the reference's values at its borders, with exact products of integers (decision
55). `as_given.py` compares the import with the model as it was given (decision 65). A wrong result is traced to its
kernel (`bisect.py`) and its node, which then runs on the next device, with a warning. `memory.py` keeps verdicts in the
cache (decision 33). `compressing.py` compresses weights before a compile, and says what that costs.
"""
