"""Reasons of a plan: why nodes are on their devices, what alternatives cost, and why values are transferred."""
