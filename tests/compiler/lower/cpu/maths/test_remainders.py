"""Plain loops over remainders, which LLVM computes wrong in vectors if their variables have 32 bits."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import IRModule, te, tirx

from heterocc.compiler import compile_model
from heterocc.compiler.lower.cpu.maths.pipeline import PIPELINE
from heterocc.compiler.lower.cpu.target import cpu_target
from heterocc.runtime import load
from tests.compiler.lower.lowered import CPU
from tests.compiler.onnx_build import model, node, noise, value

STEPS, PAIRS = 6, 4


def _int64(*numbers: int) -> tuple[tirx.Expr, ...]:
    """Sizes of the type that those of kernels have."""
    return tuple(tirx.const(number, "int64") for number in numbers)


@pytest.mark.parametrize("turns", [16, 20, None])
@pytest.mark.parametrize("truncated", [False, True])
def test_a_branch_that_reads_at_a_remainder_reads_the_right_elements(turns: int | None, truncated: bool) -> None:
    """With vectors of 512 bits, LLVM read them as neighbours, also in loops of a number of turns that the run knows."""
    divide, modulo = (tirx.truncdiv, tirx.truncmod) if truncated else (tirx.floordiv, tirx.floormod)
    count = turns or 20
    size = te.var("n", "int64") if turns is None else _int64(count)[0]
    rows, heads = 6, tirx.floordiv(size + 7, 8)
    x = te.placeholder((heads * rows * 8,), "float32", "x")
    scale = te.placeholder(_int64(rows * 4), "float32", "scale")
    given = te.placeholder((size,), "float32", "given")

    def element(row: tirx.Expr, v: tirx.Expr) -> tirx.Expr:
        place, read = modulo(v, 8), x[divide(v, 8) * rows * 8 + row * 8 + modulo(v, 8)]
        return tirx.if_then_else(place < 4, read * scale[row * 4 + place], read)

    made = te.compute((*_int64(rows), size), element, "made")
    mod = IRModule({"main": te.create_prim_func([x, scale, given, made])})
    values, factors = noise(((count + 7) // 8) * rows * 8), noise(rows * 4, seed=1)
    arrays = [tvm.runtime.tensor(a) for a in (values, factors, noise(count), np.zeros((rows, count), np.float32))]
    tvm.tirx.build(mod, cpu_target(CPU), pipeline=PIPELINE)["main"](*arrays)
    whole = values.reshape(-1, rows, 8) * np.concatenate([factors.reshape(rows, 4), np.ones((rows, 4))], axis=1)
    expected = whole.transpose(1, 0, 2).reshape(rows, -1)[:, :count]
    np.testing.assert_allclose(arrays[3].numpy(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("turns", [16, 33])
def test_a_branch_that_reads_at_a_remainder_of_a_later_place_reads_the_right_elements(turns: int) -> None:
    x, scale = te.placeholder(_int64(288), "float32", "x"), te.placeholder(_int64(96), "float32", "scale")

    def element(row: tirx.Expr, v: tirx.Expr) -> tirx.Expr:
        place = tirx.floormod(v + 5, 16)
        read = x[tirx.floordiv(v + 5, 16) * 96 + row * 16 + place]
        return tirx.if_then_else(place < 8, read * scale[row * 16 + place], read)

    made = te.compute(_int64(6, turns), element, "made")
    values, factors = noise(288), noise(96, seed=1)
    arrays = [tvm.runtime.tensor(a) for a in (values, factors, np.zeros((6, turns), np.float32))]
    mod = IRModule({"main": te.create_prim_func([x, scale, made])})
    tvm.tirx.build(mod, cpu_target(CPU), pipeline=PIPELINE)["main"](*arrays)
    scaled = np.where(np.arange(16) < 8, factors.reshape(6, 16), 1)
    expected = (values.reshape(3, 6, 16) * scaled).transpose(1, 0, 2).reshape(6, -1)[:, 5 : 5 + turns]
    np.testing.assert_allclose(arrays[2].numpy(), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("heads", "kept"), [(2, 16), (3, 20)])
def test_halves_of_heads_that_are_turned_by_chosen_angles_are_right(tmp_path: Path, heads: int, kept: int) -> None:
    """With vectors of 512 bits, LLVM read the angles of the second head behind those of the first."""
    width = heads * 2 * PAIRS
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
        node("Reshape", "u whole", "w"),
        node("Slice", "w zero kept last_axis", "y"),
    ]
    first, last = np.arange(PAIRS) == 0, np.arange(PAIRS) == PAIRS - 1
    constants = {
        "heads": np.array([1, STEPS, heads, 2 * PAIRS]),
        "one": np.array([1, 1, STEPS, PAIRS]),
        "whole": np.array([1, STEPS, width]),
        "zero": np.array([0]),
        "kept": np.array([kept]),
        "last_axis": np.array([2]),
        "first": first,
        "last": last,
    }
    inputs = [value("x", [1, STEPS, width]), *(value(name, [3, 1, STEPS, PAIRS]) for name in "cs")]
    proto = model(nodes, inputs, [value("y", [1, STEPS, kept])], constants, opset=18)
    feed = {"x": noise(1, STEPS, width), "c": noise(3, 1, STEPS, PAIRS), "s": noise(3, 1, STEPS, PAIRS) * 2}
    compile_model(proto, tmp_path / "m.hcb", devices="CPU", check=False, cpu_variant=False)
    with load(tmp_path / "m.hcb") as session:
        found = session.run(feed)["y"]
    cos, sin = (np.where(last, feed[n][2], np.where(first, feed[n][1], feed[n][0]))[0, :, None] for n in "cs")
    left, right = np.split(feed["x"].reshape(STEPS, heads, 2 * PAIRS), 2, axis=2)
    expected = np.concatenate([left * cos - right * sin, right * cos + left * sin], axis=2)
    np.testing.assert_allclose(found, expected.reshape(1, STEPS, width)[..., :kept], rtol=0, atol=1e-5)
