"""Corrections of what TVM generates or refuses."""
