"""What lowering gives back for one partition, whatever the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.importer.model import ImportedModel

Run = Callable[[], None]
"""Has the device run a kernel, without waiting for it."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A kernel as one of several schedules has it: which one, and what runs it."""

    schedule: str
    run: Run


Timer = Callable[[Sequence[Candidate], Run], Sequence[float]]
"""Seconds that each candidate takes; the second argument waits until the device is done."""


class Records(Protocol):
    """A store of small JSON objects by key, a SHA-256 in hexadecimal."""

    def read(self, key: str) -> Mapping[str, object] | None:
        """The stored record, None when there is none."""
        ...

    def write(self, key: str, record: Mapping[str, object]) -> None:
        """Store a record; failing to is no error."""
        ...


@dataclass(frozen=True, slots=True)
class Tuning:
    """That kernels are timed on the device to choose their schedules: with what, where that is kept, who is told."""

    timer: Timer
    records: Records | None
    tell: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Tuned:
    """A kernel whose schedule was chosen by time: its symbol, the nodes that it computes, what the schedule is.

    `before` is the time of the schedule that the static models choose, `after` that of the chosen one, in seconds;
    `candidates` were timed. `changed`: the chosen one is not the models'. `remembered`: an earlier compile timed them.
    """

    kernel: str
    nodes: tuple[str, ...]
    schedule: str
    changed: bool
    candidates: int
    before: float
    after: float
    remembered: bool


@dataclass(frozen=True, slots=True)
class PartitionJob:
    """One partition to lower: `nodes`, `inputs` and `outputs` are names of the imported graph; `name` is `p0`, `p1`.

    `trial` marks a node asked about alone: its borders would lie inside a partition. `tuning` is None where static
    models choose the schedules.
    """

    name: str
    model: ImportedModel
    device: TargetDevice
    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    trial: bool = False
    tuning: Tuning | None = None


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """One call of a kernel: its symbol, the graph nodes it computes, and the graph values it writes.

    A symbol belongs to one call; calls that share code still have their own. `outputs` is empty where what the kernel
    writes (its last arguments) is no graph value. A node that only reshapes may have no kernel.
    """

    symbol: str
    nodes: tuple[str, ...]
    outputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class LoweredPartition:
    """Code of one partition and the weights it wants; each is equal to itself alone.

    `kind` "tvm": `code` is an ELF shared object with one Relax executable; entry `main(*inputs, *outputs, params)`
    writes into its outputs, `params` is one tuple in the order of `params`. `kind` "onnx": `code` is an ONNX model, its
    initializers external, to be given under `param_names`. `params` are C-contiguous arrays (possibly packed
    differently from the model's). `kernels` are in run order. `cpu_features` are what the code needs of the CPU.
    Tensors that `code` is given must start at multiples of `alignment` bytes.
    `dumps` are file name → text for `--dump-dir` (IR after each phase, device source). `tuned` are the kernels whose
    schedules were chosen by time.
    """

    kind: Literal["tvm", "onnx"]
    code: bytes
    params: tuple[np.ndarray, ...]
    param_names: tuple[str, ...]
    kernels: tuple[KernelInfo, ...]
    cpu_features: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    alignment: Literal[1, 64] = 64
    dumps: tuple[tuple[str, str], ...] = ()
    tuned: tuple[Tuned, ...] = ()


class Lowering(Protocol):
    """A back end: lowers partitions and answers for single nodes.

    `lower` raises LoweringError (HC203) naming the node at fault where it can.
    `trial` returns None when the node lowers for the device, else one sentence why not.
    """

    def lower(self, job: PartitionJob) -> LoweredPartition:
        """Lower one partition to code."""
        ...

    def trial(self, model: ImportedModel, node: str, device: TargetDevice) -> str | None:
        """Why the node does not lower for the device, or None if it does."""
        ...
