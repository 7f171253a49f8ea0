"""Shapes of inputs, fixed or proposed, and those that follow from them.

`propose.py` has plausible shapes of dynamic inputs, which `trials.py` runs in ONNX Runtime.
`assumed.py` excludes sizes with which nodes cannot run (decision 40).
"""
