"""Functions of a module as passes of TVM."""

from __future__ import annotations

from collections.abc import Callable

import tvm


def as_pass(step: Callable[[tvm.IRModule], tvm.IRModule]) -> tvm.transform.Pass:
    """A pass that applies a function to a module."""
    return tvm.transform.module_pass(lambda mod, _context: step(mod), opt_level=0, name=step.__name__)
