"""From an ONNX file to the normalised model and the graph that passes see.

`pipeline.py` has the steps: external data, fixed shapes, folded constants, expanded functions, safe names. Those that
find something to change only after others have names, and are repeated until none does (`steps.py`). Steps that
inline branches, remove nodes or fuse convolutions work on linked nodes of onnx-graphsurgeon (`draft/surgery.py`);
`repeating/` moves work out of loops. `unchanged.py` is an import without any of these, for models that ONNX Runtime is
to run as they were given (decision 104). The result (`model.py`) holds the ONNX nodes and the `Graph`.
"""
