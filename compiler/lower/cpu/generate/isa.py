"""The vector registers that generated kernels use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from heterocc.compiler.lower.cpu.generate.cores import Core, core_of
from heterocc.compiler.lower.cpu.sizes import Size, typical
from heterocc.compiler.lower.cpu.target import features_of, triple_of, vector_lanes

if TYPE_CHECKING:
    from tvm.target import Target


Dot = Literal["bytes", "limited", "pairs", "single"]
"""Products of integers that one instruction adds up in a 32-bit lane: of four bytes, two 16-bit numbers, or one.

"limited" are four bytes by two instructions, which need small weights (`integers/limited.py`).
"""


@dataclass(frozen=True, slots=True)
class Isa:
    """An instruction set on a `core`: `registers` vector registers, each of `lanes` float32, and products of integers.

    `bfloat` is whether factors of products of float32 are rounded to bfloat16. `matrices` is whether the CPU multiplies
    matrices of bytes (AMX). `masks` is whether some lanes of a vector can be read and stored, where the others may be
    outside the memory. `halves` is whether vectors of float16 can be widened. `fast_math` is whether faster ways with
    larger rounding errors may be taken. `weights_of` gives the weights that calls of the kernel have for an argument,
    by its number; none if they are not known. `stored` are the arguments whose weights may stay in a type of 16 bits,
    which holds them exactly.
    """

    core: Core
    lanes: int
    registers: int
    dot: Dot = "single"
    bfloat: bool = False
    matrices: bool = False
    masks: bool = False
    halves: bool = False
    fast_math: bool = False
    weights_of: Callable[[int], Sequence[np.ndarray]] = field(default=lambda _: (), compare=False, repr=False)
    stored: Mapping[int, str] = field(default_factory=dict, compare=False)

    @property
    def reads_parts(self) -> bool:
        """Whether vectors are read by masks in the time of others: with AVX2, too, which stores them slowly."""
        return self.lanes >= 8

    def of(self, dtype: str) -> Isa:
        """The same with as many lanes as a register has numbers of a type; masks are of 32-bit lanes of float32."""
        size = np.dtype(dtype).itemsize
        return self if dtype == "float32" else replace(self, lanes=max(1, self.lanes * 4 // size), masks=False)

    def narrowed(self, length: Size) -> Isa:
        """The same registers with at most as many lanes as `length` numbers fill."""
        lanes = self.lanes
        while lanes > 4 and lanes // 2 >= typical(length):
            lanes //= 2
        return replace(self, lanes=lanes)


def isa_of(target: Target) -> Isa:
    """The instruction set of a CPU target: 32 registers with AVX-512 and on 64-bit ARM, else 16."""
    lanes = vector_lanes(target)
    arm = (triple_of(target) or "").startswith(("aarch64", "arm64"))
    wide = lanes >= 16
    dot, matrices = _dot(target, lanes, arm), wide and "amx-int8" in features_of(target)
    registers = 32 if arm or wide else 16
    core = core_of({target.attrs.get("model"), target.attrs.get("mcpu")}, lanes, registers)
    halves = arm or "f16c" in features_of(target)
    return Isa(core, lanes, registers, dot, matrices=matrices, masks=wide, halves=halves)


def has_pairs(target: Target) -> bool:
    """Whether a CPU multiplies pairs of bfloat16 (AVX512-BF16)."""
    return "avx512bf16" in features_of(target)


def _dot(target: Target, lanes: int, arm: bool) -> Dot:
    features = features_of(target)
    if arm:
        return "bytes" if "i8mm" in features else "single"
    if lanes >= 16:
        return "bytes" if "avx512vnni" in features else "pairs" if "avx512bw" in features else "single"
    return "pairs" if "avx2" in features else "single"
