"""Loops over remainders become two loops, which LLVM computes right in vectors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import tvm_ffi
from tvm import IRModule, s_tir, te, tirx

from heterocc.compiler import compile_model
from heterocc.compiler.lower.cpu.maths.remainders import without_remainders
from heterocc.runtime import load
from tests.compiler.onnx_build import model, node, noise, value

STEPS, PAIRS = 6, 4


def _kernel(size: int, divisor: int) -> tirx.PrimFunc:
    a = te.placeholder((size,), "float32", "a")
    made = te.compute((size,), lambda i: a[i // divisor * divisor + divisor - 1 - i % divisor], "b")
    return te.create_prim_func([a, made])


def _loops(function: tirx.PrimFunc) -> tuple[list[int], int]:
    extents: list[int] = []
    divisions: list[tirx.Expr] = []
    kinds = [(kind, divisions.append) for kind in (tirx.FloorMod, tirx.FloorDiv)]
    loops = [(tirx.For, lambda loop: extents.append(int(loop.extent)))]
    tvm_ffi.structural_walk(function.body, [*loops, *kinds], order="pre")
    return extents, len(divisions)


def _lowered(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The loops of a kernel without blocks, whose variables are those of the loops."""
    return s_tir.transform.LowerOpaqueBlock()(s_tir.transform.ConvertBlocksToOpaque()(IRModule({"main": function})))[
        "main"
    ]


def test_a_loop_has_an_inner_one_for_a_power_of_two_that_divides_it() -> None:
    assert _loops(_lowered(_kernel(16, 8))) == ([16], 2)
    assert _loops(without_remainders(_lowered(_kernel(16, 8)))) == ([2, 8], 0)
    for size, divisor in ((15, 8), (16, 32), (12, 3)):
        assert _loops(without_remainders(_lowered(_kernel(size, divisor))))[0] == [size]


def test_halves_of_heads_that_are_turned_by_chosen_angles_are_right(tmp_path: Path) -> None:
    """With vectors of 512 bits, LLVM read the angles of the second head behind those of the first."""
    width = 4 * PAIRS
    nodes = [
        node("Reshape", "x heads", "h"),
        node("Transpose", "h", "t", perm=[0, 2, 1, 3]),
        node("Split", "t", "l r", axis=3, num_outputs=2),
    ]
    for name in "cs":
        nodes += [
            node("Split", name, f"{name}0 {name}1 {name}2", axis=0, num_outputs=3),
            *(node("Reshape", f"{name}{n} one", f"{name}r{n}") for n in range(3)),
            node("Where", f"first {name}r1 {name}r0", f"{name}w"),
            node("Where", f"last {name}r2 {name}w", f"{name}v"),
        ]
    nodes += [
        node("Mul", "l cv", "lc"),
        node("Mul", "r sv", "rs"),
        node("Sub", "lc rs", "a"),
        node("Mul", "r cv", "rc"),
        node("Mul", "l sv", "ls"),
        node("Add", "rc ls", "b"),
        node("Concat", "a b", "z", axis=3),
        node("Transpose", "z", "u", perm=[0, 2, 1, 3]),
        node("Reshape", "u whole", "y"),
    ]
    first, last = np.arange(PAIRS) == 0, np.arange(PAIRS) == PAIRS - 1
    constants = {
        "heads": np.array([1, STEPS, 2, 2 * PAIRS]),
        "one": np.array([1, 1, STEPS, PAIRS]),
        "whole": np.array([1, STEPS, width]),
        "first": first,
        "last": last,
    }
    inputs = [value("x", [1, STEPS, width]), *(value(name, [3, 1, STEPS, PAIRS]) for name in "cs")]
    proto = model(nodes, inputs, [value("y", [1, STEPS, width])], constants, opset=18)
    feed = {"x": noise(1, STEPS, width), "c": noise(3, 1, STEPS, PAIRS), "s": noise(3, 1, STEPS, PAIRS) * 2}
    compile_model(proto, tmp_path / "m.hcb", devices="CPU", check=False, cpu_variant=False)
    with load(tmp_path / "m.hcb") as session:
        found = session.run(feed)["y"]
    cos, sin = (np.where(last, feed[n][2], np.where(first, feed[n][1], feed[n][0]))[0, :, None] for n in "cs")
    left, right = np.split(feed["x"].reshape(STEPS, 2, 2 * PAIRS), 2, axis=2)
    expected = np.concatenate([left * cos - right * sin, right * cos + left * sin], axis=2)
    np.testing.assert_allclose(found, expected.reshape(1, STEPS, width), rtol=0, atol=1e-5)
