"""The limits of this machine's CPU, measured: multiply-adds in registers, and copies through memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import tvm
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.devices.host import host_cpu
from heterocc.compiler.lower.cpu.target import vector_lanes

_CHAINS = 12
"""Independent accumulators: enough to hide the latency of four cycles at two multiply-adds a cycle."""
_STEPS = 4_000_000
"""Some 6 ms of work: the start of a thread takes a tenth of a millisecond."""
_COPY = 1 << 26


@cache
def multiply_add_peak(threads: int) -> float:
    """GFLOP/s of `threads` cores that do nothing but multiply-adds of full vectors in registers."""
    target = tvm.target.Target({"kind": "llvm", **host_cpu().target})
    lanes = vector_lanes(target)
    function = _chains(lanes, target)
    results = [tvm.runtime.tensor(np.zeros(_CHAINS * lanes, np.float32)) for _ in range(threads)]
    flop = 2 * lanes * _CHAINS * _STEPS
    return max(threads * flop / t / 1e9 for t in _times(threads, lambda i: function(results[i]), 10))


@cache
def copy_bandwidth(threads: int) -> float:
    """GB/s read and written by `threads` cores that copy arrays larger than the caches."""
    pairs = [(np.ones(_COPY, np.uint8), np.empty(_COPY, np.uint8)) for _ in range(threads)]
    moved = 2 * _COPY * threads
    return max(moved / t / 1e9 for t in _times(threads, lambda i: np.copyto(pairs[i][1], pairs[i][0]), 5))


def _times(threads: int, work: Callable[[int], object], rounds: int) -> list[float]:
    """Seconds of rounds in which every thread does its work once."""
    times = []
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
        for _ in range(rounds):
            start = time.perf_counter()
            list(pool.map(work, range(threads)))
            times.append(time.perf_counter() - start)
    return times


def _chains(lanes: int, target: Any) -> Any:
    """A function that adds the product of two registers to each of some registers, many times."""
    with IRBuilder() as builder, build.prim_func(s_tir=True):
        build.func_name("peak")
        build.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True, "global_symbol": "peak"})
        out = build.arg("out", build.Buffer((_CHAINS * lanes,), "float32"))
        sums = [build.alloc_buffer((lanes,), "float32", scope="global") for _ in range(_CHAINS)]
        whole = build.ramp(0, 1, lanes)
        for i in range(_CHAINS):
            build.buffer_store(sums[i], out[build.ramp(i * lanes, 1, lanes)], [whole])
        with build.serial(0, _STEPS):
            for s in sums:
                # x = x * x + x from zero stays zero, and no compiler may leave it out in float arithmetic.
                build.buffer_store(s, s[whole] * s[whole] + s[whole], [whole])
        for i in range(_CHAINS):
            build.buffer_store(out, sums[i][whole], [build.ramp(i * lanes, 1, lanes)])
    return tvm.compile(tvm.IRModule({"peak": builder.get()}), target)["peak"]
