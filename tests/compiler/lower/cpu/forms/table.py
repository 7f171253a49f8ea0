"""The table of forms, computed without writing code and without timing.

The compiler's own steps choose: kernels are imported as for a compile, and `generate` runs up to the place where it
would have the chosen writer write. What depends on the machine is left out: a core is a target by name, and choices
that a compile would time are the models', with the other candidates recorded beside them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
from onnx import helper
from tvm import tirx

from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.generate import generate
from heterocc.compiler.lower.cpu.generate.isa import Isa, has_pairs, isa_of
from heterocc.compiler.lower.cpu.rewrites.channels_last import keep_channels_last
from heterocc.compiler.lower.cpu.sizes import assuming, dims_of, has_sizes
from heterocc.compiler.lower.cpu.target import cpu_target
from heterocc.compiler.lower.pipeline import KernelModule, kernel_module
from heterocc.compiler.lower.relax.kernels import always_among, calls_run
from heterocc.compiler.lower.straight import arguments_of, bindings_of, is_kernel_call
from heterocc.passes.graph import Graph, Node, Value
from tests.compiler.lower.cpu.forms.describing import described
from tests.compiler.lower.cpu.forms.shapes import Shape
from tests.compiler.lower.lowered import job

X86, ARM = "x86_64-linux-gnu", "aarch64-linux-gnu"
CORES: Mapping[str, str] = {
    "x86-64-v3": X86,
    "znver3": X86,
    "znver4": X86,
    "znver5": X86,
    "icelake-server": X86,
    "sapphirerapids": X86,
    "neoverse-n1": ARM,
}
"""The cores of the table, in LLVM's names, with their triples."""

OTHERS = ("maps.", "rows.")
"""The starts of forms of kernels without products, such as those that quantise or turn an operand."""

Table = Mapping[str, str]
"""The chosen forms by the names of shapes."""


@dataclass(frozen=True)
class Core:
    """A core of the table: its instruction set, and whether it multiplies pairs of bfloat16."""

    isa: Isa
    pairs: bool


def core_of(name: str) -> Core:
    """A core by LLVM's name."""
    target = cpu_target(TargetDevice("CPU", "cpu", target={"mtriple": CORES[name], "mcpu": name}))
    return Core(isa_of(target), has_pairs(target))


@dataclass(frozen=True)
class _Kernel:
    function: tirx.PrimFunc
    weights: Collection[int]
    arrays: Callable[[int], list[np.ndarray]]


def table(shapes: Sequence[Shape], core: Core) -> dict[str, str]:
    """The forms that a core takes for shapes; none for shapes in bfloat16 if it does not multiply these."""
    kernels = _kernels(tuple(shapes))
    found = {}
    with _without_code() as seen:
        for shape in shapes:
            if core.pairs or not shape.bfloat:
                isa = dataclasses.replace(core.isa, bfloat=shape.bfloat, fast_math=shape.fast_math)
                forms = [form for kernel in kernels[shape.name] if (form := _form(kernel, isa, seen))]
                products = [form for form in forms if not form.startswith(OTHERS)]
                found[shape.name] = "; ".join(products or forms) or "loops"
    return found


def _form(kernel: _Kernel, isa: Isa, seen: list[str]) -> str:
    """The chosen form of a kernel; empty for one that no generator writes."""
    seen.clear()
    isa = dataclasses.replace(isa, weights_of=kernel.arrays)
    if has_sizes(kernel.function):
        with assuming(dims_of(kernel.function)):
            generate(kernel.function, kernel.weights, isa)
    else:
        generate(kernel.function, kernel.weights, isa)
    return " ".join(seen)


@contextmanager
def _without_code() -> Iterator[list[str]]:
    """The chosen forms, which are described and not written, in a list."""
    seen: list[str] = []

    def written(kernel: Any, _packed: object, body: Any, _dtype: str | None = None) -> tirx.PrimFunc:
        seen.append(described(body.__self__))
        return kernel.function

    with patch.object(emit, "written", written):
        yield seen


def kernels_of(shapes: Sequence[Shape]) -> Mapping[str, list[_Kernel]]:
    """The kernels of each shape, by its name."""
    return _kernels(tuple(shapes))


