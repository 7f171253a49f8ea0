"""Removal of attributes that TVM's script builder adds to statements, and that code generation warns about."""

from __future__ import annotations

import tvm_ffi
from tvm import tirx


def without_scopes(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The kernel without these attributes."""

    def unwrapped(mark: tirx.AttrStmt) -> tirx.Stmt:
        return mark.body if mark.attr_key == "pragma_scope" else mark

    return tvm_ffi.structural_map(function, [(tirx.AttrStmt, unwrapped)])
