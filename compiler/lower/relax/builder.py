"""A block builder that records which node of the model each variable is of."""

from __future__ import annotations

from typing import Any

from tvm import relax


class NodeBuilder(relax.BlockBuilder):  # type: ignore[misc]  # TVM has no type information
    """A block builder that prefixes the names of emitted variables with the current node's index."""

    def __init__(self) -> None:
        super().__init__()
        self.prefix = ""
        self.emitted: dict[str, str] = {}
        self.node = ""

    def emit(self, expr: relax.Expr, name_hint: str = "") -> relax.Var:
        """Bind an expression to a new variable of the current node."""
        var = super().emit(expr, name_hint or f"{self.prefix}t")
        self.emitted[var.name] = self.node
        return var

    def _exit_function_scope(self, exc_type: Any, exc_val: Any, exc_tb: Any) -> None:
        # An exception leaves the block open, and TVM would warn about it on stderr.
        if exc_type is not None:
            self._end_block()
        super()._exit_function_scope(exc_type, exc_val, exc_tb)
