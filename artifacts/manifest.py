"""The bundle's manifest as records with checked fields; FORMAT.md is the specification.

`python -m heterocc.artifacts.manifest` prints the JSON schema, which is stored beside this file.
"""

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from heterocc.artifacts.records import Limit, Record, compact
from heterocc.artifacts.settings import Settings, settings_of

FORMAT_NAME: Literal["heterocc-bundle"] = "heterocc-bundle"
FORMAT_MAJOR = 7
FORMAT_MINOR = 2
PLAIN = (1, 2)
"""The version of bundles without layouts and dynamic dimensions, which earlier readers can read, too."""
ARRANGED = (2, 0)
"""The version of bundles with layouts, without dynamic dimensions."""
DYNAMIC = (3, 0)
"""The version of bundles with dynamic dimensions in code for CPUs alone."""
STEPPED = (4, 0)
"""The version of bundles with dynamic dimensions whose sizes are multiples of a number."""
WIDENED = (5, 0)
"""The version of bundles with weights of 16 bits that code reads as float32."""
CONTAINED = (6, 0)
"""The version of bundles with code for sequences and optional values."""
CONDITIONED = (7, 0)
"""The version of bundles whose code needs conditions of the sizes of inputs."""
ROOMY = (3, 1)
"""The version of bundles with dynamic dimensions in code for other devices, too."""
COMPRESSED = {1: 4, 2: 2, 3: 2, 4: 1, 5: 1, 6: 1, 7: 1}
"""The minor version of bundles that say how the model's weights were compressed, by the major one."""
REPLACING = {1: 5, 2: 3, 3: 3, 4: 2, 5: 2, 6: 2, 7: 2}
"""The minor version of bundles with constants that the model lists as inputs, too, by the major one."""

MANIFEST_NAME = "manifest.json"
DIGEST_NAME = "manifest.sha256"
SIGNATURE_NAME = "manifest.sig"
WEIGHTS_NAME = "weights.bin"
RESERVED_NAMES = frozenset([MANIFEST_NAME, DIGEST_NAME, SIGNATURE_NAME])
"""Members that the manifest does not list."""

MAX_DIM = 2**48
MAX_RANK = 32
MAX_NAME = 4096
MAX_BLOCK_RANK = 8
MAX_TOKENS = 4096
"""Maximum of numbers, dimensions and operators in an expression."""
MAX_FILTER = 8
"""Maximum of rows of a layout's matrix."""

Sha256 = Annotated[str, Limit(pattern=r"^[0-9a-f]{64}$")]
Size = Annotated[int, Limit(ge=0, le=2**63 - 1)]
Index = Annotated[int, Limit(ge=0, le=2**31 - 1)]
Name = Annotated[str, Limit(min_length=1, max_length=MAX_NAME)]
Opset = Annotated[int, Limit(ge=-(2**63), le=2**63 - 1)]
StaticDim = Annotated[int, Limit(ge=0, le=MAX_DIM)]
PositiveDim = Annotated[int, Limit(ge=1, le=MAX_DIM)]
DimName = Annotated[str, Limit(min_length=1, max_length=MAX_NAME)]
Dim = StaticDim | DimName | None
"""A dimension: its size, its name, or None for one that has neither."""
FaultVariable = Annotated[str, Limit(pattern=r"^[A-Z][A-Z0-9_]{0,63}$")]
MemberName = Annotated[str, Limit(max_length=255, pattern=r"^[A-Za-z0-9_+=,@-][A-Za-z0-9_.+=,@/-]*$")]
"""A name in the zip; the reader also refuses components that are empty or begin with a full stop."""


class Version(Record):
    """Format version: a reader refuses an unknown `major` and ignores unknown fields of a newer `minor`."""

    major: Index = PLAIN[0]
    minor: Index = PLAIN[1]


class Producer(Record):
    """Versions of what wrote the bundle; `tvm` must match the runtime's for compiled partitions."""

    heterocc: str
    tvm: str | None = None
    onnxruntime: str | None = None


class TensorSpec(Record):
    """A named tensor; `dtype` is numpy's name, or ONNX's type text if it is not a numeric tensor.

    A dimension that is known only at run time is a name or None. Dimensions of one name are equal in each run.
    A sequence or an optional value has no `shape`; `elements` is that of its tensors, with None for dimensions that
    may differ, and None if their ranks may.
    """

    name: Name
    dtype: Name
    shape: Annotated[tuple[Dim, ...], Limit(max_length=MAX_RANK)] | None
    elements: Annotated[tuple[StaticDim | None, ...], Limit(max_length=MAX_RANK)] | None = None


class Compressed(Record):
    """How the model's weights were compressed: their form, such as `int4:block=32`, and the nodes left out."""

    form: Annotated[str, Limit(min_length=1, max_length=256)]
    keep: tuple[str, ...] = ()


