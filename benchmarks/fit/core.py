"""The record of this machine's processor core, measured, and what it would change in the table of forms (`make fit`).

Usage: python benchmarks/fit/core.py [--shapes 8] [--no-forms] [--no-table]

Prints a record for compiler/lower/cpu/generate/cores.py: what the core does in a cycle and its caches, by loops in
registers and over arrays; and the corrections of forms, by kernels of the table's shapes that are timed in each form
that proposes itself, relative to "direct". Then the rows of tests/golden/forms that differ with it. Fields that are not
measured are those of the record that the core has now. Let nothing else run.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from math import exp, log
from pathlib import Path
from statistics import median
from typing import Any

if __name__ == "__main__":
    os.environ["TVM_NUM_THREADS"] = "1"  # read when TVM is loaded

import numpy as np
import tvm
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as build

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from heterocc.compiler.devices.host import host_cpu  # noqa: E402
from heterocc.compiler.lower.cpu.generate import cores, emit  # noqa: E402
from heterocc.compiler.lower.cpu.generate.candidates import candidates  # noqa: E402
from heterocc.compiler.lower.cpu.generate.cores import Core  # noqa: E402
from heterocc.compiler.lower.cpu.generate.generate import FORMS  # noqa: E402
from heterocc.compiler.lower.cpu.generate.isa import Isa, has_pairs, isa_of  # noqa: E402
from heterocc.compiler.lower.cpu.generate.read import read_kernel  # noqa: E402
from heterocc.compiler.lower.cpu.maths.pipeline import PIPELINE  # noqa: E402
from heterocc.compiler.lower.cpu.sizes import attempt  # noqa: E402
from heterocc.compiler.lower.kernels.expressions import dtype_of  # noqa: E402
from tests.compiler.lower.cpu.forms import table as forms  # noqa: E402
from tests.compiler.lower.cpu.forms.files import changes  # noqa: E402
from tests.compiler.lower.cpu.forms.shapes import every_shape, some_shapes  # noqa: E402

STEPS = 1 << 18
CHAINS = 12
"""Independent accumulators: enough to hide the latency of four cycles at two multiply-adds a cycle."""

STREAMED = 3.0
"""The bytes that a kernel reads while it computes, as the models count them, over those that one core reads in a cycle
and does nothing else: of an Intel server and a Zen 5, whose models were fitted to kernels."""

SHORT = 20e-6
"""The seconds of a kernel below which the call takes too much of its time."""

USABLE = 0.75
"""The share of a cache that a kernel has for its own."""

CACHES = Path("/sys/devices/system/cpu/cpu0/cache")


def seconds(run: Callable[[], object], rounds: int = 30) -> float:
    """The least time of many runs."""
    run()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def compiled(target: Any, size: int, dtype: str, body: Callable[[Any], None]) -> Callable[[], object]:
    """A function whose body is written for a buffer of so many elements, which it is called with."""
    with IRBuilder() as builder, build.prim_func(s_tir=True):
        build.func_name("f")
        build.func_attr({"tirx.noalias": True, "tirx.is_scheduled": True, "global_symbol": "f"})
        body(build.arg("data", build.Buffer((size,), dtype)))
    function = tvm.compile(tvm.IRModule({"f": builder.get()}), target, tir_pipeline=PIPELINE)["f"]
    data = tvm.runtime.tensor(np.zeros(size, dtype))
    return lambda: function(data)


def cycle(target: Any) -> float:
    """The seconds of a cycle: additions and exclusive ors of integers that wait for each other take one each."""

    def body(data: Any) -> None:
        total = build.alloc_buffer((1,), "int64", scope="global")
        build.buffer_store(total, data[0], [0])
        with build.serial(0, STEPS):
            for _ in range(8):
                build.buffer_store(total, tirx.bitwise_xor(total[0] + data[1], data[2]), [0])
        build.buffer_store(data, total[0], [3])

    return seconds(compiled(target, 4, "int64", body)) / (16 * STEPS)


def multiply_add(target: Any, lanes: int, chains: int) -> float:
    """The seconds of a multiply-add of vectors, of several chains of them."""

    def body(data: Any) -> None:
        whole = build.ramp(0, 1, lanes)
        sums = [build.alloc_buffer((lanes,), "float32", scope="global") for _ in range(chains)]
        for number, total in enumerate(sums):
            build.buffer_store(total, data[build.ramp(number * lanes, 1, lanes)], [whole])
        with build.serial(0, STEPS):
            for total in sums:
                build.buffer_store(total, total[whole] * total[whole] + total[whole], [whole])
        for number, total in enumerate(sums):
            build.buffer_store(data, total[whole], [build.ramp(number * lanes, 1, lanes)])

    return seconds(compiled(target, chains * lanes, "float32", body)) / (chains * STEPS)


def load(target: Any, lanes: int, size: int) -> float:
    """The seconds of loading a vector from an array of so many bytes, each added to one of several sums."""
    vectors = size // (4 * lanes) // CHAINS * CHAINS

    def body(data: Any) -> None:
        whole = build.ramp(0, 1, lanes)
        sums = [build.alloc_buffer((lanes,), "float32", scope="global") for _ in range(CHAINS)]
        for total in sums:
            build.buffer_store(total, data[whole], [whole])
        with build.serial(0, max(1, (64 << 20) // size)), build.serial(0, vectors // CHAINS) as step:
            for number, total in enumerate(sums):
                at = build.ramp((step * CHAINS + number) * lanes, 1, lanes)
                build.buffer_store(total, total[whole] + data[at], [whole])
        for number, total in enumerate(sums):
            build.buffer_store(data, total[whole], [build.ramp(number * lanes, 1, lanes)])

    turns = max(1, (64 << 20) // size)
    return seconds(compiled(target, vectors * lanes, "float32", body), 8) / (turns * vectors)


def cache_sizes() -> dict[int, int]:
    """The bytes of this core's caches of data by level, as the kernel says; of a shared one, the share of a core."""
    found = {}
    for folder in CACHES.glob("index*"):
        if (folder / "type").read_text().strip() != "Instruction":
            cores = sum(1 + int(r.partition("-")[2] or r) - int(r.partition("-")[0]) for r in _shared(folder))
            size = int((folder / "size").read_text().strip().removesuffix("K")) << 10
            level = int((folder / "level").read_text())
            found[level] = size // cores if level > 2 else size
    return found


