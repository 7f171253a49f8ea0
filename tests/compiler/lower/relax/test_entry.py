"""Passes from the entry to the code of TVM's virtual machine."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import relax, tirx

from heterocc.compiler.lower.relax.entry import _with_sizes_in_order


def sizes(*stores: tuple[int, int]) -> tvm.IRModule:
    """A function that stores, at each first place, the size at the second one and 1."""
    held = tirx.decl_buffer((8,), "int64", "H")
    body = [
        tirx.BufferStore(held, tirx.BufferLoad(held, [tirx.const(read, "int64")]) + 1, [tirx.const(place, "int64")])
        for place, read in stores
    ]
    function = tirx.PrimFunc([held], tirx.SeqStmt(body)).with_attr("tirx.is_host_func", True)
    return tvm.IRModule({relax.GlobalVar("shape_func"): function})


def places(mod: tvm.IRModule) -> list[int]:
    (function,) = mod.functions.values()
    return [int(store.indices[0]) for store in function.body.seq]


def test_computed_sizes_are_stored_in_the_order_of_their_places() -> None:
    orders = [np.random.default_rng(seed).permutation([2, 3, 4, 5]) for seed in range(3)]
    for order in orders:
        mod = _with_sizes_in_order(sizes(*((int(place), 0) for place in order)), None)  # type: ignore[arg-type]
        assert places(mod) == [2, 3, 4, 5]


def test_sizes_that_are_computed_from_others_stay_in_their_order() -> None:
    assert places(_with_sizes_in_order(sizes((5, 0), (2, 5)), None)) == [5, 2]  # type: ignore[arg-type]
