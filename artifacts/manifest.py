"""The bundle's manifest: pydantic models, strict at the boundary; FORMAT.md is the specification."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

FORMAT_NAME: Literal["heterocc-bundle"] = "heterocc-bundle"
FORMAT_MAJOR = 1
FORMAT_MINOR = 0

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Size = Annotated[int, Field(ge=0, le=2**63 - 1)]
Index = Annotated[int, Field(ge=0, le=2**31 - 1)]
Dim = Annotated[int, Field(ge=0, le=2**48)] | None


class Record(BaseModel):
    """Base of all manifest records: frozen; a reader ignores fields of a newer minor version."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class Version(Record):
    """Format version: a reader refuses another `major` and ignores unknown fields of a newer `minor`."""

    major: Index = FORMAT_MAJOR
    minor: Index = FORMAT_MINOR


class Producer(Record):
    """Versions of what wrote the bundle; `tvm` must match the runtime's for compiled partitions."""

    heterocc: str
    tvm: str | None = None
    onnxruntime: str | None = None


class TensorSpec(Record):
    """A named tensor; `dtype` is numpy's name or ONNX's type text for what is no numeric tensor."""

    name: str
    dtype: str
    shape: tuple[Dim, ...] | None


class ModelInfo(Record):
    """The source model: its file name without folder, SHA-256, opsets by domain, inputs and outputs in model order."""

    name: str
    sha256: Sha256
    opsets: dict[str, int]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


class Member(Record):
    """One member of the zip and its SHA-256 (the weight file has none of its own: each tensor carries one)."""

    name: str
    size: Size
    sha256: Sha256 | None


class Weight(Record):
    """A tensor in the weight file: 64-byte aligned `offset`, stored once by content."""

    dtype: str
    shape: tuple[Annotated[int, Field(ge=0, le=2**48)], ...]
    offset: Size
    nbytes: Size
    sha256: Sha256


class Device(Record):
    """A device that a variant needs.

    `name` is the label the user gave; `backend` who runs it. `target` is the TVM target as JSON text.
    `arch` and `cpu_features` (LLVM names) are required of the host CPU when `backend` is `cpu` (and of the host code of
    the other compiled back ends). `requires` names capabilities of the device itself, such as `fp16`.
    """

    name: str
    backend: Literal["cpu", "opencl", "vulkan", "cuda", "ort"]
    index: Index = 0
    target: str | None = None
    arch: str | None = None
    cpu_features: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    properties: dict[str, str] = {}


class Kernel(Record):
    """A compiled kernel and the model's nodes it computes; `outputs` are the graph values it writes, where known."""

    symbol: str
    nodes: tuple[str, ...]
    op_types: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


class Partition(Record):
    """One compiled piece. `inputs` and `outputs` index the variant's `values`, `params` the bundle's `weights`.

    `code` names the member: an ELF shared object with a Relax executable (`kind` "tvm"), or an ONNX model whose
    initializers are external and named `param_names` (`kind` "onnx").
    The entry function of a "tvm" partition is `main(*inputs, *outputs, params)`: it writes into the outputs it is
    given, `params` is one tuple of tensors.
    """

    name: str
    device: Index
    kind: Literal["tvm", "onnx"]
    code: str
    entry: str = "main"
    inputs: tuple[Index, ...]
    outputs: tuple[Index, ...]
    params: tuple[Index, ...] = ()
    param_names: tuple[str, ...] = ()
    nodes: tuple[str, ...]
    kernels: tuple[Kernel, ...] = ()
    checked: bool = False


class Variant(Record):
    """One way to run the model: devices, values, and partitions in run order.

    `inputs` and `outputs` index `values` in the model's order; a model output that is a constant or an input has an
    entry in `values` like any other. `constants` maps a value index to a weight index.
    """

    name: str
    devices: tuple[Device, ...]
    values: tuple[TensorSpec, ...]
    inputs: tuple[Index, ...]
    outputs: tuple[Index, ...]
    constants: dict[str, Index] = {}
    partitions: tuple[Partition, ...]
    plan: str
    summary: str
    notes: tuple[str, ...] = ()


class Golden(Record):
    """Seeded inputs and ONNX Runtime's outputs for them, as .npy members, by tensor name; with the tolerance."""

    seed: Index
    inputs: dict[str, str]
    outputs: dict[str, str]
    rtol: float
    atol: float


class Manifest(Record):
    """The whole manifest; `variants` in order of preference."""

    format: Literal["heterocc-bundle"] = FORMAT_NAME
    version: Version = Version()
    producer: Producer
    model: ModelInfo
    members: tuple[Member, ...]
    weights_member: str = "weights.bin"
    weights: tuple[Weight, ...]
    variants: Annotated[tuple[Variant, ...], Field(min_length=1)]
    golden: Golden | None = None
