"""The vector registers that generated kernels use."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from heterocc.compiler.lower.cpu.target import triple_of, vector_lanes

if TYPE_CHECKING:
    from tvm.target import Target


@dataclass(frozen=True, slots=True)
class Isa:
    """An instruction set: `registers` is the number of vector registers, each of `lanes` float32."""

    lanes: int
    registers: int

    def narrowed(self, length: int) -> Isa:
        """The same registers with at most as many lanes as `length` numbers fill."""
        lanes = self.lanes
        while lanes > 4 and lanes // 2 >= length:
            lanes //= 2
        return replace(self, lanes=lanes)


def isa_of(target: Target) -> Isa:
    """The instruction set of a CPU target: 32 registers with AVX-512 and on 64-bit ARM, else 16."""
    lanes = vector_lanes(target)
    arm = (triple_of(target) or "").startswith(("aarch64", "arm64"))
    return Isa(lanes, 32 if arm or lanes >= 16 else 16)