class ModelInfo(Record):
    """The source model: its file name without folder, SHA-256, opsets by domain, inputs and outputs in model order.

    `classes` are names of classes, by output: the output has their numbers, or a column for each of them. `defaults`
    are the members with the values of inputs that a run may leave out, by input. `held` are initializers that the
    model lists as inputs, too, and that are constants of the variants. With `compressed` the SHA-256 is that of the
    file's SHA-256 in hexadecimal, the form and the nodes that it leaves out.
    """

    name: str
    sha256: Sha256
    opsets: dict[str, Opset]
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    classes: dict[Name, tuple[str | int, ...]] = {}
    defaults: dict[Name, MemberName] = {}
    held: tuple[Name, ...] = ()
    compressed: Compressed | None = None


class Member(Record):
    """A member of the zip and its SHA-256 (None for the weight file, whose tensors have one each)."""

    name: MemberName
    size: Size
    sha256: Sha256 | None


class Weight(Record):
    """A tensor in the weight file: little endian, row-major, 64-byte aligned `offset`, stored once by content.

    `offset` counts from the start of the weight file. Weights with equal bytes share one offset.
    """

    dtype: Name
    shape: Annotated[tuple[StaticDim, ...], Limit(max_length=MAX_RANK)]
    offset: Size
    nbytes: Size
    sha256: Sha256


class Block(Record):
    """Elements of a weight and their places in a layout, both counted in elements.

    Element i, with 0 <= i[d] < extents[d], is at start + sum(i * strides) in the weight, and at
    to + sum(i * to_strides) in the layout. With a matrix, element i is a group of nine, and plane p of its transform is
    p * planes further.
    """

    extents: Annotated[tuple[Annotated[int, Limit(ge=1, le=MAX_DIM)], ...], Limit(max_length=MAX_BLOCK_RANK)]
    start: Size
    strides: Annotated[tuple[Size, ...], Limit(max_length=MAX_BLOCK_RANK)]
    to: Size
    to_strides: Annotated[tuple[Size, ...], Limit(max_length=MAX_BLOCK_RANK)]
    planes: Size = 0


class Layout(Record):
    """A tensor of `shape` that a runtime makes from a weight when it loads code that reads the weight in this form.

    Elements that no block reaches are zero. With a `matrix` G of three columns, each group g of nine elements, taken as
    3 x 3, gives the planes G g Gᵀ, in row-major order, computed in float64. With `widens` the weight's elements are
    numbers of this format (those of bfloat16 as uint16), and what the layout describes is made of them as float32.
    """

    shape: Annotated[tuple[StaticDim, ...], Limit(max_length=MAX_RANK)]
    blocks: Annotated[tuple[Block, ...], Limit(max_length=64)]
    matrix: Annotated[tuple[tuple[float, float, float], ...], Limit(min_length=1, max_length=MAX_FILTER)] | None = None
    widens: Literal["float16", "bfloat16"] | None = None


class Device(Record):
    """A device that a variant needs.

    `name` is the label that the user gave, and `backend` the API that runs its code. `target` is the TVM target as JSON
    text. `arch` and `cpu_features` (LLVM names) are requirements on the host CPU, for `cpu` and for the host code of
    other compiled back ends. `requires` names required capabilities of the device itself, such as `fp16`.
    """

    name: Name
    backend: Literal["cpu", "opencl", "vulkan", "cuda", "ort"]
    index: Index = 0
    target: str | None = None
    arch: str | None = None
    cpu_features: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    properties: dict[str, str] = {}

    @property
    def settings(self) -> Settings:
        """The properties, parsed."""
        return settings_of(self.properties)


class Kernel(Record):
    """A compiled kernel and the model's nodes that it computes; `outputs` are the graph values it writes, if known."""

    symbol: str
    nodes: tuple[str, ...]
    op_types: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()


class Partition(Record):
    """A compiled partition. `inputs` and `outputs` index the variant's `values`, `params` the bundle's `weights`.

    `code` names the member: an ELF shared object with a Relax executable (`kind` "tvm"), or an ONNX model whose
    initializers are external and named `param_names` (`kind` "onnx").
    The entry function of a "tvm" partition is `main(*inputs, *outputs, params)`, which writes into the given outputs;
    `params` is one tuple of tensors. `layouts` maps places in it (as decimal text) to the layouts in which the code
    reads these weights.
    The entry of one that reads or writes a value without a static shape is `main(*inputs, params)`, which returns a
    tuple of new tensors, one for each output.
    The tensors passed to it start at multiples of `alignment` bytes.
    `sequences` says that the code has sequences or optional values, for which it calls functions of the runtime.
    `binaries` names a member with a driver's binaries of the kernels, which are optional and are used only with the
    same device and driver.
    """

    name: Name
    device: Index
    kind: Literal["tvm", "onnx"]
    code: MemberName
    binaries: MemberName | None = None
    entry: str = "main"
    alignment: Literal[1, 64] = 64
    inputs: tuple[Index, ...]
    outputs: tuple[Index, ...]
    params: tuple[Index, ...] = ()
    param_names: tuple[str, ...] = ()
    layouts: dict[str, Layout] = {}
    sequences: bool = False
    nodes: tuple[str, ...]
    kernels: tuple[Kernel, ...] = ()
    checked: bool = False