@cache
def _kernels(shapes: tuple[Shape, ...]) -> Mapping[str, list[_Kernel]]:
    """The kernels of each shape, by its name: those of fixed sizes from one model, the others from one each."""
    target = cpu_target(TargetDevice("CPU", "cpu", target={"mtriple": X86, "mcpu": "x86-64-v3"}))
    fixed = [shape for shape in shapes if not shape.is_dynamic]
    models = [(fixed, _fixed_model(fixed))] if fixed else []
    models += [([shape], import_model(_proto([shape]), keep_dims=True)) for shape in shapes if shape.is_dynamic]
    found: dict[str, list[_Kernel]] = {}
    for members, model in models:
        rewrite = keep_channels_last if members is fixed else None
        module = kernel_module(job(model), target, rewrite=rewrite)
        by_node = _by_node(module)
        for place, shape in enumerate(members):
            found[shape.name] = by_node[_name(place)]
    return found


def _name(place: int) -> str:
    return f"n{place}"


def _by_node(module: KernelModule) -> dict[str, list[_Kernel]]:
    """The kernels of each node of a model."""
    params = module.mod["main"].params
    weights = always_among(module, {p for p in params if p.name in module.arrays})
    functions = {gvar.name_hint: function for gvar, function in module.mod.functions_items()}
    calls = [b.value for b in bindings_of(module.mod["main"]) if is_kernel_call(b.value)]
    found: dict[str, list[_Kernel]] = {}
    for (symbol, info), call in zip(calls_run(module), calls, strict=True):
        arguments = arguments_of(call)

        def arrays(number: int, arguments: Sequence[Any] = arguments) -> list[np.ndarray]:
            return [module.arrays[arguments[number].name]]

        for node in info.nodes:
            found.setdefault(node, []).append(_Kernel(functions[symbol], weights[symbol], arrays))
    return found


def _proto(shapes: Sequence[Shape]) -> onnx.ModelProto:
    """A model of all shapes, without the data of weights that are all zeros."""
    nodes, ends, weights = [], [], []
    for place, shape in enumerate(shapes):
        name = _name(place)
        operands = [f"{name}x{n}" for n in range(len(shape.inputs))]
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(shape.dtype))
        ends += [
            helper.make_tensor_value_info(operand, kind, list(dims))
            for operand, dims in zip(operands, shape.inputs, strict=True)
        ]
        for number, array in enumerate(shape.arrays()):
            operands.append(f"{name}w{number}")
            weights.append(_tensor(operands[-1], array, whole=shape.is_dynamic))
        nodes.append(shape.node(name, operands))
    outputs = [helper.make_empty_tensor_value_info(node.name) for node in nodes]
    graph = helper.make_graph(nodes, "forms", ends, outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    inferred = onnx.shape_inference.infer_shapes(model)
    for output, known in zip(model.graph.output, inferred.graph.output, strict=True):
        output.CopyFrom(known)
    return model


def _tensor(name: str, array: np.ndarray, *, whole: bool) -> onnx.TensorProto:
    if whole or array.nbytes < 1024:
        return onnx.numpy_helper.from_array(np.ascontiguousarray(array), name)
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    tensor = onnx.TensorProto(name=name, data_type=kind, dims=array.shape)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="heterocc")
    return tensor


def _fixed_model(shapes: Sequence[Shape]) -> ImportedModel:
    """The model as the import gives it, with weights that take no memory."""
    proto = _proto(shapes)
    weights = {f"{_name(place)}w{n}": a for place, s in enumerate(shapes) for n, a in enumerate(s.arrays())}
    values = {name: Value(name, array.dtype.name, array.shape) for name, array in weights.items()}
    for info in (*proto.graph.input, *proto.graph.output):
        kind = info.type.tensor_type
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type).name
        values[info.name] = Value(info.name, dtype, tuple(d.dim_value for d in kind.shape.dim))
    nodes = tuple(
        Node(node.name, node.op_type, tuple(node.input), tuple(node.output), (node.name,)) for node in proto.graph.node
    )
    inputs, outputs = (tuple(i.name for i in some) for some in (proto.graph.input, proto.graph.output))
    graph = Graph("forms", nodes, values, inputs, outputs, frozenset(weights))
    return ImportedModel("forms", lambda: "0" * 64, graph, proto, weights, {}, {"": 17})
