"""Kernels that append rows, on arrays that end at pages without access."""

from __future__ import annotations

import numpy as np
import tvm
from tvm import tirx

from heterocc.compiler.lower.cpu.generate.append import Append, write_append
from heterocc.compiler.lower.cpu.maths.pipeline import PIPELINE
from heterocc.runtime.execute.memory import host_tensor
from tests.compiler.lower.cpu.generate.generated import runnable, target_of
from tests.guard_pages import guarded


def test_rows_are_written_at_their_places_in_memory_with_room() -> None:
    target = target_of(runnable()[-1])
    planes, new, past = (tirx.Var(name, "int64") for name in ("d0_planes", "d1_new", "e2_past"))
    two, five = (tirx.const(n, "int64") for n in (2, 5))
    function = write_append(Append((planes, two, past, five), 2, past, new, "float32"))
    with target:
        built = tvm.tirx.build(
            tvm.IRModule({"f": function.with_attr("global_symbol", "f")}), target, pipeline=PIPELINE
        )["f"]
    rng = np.random.default_rng(0)
    # Rows of the past, room for them, new rows, room in the result; room 0: the past is in the result's memory already.
    cases = [(0, 0, 1, 1), (3, 3, 1, 4), (3, 7, 2, 9), (3, 0, 2, 9), (3, 0, 2, 5), (0, 0, 4, 6), (900, 1000, 1, 2000)]
    for before, room, added, result_room in cases:
        given = guarded(rng.standard_normal((3, 2, room, 5)).astype(np.float32))
        rows = guarded(rng.standard_normal((3, 2, added, 5)).astype(np.float32))
        start = rng.standard_normal((3, 2, result_room, 5)).astype(np.float32)
        result = guarded(start.copy())
        built(host_tensor(given), host_tensor(rows), before, host_tensor(result))
        copied = min(before, room)
        start[:, :, :copied] = given[:, :, :copied]
        start[:, :, before : before + added] = rows
        np.testing.assert_array_equal(result, start)
