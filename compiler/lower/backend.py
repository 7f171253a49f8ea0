"""The interface of a back end: the job it is given for one partition, and the code it returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.lower.arranged import Arranged, Elements

Run = Callable[[], None]
"""Enqueues a kernel on the device, without waiting for it."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A kernel with one of several schedules: the schedule's name, and a function that runs it."""

    schedule: str
    run: Run


Timer = Callable[[Sequence[Candidate], Run], Sequence[float]]
"""Measures the seconds that each candidate takes; the second argument waits until the device is done."""


class Records(Protocol):
    """A store of small JSON objects. Keys are SHA-256 digests in hexadecimal."""

    def read(self, key: str) -> Mapping[str, object] | None:
        """The stored record, or None."""
        ...

    def write(self, key: str, record: Mapping[str, object]) -> None:
        """Store a record. A failure to store it is ignored."""
        ...


@dataclass(frozen=True, slots=True)
class Tuning:
    """Options for choosing schedules by timing kernels on the device.

    `timer` measures the candidates, `records` keeps the results for later compiles (None: they are not kept), and
    `progress` is called with a line about each kernel that is timed.
    """

    timer: Timer
    records: Records | None
    progress: Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Tuned:
    """A kernel whose schedule was chosen by timing: its symbol, the nodes it computes, and the schedule's name.

    `candidates` is the number of schedules timed. `before` is the time of the schedule that the static cost models
    choose, `after` that of the chosen one, in seconds. `changed` is true if these are different schedules,
    `remembered` if the times are from an earlier compile.
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

    `trial` marks a single node that is lowered to find out if the device supports it: its inputs and outputs would be
    inner values of a partition. `tuning` is None if static cost models choose the schedules. `sizes` are names of sizes
    that are computed at run time, in the groups in which they are passed to the code after the inputs.
    """

    name: str
    model: ImportedModel
    device: TargetDevice
    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    trial: bool = False
    tuning: Tuning | None = None
    sizes: tuple[tuple[str, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class KernelInfo:
    """One call of a kernel: its symbol, the graph nodes it computes, and the graph values it writes.

    Each call has its own symbol, even if several calls share code. `outputs` is empty if the tensors that the kernel
    writes (its last arguments) are not graph values. A node that only reshapes may be computed without a kernel.
    """

    symbol: str
    nodes: tuple[str, ...]
    outputs: tuple[str, ...] = ()


class Dumps:
    """Pairs (file name, text) for `--dump-dir`: the IR after each phase, and device source.

    They are made when they are first read, because printing the IR of a network takes a second.
    """

    def __init__(self, make: Callable[[], Iterable[tuple[str, str]]] = tuple) -> None:
        self._make = make
        self._made: tuple[tuple[str, str], ...] | None = None

    def __iter__(self) -> Iterator[tuple[str, str]]:
        if self._made is None:
            self._made, self._make = tuple(self._make()), tuple
        return iter(self._made)


@dataclass(frozen=True, slots=True, eq=False)
class LoweredPartition:
    """The code of one partition and its weights. Equality is identity.

    `kind` "tvm": `code` is an ELF shared object with one Relax executable; its entry `main(*inputs, *outputs, params)`
    writes into its outputs and takes the weights as one tuple, in the order of `params`; if a dimension of its inputs
    or outputs has no fixed size, or numpy lacks a dtype, the entry is `main(*inputs, params)`, which returns a tuple of
    new tensors. `kind` "onnx": `code` is an ONNX model with external initializers, which the runtime supplies under
    `param_names`. `params` are C-contiguous arrays, in the model's layout or packed; code from the cache has deferred
    ones. `arranged`, if not empty, has how
    a runtime can make each of them from another array, None for those that it cannot. `kernels` are in run order.
    `cpu_features` are the CPU features that the code needs. `requires` are the driver features that it needs. Tensors
    passed to `code` must start at multiples of `alignment` bytes. `tuned` are the kernels whose schedules were chosen
    by timing. `sequences` says that the code has sequences or optional values. `digests` has
    the SHA-256 of `params` by number, as far as a bundle was written with them.
    """

    kind: Literal["tvm", "onnx"]
    code: bytes
    params: tuple[Elements, ...]
    param_names: tuple[str, ...]
    kernels: tuple[KernelInfo, ...]
    cpu_features: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    alignment: Literal[1, 64] = 64
    dumps: Dumps = field(default_factory=Dumps)
    tuned: tuple[Tuned, ...] = ()
    arranged: tuple[Arranged | None, ...] = ()
    sequences: bool = False
    digests: dict[int, str] = field(default_factory=dict, init=False, repr=False)


class Lowering(Protocol):
    """A back end: lowers partitions, and checks whether single nodes can be lowered.

    `lower` raises LoweringError (HC203) that names the node at fault if it is known.
    `trial` returns None if the node can be lowered for the device, else the reason in one sentence.
    """

    def lower(self, job: PartitionJob) -> LoweredPartition:
        """Lower one partition to code."""
        ...

    def trial(self, model: ImportedModel, node: str, device: TargetDevice) -> str | None:
        """The reason why the node cannot be lowered for the device, or None if it can."""
        ...


@runtime_checkable
class WholeTrial(Protocol):
    """A back end that can try all nodes of a model at once, which takes less time than a trial of each."""

    def trial_whole(self, model: ImportedModel, device: TargetDevice) -> bool:
        """Whether all nodes of the model, as one partition, can be lowered for the device."""
        ...
