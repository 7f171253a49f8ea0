"""Shapes of inputs, fixed or proposed, and those that follow from them.

`assumed.py` excludes sizes with which nodes cannot run (decision 40).
"""
