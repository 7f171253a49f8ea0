"""Operator sets and functions: every node becomes one of the operators that follow."""
