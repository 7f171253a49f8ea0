"""The watch on scratch memory notices code that computes with what nobody wrote, and only such code."""

from __future__ import annotations

import platform

import numpy as np
import pytest
import tvm
from tvm.script import tirx as T  # noqa: N812 - the name that the script parser of TVM is written with

from tests.compiler.lower.cpu.generate.generated import runnable, target_of
from tests.compiler.lower.cpu.generate.scratch_memory import unwritten_blocks, watched_scratch


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the flags of another machine are not read")
@pytest.mark.parametrize(("written", "blocks"), [(1024, 0), (1023, 1)])
def test_a_sum_with_a_number_that_was_not_written_is_noticed(written: int, blocks: int) -> None:
    @T.prim_func(private=False)
    def f(x: T.Buffer((1024,), "float32"), y: T.Buffer((1024,), "float32")) -> None:
        T.func_attr({"global_symbol": "f"})
        scratch = T.alloc_buffer((1024,), "float32")
        for i in range(written):
            scratch[i] = x[i]
        for i in range(1024):
            y[i] = scratch[1023 - i] + x[i]

    result = tvm.runtime.tensor(np.zeros(1024, np.float32))
    with watched_scratch():
        code = tvm.compile(tvm.IRModule({"f": f}), target_of(runnable()[0]))
        unwritten_blocks()
        code["f"](tvm.runtime.tensor(np.ones(1024, np.float32)), result)
    assert unwritten_blocks() == blocks
