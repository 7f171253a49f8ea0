"""Processor cores: one record each of what the models of kernels' times assume of it.

`make fit` measures the core that it runs on, prints its record, and what that would change in the table of forms. A
new core is a record and a name in CORES. Other numbers of the models are not of a core: they are limits on code, or
shares that hold for all of those measured, and stand beside the code that uses them with what they measure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from heterocc.compiler.devices.host import ZEN4, ZEN5


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Core:
    """A processor core. Times are cycles, sizes bytes; a vector is a longest one, unless said otherwise."""

    lanes: int
    """Numbers of float32 in a vector."""

    registers: int
    """Vector registers."""

    multiply_adds: float = 2.0
    """Multiply-adds of vectors that start in a cycle."""

    loads: float = 2.0
    """Loads that start in a cycle, of a vector or of a number that is broadcast."""

    latency: float = 4.5
    """The time for which a multiply-add waits for the one before, with a margin for imperfect scheduling."""

    broadcast: float = 0.08
    vector: float = 0.2
    """What each number that is broadcast from the first-level cache, and each vector from the second, add to a step."""

    spare: int = 0
    """Registers that tiles leave free, because LLVM loads the numbers of several terms at once."""

    hoisted: int = 1
    """Vectors of unrolled terms that LLVM loads at once for a tile of a single one, and that registers have to hold."""

    first_cache: int = 32 << 10
    second_cache: int = 768 << 10
    third_cache: int = 4 << 20
    """What a kernel can use of the first-level and the second-level cache, and of the third, which cores share."""

    first_ways: int = 8
    second_ways: int = 16
    """Lines of a set of the first-level cache (of 64 sets), and of the second (of 1024)."""

    first_miss: float = 2.0
    second_miss: float = 4.0
    """The time of a vector of weights that is not in the first-level cache, or not in the second."""

    line: float = 3.0
    """The time that a line adds which each chunk, or each tile, reads from a farther cache again."""

    third_stream: float = 24.0
    memory_stream: float = 16.0
    """Bytes in a cycle from the third-level cache, and from memory, while products are computed."""

    copied_number: float = 1.2
    """The time of a number that is copied on its own."""

    far_bytes: int = 768 << 10
    """Weights of more bytes do not stay in the second-level cache while a kernel runs."""

    copy_bytes: int = 256 << 10
    """The limit on copied rows, which are to stay in the second-level cache with the weights."""

    fetched_bytes: int = 256 << 10
    fetched_map: int = 2 << 20
    fetched_planes: int = 4 << 20
    """Sizes of a tensor from which on what a kernel reads of it in place next, or writes to it, is prefetched, of one
    that rows are copied from, and of one whose planes are read in windows: a smaller one may be in the second-level
    cache, or, of planes, in the third; fetching takes 1.05 times as long.
    """

    fetched_weights: int = 128 << 10
    """Weights of more bytes are fetched for the next panel or tile: other kernels of a network have run since they were
    read. mobilenetv2 takes 0.975 of the time with it, others 0.98 to 1.00."""

    block_bytes: int = 0
    """What tiles with vectors along channels may read of a block of input channels, to stay in a first-level cache; 0
    for no blocks: a Zen 4 takes 1.01 to 1.26 times as long with them."""

    filtered_channels: int = 6
    """The least output channels that share transformed inputs: of 3 a Zen 4 took 1.3 times as long."""

    filter_inputs: Mapping[int, float]
    filter_outputs: Mapping[int, float]
    """The times of transforming a vector of tiles for Winograd's filtering, with copies and epilogue, by the outputs of
    a tile's side."""

    filter_weights: Mapping[int, float]
    """Bytes in a cycle of its weights: large tiles use each for so few products that reading takes longer."""

    corrections: Mapping[str, float]
    """What the models of forms misjudge, by their names: factors relative to "direct", fitted to forms that were timed
    one beside the other."""

    @property
    def few_registers(self) -> bool:
        """Whether it has as few registers as AVX2: they bound tiles, and LLVM stores sums sooner."""
        return self.registers <= 16

    def step_cycles(self, rows: int, vectors: float) -> float:
        """The time of one step of the reduction in a tile of `rows` broadcast numbers times `vectors`.

        At least the latency of a multiply-add; and a charge for loads.
        """
        sums = max(rows * vectors / self.multiply_adds, (rows + vectors) / self.loads, self.latency)
        return sums + self.broadcast * rows + self.vector * vectors


AVX512 = Core(
    lanes=16,
    registers=32,
    spare=3,
    filter_inputs={2: 40.0, 4: 110.0},
    filter_outputs={2: 34.0, 4: 130.0},
    filter_weights={2: 32.0, 4: 4.4},
    corrections={
        "product": 1.055,
        "channels": 1.03,
        "filtering": 1.05,
        "planes": 0.5,
    },
)
"""An Intel server: 1 MiB and more of second-level cache, and a far third one. Forms also timed on Zen 4 and Zen 5.

With blocks for a near third-level cache it took 1.5 to 2.2 times as long for 256 and 512 channels at 14 to 56, where
their inputs did not stay in the second.
"""

ZEN_CORE = replace(AVX512, third_stream=96.0)
"""A Zen 4 or Zen 5: its third-level cache is about as fast as its second-level one."""

AVX2 = Core(
    lanes=8,
    registers=16,
    hoisted=4,
    second_cache=540 << 10,
    block_bytes=20 << 10,
    filter_inputs={2: 80.0, 4: 110.0},
    filter_outputs=AVX512.filter_outputs,
    filter_weights={2: 64.0, 4: 4.4},
    corrections={
        "product": 1.04,
        "channels": 1.015,
        "filtering": 0.98,
        "planes": 0.5,
    },
)
"""A Zen 3: 512 KiB of second-level cache, as many cores without AVX-512 have it. Forms also timed on a Zen 4."""

SSE = replace(AVX2, lanes=4)
"""Of 64-bit x86 without AVX: not measured."""

NEON = replace(AVX512, lanes=4, corrections={"product": 1.02, "filtering": 1.3, "planes": 0.45})
"""Of 64-bit ARM: not measured; corrections by the choices that were made before."""

CORES: Mapping[str, Core] = {ZEN4: ZEN_CORE, ZEN5: ZEN_CORE}
"""Cores by LLVM's names, for code in their longest vectors. Others have the record of their vectors."""

_BY_VECTORS = {(core.lanes, core.registers): core for core in (AVX512, AVX2, SSE, NEON)}


def core_of(names: Collection[object], lanes: int, registers: int) -> Core:
    """The core of a target that has one of these names, and these vectors: its own record, or that of the vectors."""
    named = (core for name, core in CORES.items() if name in names and core.lanes == lanes)
    return next(named, _BY_VECTORS[lanes, registers])
