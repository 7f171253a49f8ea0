"""Shapes of inputs, fixed or proposed, and those that follow from them."""
