"""Workarounds for TVM: wrong results, missing functions, misleading warnings, slow reading, orders by address."""
