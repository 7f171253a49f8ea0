"""A summary of an ONNX file, without running or importing it, for `heterocc inspect model.onnx`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import helper

from heterocc.artifacts.errors import InvalidGraphError
from heterocc.compiler.importer.draft.draft import nodes_of, value_of
from heterocc.compiler.importer.reading.parse import read_proto
from heterocc.compiler.importer.reading.source import as_source
from heterocc.compiler.importer.shapes.named import is_name, quoted
from heterocc.passes.show.printer import human_bytes

Dim = int | str | None
"""A dimension: its size, its name, or None for one that has neither."""


@dataclass(frozen=True, slots=True)
class End:
    """An input or output of the model; `dims` is None if the rank is unknown."""

    name: str
    dtype: str
    dims: tuple[Dim, ...] | None

    @property
    def is_dynamic(self) -> bool:
        """Whether it is a tensor with a dynamic dimension."""
        tensor = "(" not in self.dtype
        return tensor and (self.dims is None or any(not isinstance(d, int) for d in self.dims))

    def text(self) -> str:
        """`x: float32[batch, 3, ?]`."""
        shape = "[...]" if self.dims is None else f"[{', '.join('?' if d is None else str(d) for d in self.dims)}]"
        return f"{self.name}: {self.dtype}{'' if '(' in self.dtype else shape}"

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its dimensions."""
        return tuple(d for d in self.dims or () if isinstance(d, str) and is_name(d)) if self.is_dynamic else ()

    @property
    def fixed_by_names(self) -> bool:
        """Whether sizes of its named dimensions fix its shape."""
        return self.dims is not None and all(isinstance(d, int) or d in self.names for d in self.dims)

    def option(self) -> str:
        """The `--shape` option that fixes it, with names in place of the sizes to choose."""
        dims = ["DIMS"] if self.dims is None else [str(d) if isinstance(d, int) else _word(d) for d in self.dims]
        return f"--shape '{self.name}={','.join(dims)}'"


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """The contents of an ONNX file.

    `operators` counts nodes by type, including those in bodies and functions. `weight_bytes` is the size of all
    initializers, `external` are the names of the files of external ones.
    """

    name: str
    producer: str
    file_bytes: int
    ir_version: int
    opsets: dict[str, int]
    inputs: tuple[End, ...]
    outputs: tuple[End, ...]
    operators: dict[str, int]
    functions: int
    weights: int
    weight_bytes: int
    external: tuple[str, ...]

    @property
    def shape_options(self) -> tuple[str, ...]:
        """The `--shape` options that a compile needs."""
        return tuple(end.option() for end in self.inputs if end.is_dynamic)

    @property
    def dimensions(self) -> dict[str, tuple[str, ...]]:
        """The named dimensions of the inputs, each with the inputs that have it."""
        names = dict.fromkeys(name for end in self.inputs for name in end.names)
        return {name: tuple(end.name for end in self.inputs if name in end.names) for name in names}

    def to_json(self) -> dict[str, object]:
        """The form of `heterocc inspect --json`; a dimension is a number, a name, or null."""

        def ends(found: tuple[End, ...]) -> list[dict[str, object]]:
            return [{"name": e.name, "dtype": e.dtype, "dims": None if e.dims is None else list(e.dims)} for e in found]

        return {
            "format": "onnx",
            "name": self.name,
            "producer": self.producer,
            "bytes": self.file_bytes,
            "ir_version": self.ir_version,
            "opsets": self.opsets,
            "inputs": ends(self.inputs),
            "outputs": ends(self.outputs),
            "nodes": sum(self.operators.values()),
            "operators": self.operators,
            "functions": self.functions,
            "weights": {"count": self.weights, "bytes": self.weight_bytes, "external": list(self.external)},
            "dynamic": [e.name for e in self.inputs if e.is_dynamic],
            "dimensions": {name: list(found) for name, found in self.dimensions.items()},
            "shape_options": list(self.shape_options),
        }

    def lines(self) -> Iterator[str]:
        """The output of the command."""
        yield f"model     {self.name or '(no name)'}, {human_bytes(self.file_bytes)}"
        if self.producer:
            yield f"producer  {self.producer}"
        sets = ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in self.opsets.items())
        yield f"opset     {sets} (IR version {self.ir_version})"
        for label, found in (("input", self.inputs), ("output", self.outputs)):
            for end in found:
                yield f"{label:<9} {end.text()}"
        outside = f", external data in {', '.join(self.external)}" if self.external else ""
        yield f"weights   {self.weights} tensors, {human_bytes(self.weight_bytes)}{outside}"
        counts = ", ".join(f"{op_type} {number}" for op_type, number in self.operators.items())
        inside = f", in {self.functions} functions too" if self.functions else ""
        yield f"nodes     {sum(self.operators.values())}{inside}: {counts}"
        if self.shape_options:
            yield ""
            yield "dynamic dimensions; devices without CPU or ORT beside them need numbers for them:"
            yield f"  {' '.join(self._options())}"
            for name, owners in self.dimensions.items():
                yield f"  {name} is a dimension of {', '.join(owners)}"

    def _options(self) -> Iterator[str]:
        """The fewest options that fix all inputs: `--dim` for names, `--shape` for inputs that need more."""
        others = [end for end in self.inputs if end.is_dynamic and not end.fixed_by_names]
        fixed = {name for end in others for name in end.names}
        yield from (f"--dim {quoted(name)}=SIZE" for name in self.dimensions if name not in fixed)
        yield from (end.option() for end in others)


