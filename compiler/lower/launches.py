"""A test of whether code is already bound to GPU threads."""

from __future__ import annotations

import tvm_ffi
from tvm import tirx


def launches(statement: tirx.Stmt) -> bool:
    """Whether a statement contains a loop that is bound to GPU threads or virtual threads."""
    found: list[str] = []
    tvm_ffi.structural_walk(statement, [(tirx.AttrStmt, lambda n: found.append(n.attr_key))], order="post")
    return "thread_extent" in found or "virtual_thread" in found