class Range(Record):
    """The sizes of a dynamic dimension: multiples of `step` from `min` to `max`, or without limit for None."""

    min: StaticDim = 0
    max: StaticDim | None = None
    step: PositiveDim = 1

    def __contains__(self, size: int) -> bool:
        return self.min <= size and (self.max is None or size <= self.max) and size % self.step == 0

    def __and__(self, other: "Range") -> "Range":
        """The sizes in both ranges."""
        ends = [end for end in (self.max, other.max) if end is not None]
        least, step = max(self.min, other.min), math.lcm(self.step, other.step)
        return Range(min=least, max=min(ends, default=None), step=step)

    def __str__(self) -> str:
        """`1 to 64`, `5 or more`, `any size`, `a multiple of 32 from 64`."""
        if self.step > 1:
            least = f" from {self.min}" if self.min > self.step else ""
            most = "" if self.max is None else f"{' to' if least else ' up to'} {self.max}"
            return f"a multiple of {self.step}{least}{most}"
        if self.max is not None:
            return f"{self.min} to {self.max}"
        return f"{self.min} or more" if self.min else "any size"

    @property
    def is_empty(self) -> bool:
        """Whether no size is in it."""
        return self.max is not None and self.max < self.min

    def nearest(self, size: int) -> int:
        """The size of the range that is nearest to a size, of two multiples the larger one."""
        size = max(-(-size // self.step) * self.step, self.min)
        return size if self.max is None else min(size, self.max)


ANY_SIZE = Range()


def within_both(bounds: Mapping[str, Range], others: Mapping[str, Range]) -> dict[str, Range]:
    """The sizes of dimensions within both bounds."""
    return {**bounds, **{name: bounds.get(name, ANY_SIZE) & found for name, found in others.items()}}


Token = Annotated[int, Limit(ge=-(2**62), le=2**62)] | Annotated[str, Limit(min_length=1, max_length=MAX_NAME + 1)]
"""A number, a dimension as `$` and its name, or an operator on the two values before."""
OPERATORS = frozenset(["+", "*", "//", "min", "max"])
Expression = Annotated[tuple[Token, ...], Limit(min_length=1, max_length=MAX_TOKENS)]
"""A whole number in postfix notation; `//` rounds down."""


class Condition(Record):
    """A relation of two sizes that holds in each run that code can compute.

    `broadcast`: they are equal, or one of them is 1. `node` is the model's node that needs it, and `what` says of what
    `left` is the size.
    """

    left: Expression
    relation: Literal["equal", "at_least", "multiple", "broadcast"]
    right: Expression
    node: Annotated[str, Limit(max_length=MAX_NAME)]
    what: Annotated[str, Limit(max_length=MAX_NAME)]


class Variant(Record):
    """A way to run the model: devices, values, and partitions in run order.

    `inputs` and `outputs` index `values` in the model's order; a model output that is a constant or an input has an
    entry in `values` like any other. `constants` maps a value index (as decimal text, because JSON keys are texts) to a
    weight index. `plan` names the member that holds the plan as text; `summary` is one line, and `notes` are the
    compile's remarks on this variant (partitions that were not checked, nodes that moved to another device).
    `bounds` are the sizes that its code allows for named dimensions. `shapes_of` is the variant whose choice of devices
    it is for other shapes of inputs. `conditions` are those of the sizes of its inputs. `rooms` maps a value index
    (as decimal text) to the most bytes of a value with dynamic dimensions that code for another device than the CPU
    reads.
    """

    name: Name
    devices: tuple[Device, ...]
    values: tuple[TensorSpec, ...]
    inputs: tuple[Index, ...]
    outputs: tuple[Index, ...]
    constants: dict[str, Index] = {}
    partitions: tuple[Partition, ...]
    plan: MemberName
    summary: str
    notes: tuple[str, ...] = ()
    bounds: dict[DimName, Range] = {}
    shapes_of: Name | None = None
    conditions: Annotated[tuple[Condition, ...], Limit(max_length=65_536)] = ()
    rooms: dict[str, Size] = {}

    def __repr__(self) -> str:
        return f"<Variant '{self.name}': {self.summary}>"


class Golden(Record):
    """Seeded inputs and ONNX Runtime's outputs for them, as .npy members by tensor name, with tolerances.

    Integers may differ by `steps`. A tensor whose signal-to-noise ratio is at least `snr` dB is accepted as a whole.
    """

    seed: Index
    inputs: dict[str, MemberName]
    outputs: dict[str, MemberName]
    rtol: Annotated[float, Limit(ge=0)]
    atol: Annotated[float, Limit(ge=0)]
    steps: Index = 0
    snr: Annotated[float, Limit(ge=0)] | None = None


class Replacing(Record):
    """How a run is computed that replaces initializers which the variants have as constants (`ModelInfo.held`).

    `inputs` are these initializers. `variant` runs the model with them behind the
    model's own inputs. `defaults` are their values, by name: the number of a weight (of unsigned integers of the same
    size for a dtype that numpy lacks), or for texts a member.
    """

    inputs: Annotated[tuple[TensorSpec, ...], Limit(min_length=1)]
    defaults: dict[Name, Index | MemberName]
    variant: Variant


class Manifest(Record):
    """The whole manifest; `variants` in order of preference.

    `goldens` are golden vectors for further shapes of inputs. `faults` are environment variables that simulated
    failures while the bundle was compiled: it is for tests.
    """

    format: Literal["heterocc-bundle"] = FORMAT_NAME
    version: Version = Version()
    producer: Producer
    model: ModelInfo
    members: tuple[Member, ...]
    weights_member: MemberName = WEIGHTS_NAME
    weights: tuple[Weight, ...]
    variants: Annotated[tuple[Variant, ...], Limit(min_length=1)]
    golden: Golden | None = None
    goldens: Annotated[tuple[Golden, ...], Limit(max_length=64)] = ()
    faults: Annotated[tuple[FaultVariable, ...], Limit(max_length=16)] = ()
    replacing: Replacing | None = None

    def __repr__(self) -> str:
        return f"<Manifest of '{self.model.name}': variants {', '.join(variant.name for variant in self.variants)}>"

    def faults_warning(self) -> str | None:
        """The warning about a bundle that was compiled with simulated failures, in one sentence; None for others."""
        if not self.faults:
            return None
        return f"the bundle was compiled with simulated failures ({', '.join(self.faults)}): its results may be wrong"

    @property
    def choices(self) -> tuple[Variant, ...]:
        """One variant for each choice of devices, without those for further shapes."""
        return tuple(variant for variant in self.variants if variant.shapes_of is None)

    @property
    def all_variants(self) -> tuple[Variant, ...]:
        """The variants, and the one for runs that replace initializers."""
        return self.variants if self.replacing is None else (*self.variants, self.replacing.variant)

    def with_shapes(self, choice: Variant) -> tuple[Variant, ...]:
        """A variant, and those for further shapes of inputs on the same choice of devices."""
        return (choice, *(variant for variant in self.variants if variant.shapes_of == choice.name))

    @property
    def all_goldens(self) -> tuple[Golden, ...]:
        """The golden vectors for all shapes of inputs."""
        return self.goldens if self.golden is None else (self.golden, *self.goldens)

    def to_bytes(self) -> bytes:
        """The JSON of the member `manifest.json`. Fields of later versions are left out if they are empty."""
        data = self.model_dump(mode="json")
        _leave_out(data, "faults", "goldens", "replacing")
        _leave_out(data["model"], "classes", "defaults", "held", "compressed")
        replacing = data.get("replacing", {"inputs": []})
        variants = [*data["variants"], *([replacing["variant"]] if "variant" in replacing else [])]
        specs = [*data["model"]["inputs"], *data["model"]["outputs"], *replacing["inputs"]]
        for spec in (*specs, *(value for variant in variants for value in variant["values"])):
            if spec["elements"] is None:
                del spec["elements"]
        for variant in variants:
            for bounds in variant["bounds"].values():
                if bounds["step"] == 1:
                    del bounds["step"]
            _leave_out(variant, "bounds", "shapes_of", "conditions", "rooms")
            for part in variant["partitions"]:
                for layout in part["layouts"].values():
                    _leave_out(layout, "widens")
                _leave_out(part, "layouts", "sequences")
        return compact(data).encode("utf-8")


def _leave_out(data: dict[str, Any], *names: str) -> None:
    """Remove these fields if they are empty."""
    for name in names:
        if not data[name]:
            del data[name]


def manifest_schema() -> str:
    """JSON schema of the manifest, as `manifest.schema.json` holds it (UTF-8 text, ends with a newline)."""
    from heterocc.artifacts.schema import schema_of

    return json.dumps(schema_of(Manifest), indent=2, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(manifest_schema(), end="")
