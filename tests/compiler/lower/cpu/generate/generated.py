"""One kernel of a small model, generated for a named CPU and run here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import tvm

from heterocc.compiler.devices.host import host_cpu
from heterocc.compiler.lower.cpu.generate.generate import generate
from heterocc.compiler.lower.cpu.generate.isa import Isa, isa_of
from heterocc.compiler.lower.cpu.generate.rows.joins import joined_rows
from heterocc.compiler.lower.cpu.maths.pipeline import PIPELINE
from heterocc.compiler.lower.pipeline import KernelModule, kernel_module
from heterocc.compiler.lower.straight import bindings_of
from tests.compiler.lower.cpu.aarch64 import emulated
from tests.compiler.lower.cpu.generate.scratch_memory import unwritten_blocks, watched_scratch
from tests.compiler.lower.lowered import job, model

AVX512, AVX2, NEON = "x86-64-v4", "x86-64-v3", "cortex-a76"
ARM = tvm.target.Target({"kind": "llvm", "mtriple": "aarch64-linux-gnu", "mcpu": NEON})


def runnable() -> list[str]:
    """CPUs whose code runs on this machine: of each vector width that it has."""
    features = host_cpu().features
    wide = [AVX512] if "avx512vl" in features else []
    return [*wide, *([AVX2] if "avx2" in features else [])] or ["x86-64"]


def target_of(mcpu: str) -> tvm.target.Target:
    """The TVM target of an x86-64 level, with vectors as wide as the level has, or of 64-bit ARM (NEON)."""
    if mcpu == NEON:
        return ARM
    attributes = ["-prefer-256-bit"] if mcpu == AVX512 else []
    target = {"kind": "llvm", "mtriple": "x86_64-linux-gnu", "mcpu": mcpu}
    return tvm.target.Target({**target, "mattr": attributes} if attributes else target)


def with_core(target: tvm.target.Target, **changes: Any) -> Isa:
    """The instruction set of a target, on a core that differs in some fields."""
    isa = isa_of(target)
    return replace(isa, core=replace(isa.core, **changes))


class Generated:
    """The only kernel of a model: generated for `target`, with its weights packed."""

    def __init__(
        self,
        nodes: Sequence[onnx.NodeProto],
        inputs: Mapping[str, np.ndarray],
        weights: Mapping[str, np.ndarray],
        target: tvm.target.Target,
        isa: Isa | None = None,
        **forms: Any,
    ) -> None:
        """`forms` are the lists of forms for `generate` that a test is about, in place of all."""
        made = model(nodes, inputs, [nodes[-1].output[0]], dict(weights))
        module = joined_rows(kernel_module(job(made), target))
        functions = [f for g, f in module.mod.functions_items() if g.name_hint != "main"]
        assert len(functions) == 1, "the model is not one kernel"
        self._arguments = _arguments(module, inputs)
        constant = {n for n, (_, weight) in enumerate(self._arguments) if weight}
        self._shape = tuple(int(n) for n in functions[0].params[-1].shape)
        self.isa: Isa = replace(isa or isa_of(target), weights_of=lambda number: [self._arguments[number][0]])
        self.done = generate(functions[0], constant, self.isa, **forms)
        self._target = target

    def code(self) -> tvm.runtime.Executable:
        """The kernel, compiled."""
        assert self.done is not None, "the kernel is of no kind that is generated"
        with self._target:
            module = tvm.IRModule({"f": self.done[0].with_attr("global_symbol", "f")})
            return tvm.compile(module, self._target, tir_pipeline=PIPELINE)

    def run(self, dtype: str = "float32") -> np.ndarray:
        """The kernel's output, which has this dtype. What it does not write stays NaN, or 85 in integers.

        Code for ARM is emulated.
        """
        assert self.done is not None, "no generator supports the kernel's kind"
        values = [value for value, _ in self._arguments]
        for packing in self.done[1]:
            values[packing.argument] = packing.apply(values[packing.argument])
        result = np.full(self._shape, np.nan if dtype == "float32" else 85, dtype)
        if self._target == ARM:
            return emulated.run(self.done[0], ARM, values, [result])[0]
        with watched_scratch():
            code = self.code()
            given, output = [tvm.runtime.tensor(np.array(v, order="C")) for v in values], tvm.runtime.tensor(result)
            unwritten_blocks()
            code["f"](*given, output)
        if all(np.isfinite(v).all() for v in values if v.dtype == np.float32):
            assert not unwritten_blocks(), "the kernel computes with scratch memory that it has not written"
        return output.numpy()


def _arguments(module: KernelModule, inputs: Mapping[str, np.ndarray]) -> list[tuple[np.ndarray, bool]]:
    """The arguments' values, and whether each is a weight."""
    found = []
    for argument in bindings_of(module.mod["main"])[0].value.args[1].fields:
        name = getattr(argument, "name", None)
        if name in module.arrays:
            found.append((np.asarray(module.arrays[name]), True))
        elif name in inputs:
            found.append((inputs[name], False))
        else:
            found.append((np.asarray(argument.value.numpy()), False))
    return found


def assert_near(found: np.ndarray, right: np.ndarray, terms: int) -> None:
    """The float32 result of a sum of `terms` products is as near to float64's as float32 allows."""
    scale = max(1.0, float(np.abs(right).max()))
    assert found.shape == right.shape
    np.testing.assert_allclose(found, right, rtol=0, atol=1e-6 * scale * max(4.0, np.sqrt(terms)))
