"""Attributes of kernels that are complete when they enter a module, and are not scheduled."""

WRITTEN = "heterocc.written"
"""The attribute of kernels that are not to be scheduled."""

ROWS = "heterocc.rows"
"""The attribute of kernels that compute each row of the first argument on its own, for any number of rows."""

REQUEST = "heterocc.request"
"""The attribute of kernels without a body: the kind and the options of the one that the CPU back end writes there."""