def _shared(folder: Path) -> list[str]:
    return (folder / "shared_cpu_list").read_text().strip().split(",")


def limits(target: Any, core: Core) -> dict[str, Any]:
    """What is measured of a core in registers and over arrays."""
    one, lanes, sizes = cycle(target), core.lanes, cache_sizes()
    many = multiply_add(target, lanes, CHAINS) / one
    halves = many > 1.6 * multiply_add(target, lanes // 2, CHAINS) / one
    far = {level: load(target, lanes, size // 2) / one for level, size in sizes.items()}
    found = {
        # In halves, a model's cycle is that of a vector.
        "multiply_adds": round(1 / many * (2 if halves else 1), 1),
        "latency": round(multiply_add(target, lanes, 1) / one + 0.5, 1),
        "first_cache": sizes.get(1, core.first_cache),
        "second_cache": int(sizes[2] * USABLE) if 2 in sizes else core.second_cache,
        "memory_stream": round(STREAMED * 4 * lanes * one / load(target, lanes, 256 << 20), 1),
    }
    if 2 in far:
        found["first_miss"] = round(far[2], 1)
    if 3 in far:
        found["third_cache"] = sizes[3]
        found["third_stream"] = round(STREAMED * 4 * lanes / far[3], 1)
    return found


def corrections(target: Any, isa: Isa, step: int) -> dict[str, float]:
    """The measured time of each form over its modelled one, relative to "direct": the median of the table's shapes."""
    ratios: dict[str, list[float]] = defaultdict(list)
    shapes = [s for s in some_shapes(step) if not (s.is_dynamic or s.bfloat or s.fast_math) and s.dtype == "float32"]
    plain = dataclasses.replace(isa, core=dataclasses.replace(isa.core, corrections={}))
    for shape, kernels in forms.kernels_of(shapes).items():
        kernel = attempt(partial(read_kernel, kernels[0].function, kernels[0].weights)) if len(kernels) == 1 else None
        every = {c.form: c for c in reversed(candidates(kernel, FORMS, plain))} if kernel is not None else {}
        if len(every) < 2 or kernel is None:
            continue
        times = {}
        for name, candidate in every.items():
            writer = candidate.writer(plain)
            packings = tuple(writer.packings)
            function = emit.written(kernel, {p.argument: p.size for p in packings}, writer.write, candidate.dtype)
            times[name] = timed(function, target)
        if min(times.values()) < SHORT:
            continue
        times = {name: time / every[name].cycles for name, time in times.items()}
        base = times.get("direct", times.get("product"))
        for name, ratio in times.items():
            if base is not None:
                ratios[name].append(log(ratio / base))
        print(f"{shape}: {', '.join(f'{n} {r / min(times.values()):.2f}' for n, r in times.items())}", file=sys.stderr)
    return {name: round(exp(median(some)), 3) for name, some in ratios.items() if name != "direct"}


def timed(function: tirx.PrimFunc, target: Any) -> float:
    """The seconds of a kernel on one thread, with weights and data of zeros."""
    code = tvm.compile(tvm.IRModule({"f": function.with_attr("global_symbol", "f")}), target, tir_pipeline=PIPELINE)
    given = [tvm.runtime.tensor(np.zeros([int(n) for n in param.shape], dtype_of(param))) for param in function.params]
    run = code["f"]
    return seconds(lambda: run(*given), 40)


def changed(target: Any, core: Core) -> list[str]:
    """The rows of the table that a record changes, of the core that has this target."""
    isa = isa_of(target)
    pairs, shapes = has_pairs(target), every_shape()
    before, after = (
        forms.table(shapes, forms.Core(dataclasses.replace(isa, core=record), pairs)) for record in (isa.core, core)
    )
    return changes("this core", before, after)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--shapes", type=int, default=8, help="time every so many shapes of a family")
    parser.add_argument("--no-forms", action="store_true", help="keep the corrections of forms")
    parser.add_argument("--no-table", action="store_true", help="leave out what changes in the table of forms")
    given = parser.parse_args()
    target = tvm.target.Target({"kind": "llvm", **host_cpu().target})
    isa = isa_of(target)
    found: Mapping[str, Any] = limits(target, isa.core)
    if not given.no_forms:
        fitted = corrections(target, isa, given.shapes)
        found = {**found, "corrections": {**isa.core.corrections, **fitted}}
    core = dataclasses.replace(isa.core, **found)
    print(f"# {host_cpu().name}: what differs from the record that it has")
    print("replace(")
    print(f"    {_named(isa.core)},")
    for name, value in found.items():
        if value != getattr(isa.core, name):
            print(f"    {name}={value!r},")
    print(")")
    if not given.no_table:
        rows = changed(target, core)
        print(f"# {len([r for r in rows if r.startswith('+')])} rows of the table of forms change")
        print("\n".join(rows))


def _named(core: Core) -> str:
    return next(name for name, value in vars(cores).items() if value is core)


if __name__ == "__main__":
    main()
