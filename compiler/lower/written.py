"""Attributes of kernels: marks of those that enter a module complete, their kind, the source of generated ones."""

from __future__ import annotations

from tvm import tirx

PATTERN = "op_pattern"
"""TVM's attribute of kernels with their kind, one of the numbers below; 0 is arithmetic by element."""

BROADCAST, INJECTIVE, REDUCTION, PRODUCT = 1, 2, 3, 4
"""Kinds that fusion inlines (by element with broadcasting, and of any one element), and that it does not."""

OPAQUE = 8
"""The kind of kernels that are not fused with others, and of those without the attribute."""

WRITTEN = "heterocc.written"
"""The attribute of kernels that are not to be scheduled."""

ROWS = "heterocc.rows"
"""The attribute of kernels that compute each row of the first argument on its own, for any number of rows."""

REQUEST = "heterocc.request"
"""The attribute of kernels without a body: the kind and the options of the one that the CPU back end writes there."""

SOURCE = "heterocc.source"
"""The attribute of kernels for CPUs with the digest of all that they were generated from."""

APPENDS = "heterocc.appends"
"""The attribute of kernels that write new rows after earlier ones, in memory with room for more: the rows' axis."""

JOINS = "heterocc.joins"
"""The attribute of kernels that write their arguments one after another: the axis of a Concat."""

JOINS_AT = "heterocc.joins_at"
"""The attribute of kernels `(new, starts, past)` that write an item's new rows after its start in `past`: the axis."""

WIDENS = "heterocc.widens"
"""The attribute of kernels that convert each number of their argument: true from 16 bits to float32, false back."""

RESHAPES = "heterocc.reshapes"
"""The attribute of kernels that only reshape their argument: all elements in order."""


def pattern_of(function: tirx.PrimFunc) -> int:
    """TVM's kind of a kernel."""
    return int((function.attrs or {}).get(PATTERN, OPAQUE))
