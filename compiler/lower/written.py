"""Attributes of kernels: marks of those that enter a module complete, and the source of generated ones."""

WRITTEN = "heterocc.written"
"""The attribute of kernels that are not to be scheduled."""

ROWS = "heterocc.rows"
"""The attribute of kernels that compute each row of the first argument on its own, for any number of rows."""

ITEMS = "heterocc.items"
"""The attribute of kernels that compute all items of a batch, whose number is the argument before the results."""

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

RESHAPES = "heterocc.reshapes"
"""The attribute of kernels that only reshape their argument: all elements in order."""
