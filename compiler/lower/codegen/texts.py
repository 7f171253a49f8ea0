"""Texts of checks, written into the objects of kernels that are equal but for them.

A check names the node that demands it. Networks have dozens of kernels that differ in nothing else, and LLVM takes as
long for each as for any small kernel. So one is compiled, with texts that hold places of other texts' bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

import tvm_ffi
from tvm import ir, tirx

from heterocc.artifacts.errors import InputValueError

Texts = Mapping[str, str]
"""The texts of a kernel's checks, by those that stand for them in an object: no shorter, and none in another."""

_STEP = 64
"""Bytes by which the lengths of texts are rounded up: those of one node are hardly longer than those of another."""


def with_equal_texts(kernel: tirx.PrimFunc) -> tuple[tirx.PrimFunc, Texts]:
    """A kernel with texts that are equal for kernels which differ in their checks' texts alone, and its own texts."""
    places: dict[str, str] = {}

    def placeholder(part: tirx.Expr) -> tirx.Expr:
        own = str(part.value)
        if own not in places:
            length = -(-len(own.encode()) // _STEP) * _STEP
            places[own] = f"{InputValueError.MARK}text {len(places)} of a check".ljust(length, ".")
        return ir.StringImm(places[own])

    def replaced(check: tirx.AssertStmt) -> tirx.Stmt:
        parts = list(check.message_parts)
        if len(parts) != 1 or not str(parts[0].value).startswith(InputValueError.MARK):
            return check
        return tirx.AssertStmt(check.condition, check.error_kind, [placeholder(parts[0])])

    body = tvm_ffi.structural_map(kernel.body, [(tirx.AssertStmt, replaced)], order="post")
    return kernel.with_body(body) if places else kernel, {place: own for own, place in places.items()}


def with_texts(compiled: bytes, old: str, new: str, texts: Texts) -> bytes:
    """The object of a kernel under another name of the same length, with the texts that others stand for.

    A string of C ends at its first zero: what a text leaves of its place are zeros. Code refers to where it begins.
    """
    assert len(old) == len(new)
    compiled = compiled.replace(old.encode(), new.encode())
    for place, text in texts.items():
        known = place.encode() + b"\0"
        compiled = compiled.replace(known, text.encode().ljust(len(known), b"\0"))
    return compiled