def summarise(path: Path) -> ModelSummary:
    """Summarise an ONNX file; only that file is opened, and only read.

    Raises FileMissingError, NotOnnxError or InvalidGraphError.
    """
    model, size = read_proto(as_source(path))
    try:
        return _summary(model, size)
    except UnicodeError as error:
        raise InvalidGraphError("a name in the model is not UTF-8", where=str(path)) from error


def _text(text: str | bytes) -> str:
    """A text of the model. Raises UnicodeError if it is not UTF-8; some releases of protobuf return it as bytes."""
    return text if isinstance(text, str) else text.decode("utf-8")


def _summary(model: onnx.ModelProto, size: int) -> ModelSummary:
    graph = model.graph
    tensors = [*graph.initializer, *(s.values for s in graph.sparse_initializer)]
    constants = {t.name for t in tensors}
    operators: Counter[str] = Counter()
    for owner in (graph, *model.functions):
        for node in nodes_of(owner.node):
            domain, op_type = _text(node.domain), _text(node.op_type)
            operators[f"{domain}::{op_type}" if domain not in ("", "ai.onnx") else op_type] += 1
    locations = {_text(e.value) for t in tensors for e in t.external_data if e.key == "location"}
    return ModelSummary(
        name=_text(graph.name),
        producer=f"{_text(model.producer_name)} {_text(model.producer_version)}".strip(),
        file_bytes=size,
        ir_version=model.ir_version,
        opsets={_text(o.domain): o.version for o in model.opset_import},
        inputs=tuple(_end(i) for i in graph.input if i.name not in constants),
        outputs=tuple(_end(o) for o in graph.output),
        operators=dict(sorted(operators.items(), key=lambda item: (-item[1], item[0]))),
        functions=len(model.functions),
        weights=len(tensors),
        weight_bytes=sum(_nbytes(t) for t in tensors),
        external=tuple(sorted(locations)),
    )


def _end(info: onnx.ValueInfoProto) -> End:
    name, kind = _text(info.name), info.type.WhichOneof("value")
    if kind != "tensor_type":
        return End(name, "undefined()" if kind is None else value_of(info).dtype, None)
    tensor = info.type.tensor_type
    dims: tuple[Dim, ...] | None = None
    if tensor.HasField("shape"):
        dims = tuple(_dim(dim) for dim in tensor.shape.dim)
    return End(name, _dtype(tensor.elem_type), dims)


def _dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    if dim.HasField("dim_value"):
        return dim.dim_value if dim.dim_value >= 0 else None
    return _text(dim.dim_param) or None


def _dtype(elem_type: int) -> str:
    if elem_type == onnx.TensorProto.STRING:
        return "string"
    try:
        return str(helper.tensor_dtype_to_np_dtype(elem_type).name)
    except (KeyError, ValueError, TypeError):
        return f"type {elem_type}"


def _nbytes(tensor: onnx.TensorProto) -> int:
    if tensor.data_type == onnx.TensorProto.STRING:
        return sum(len(text) for text in tensor.string_data)
    if any(d < 0 for d in tensor.dims):
        return 0
    try:
        size = helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize
    except (KeyError, ValueError, TypeError):
        return 0
    return int(math.prod(tensor.dims) * size)


def _word(name: str | None) -> str:
    return "?" if name is None else name
