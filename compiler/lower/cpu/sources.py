"""Digests of all that kernels are generated from: shorter texts than the kernels, which are equal for equal kernels."""

from __future__ import annotations

import hashlib

import tvm_ffi
from tvm import tirx

from heterocc.compiler.lower.cpu.alignment import at_any_address
from heterocc.compiler.lower.variables import without_typical


def source(function: tirx.PrimFunc, *facts: object) -> str:
    """The digest of an unscheduled kernel, apart from names that differ from network to network, and of other
    facts that its code depends on.

    Typical values are left out, too: what they decide is in the code, of which a name has TVM's hash besides.
    The text of a kernel leaves out digits of numbers, which TVM's hash sees.
    """
    plain = at_any_address(function).with_attr("global_symbol", "kernel")
    digest = hashlib.sha256(without_typical(plain.script(show_meta=True)).encode())
    digest.update(f"\n{tvm_ffi.structural_hash(plain)}\n{facts!r}".encode())
    return digest.hexdigest()
