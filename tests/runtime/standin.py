"""Small bundles for runtime tests, compiled by TVM without our own compiler: partitions of elementwise kernels."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from heterocc.artifacts.manifest import (
    Device,
    Golden,
    Kernel,
    ModelInfo,
    Partition,
    Producer,
    Range,
    TensorSpec,
    Variant,
)
from heterocc.artifacts.writer import BundleWriter

CPU = Device(name="CPU", backend="cpu")
ORT = Device(name="ORT", backend="ort")
OPENCL = Device(name="OPENCL", backend="opencl")
VULKAN = Device(name="VULKAN", backend="vulkan")
TVM_VERSION = "0.27.0"


@dataclass(frozen=True)
class Op:
    """A kernel: `outputs` computed elementwise from `inputs` (names of values or params) by a named rule."""

    symbol: str
    rule: str
    inputs: tuple[str, ...]
    output: str


@dataclass(frozen=True)
class Part:
    """A partition of a stand-in: its values by name, kernels in order."""

    device: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    ops: tuple[Op, ...] = ()
    params: tuple[str, ...] = ()
    onnx: bytes | None = None
    code: bytes | None = None
    nodes: tuple[str, ...] = ()


@dataclass
class Model:
    """Everything of a stand-in bundle; `values` maps names to (dtype, shape).

    `shapes_of` is the name of the variant that it extends by other shapes.
    """

    values: dict[str, tuple[str, tuple[int | str | None, ...] | None]]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parts: tuple[Part, ...]
    weights: Mapping[str, np.ndarray] = field(default_factory=dict)
    constants: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[Device, ...] = (CPU,)
    bounds: Mapping[str, Range] = field(default_factory=dict)
    shapes_of: str | None = None


def _sleeping(microseconds: int) -> Callable[[Any], Any]:
    """The operand, after a time in which its thread sleeps: a device that works without using a core."""

    def rule(a: Any) -> Any:
        from tvm import tirx

        return a + tirx.call_extern("int32", "usleep", microseconds).astype("float32")

    return rule


def _calling(name: str) -> Callable[[Any], Any]:
    """The operand, after a call of a function that is registered by this name and returns 0."""

    def rule(a: Any) -> Any:
        from tvm import tirx

        return a + tirx.call_packed(name).astype("float32")

    return rule


RULES: dict[str, Callable[..., Any]] = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "copy": lambda a: a,
    "and": lambda a, b: a & b,
    "sleep 2 ms": _sleeping(2_000),
    "sleep 5 ms": _sleeping(5_000),
    "sleep 20 ms": _sleeping(20_000),
}


def write_bundle(path: Path, *models: Model, link: bool = True, golden: Mapping[str, np.ndarray] | None = None) -> Path:
    """Write a bundle whose variants are `models`; all must have the same inputs and outputs.

    `golden` are the arrays of golden vectors: the model's inputs and outputs. In the record of the model, dimensions
    that differ are named `n` (the first of a value) and `m` (the second).
    """
    with BundleWriter(path, durable=False) as writer:
        variants = []
        for number, model in enumerate(models):
            index = {name: i for i, name in enumerate(model.values)}
            stored = {name: writer.add_weight(array) for name, array in model.weights.items()}
            parts = []
            for place, part in enumerate(model.parts):
                code = part.onnx or part.code or compile_part(model, part)
                suffix = "onnx" if part.onnx is not None else "so"
                member = writer.add_member(f"code/{hashlib.sha256(code).hexdigest()[:16]}.{suffix}", code)
                nodes = part.nodes or tuple(f"node_{op.symbol}" for op in part.ops) or (f"n{place}",)
                parts.append(
                    Partition(
                        name=f"p{place}",
                        device=part.device,
                        kind="tvm" if part.onnx is None else "onnx",
                        code=member,
                        inputs=tuple(index[n] for n in part.inputs),
                        outputs=tuple(index[n] for n in part.outputs),
                        params=tuple(stored[n] for n in part.params),
                        param_names=part.params,
                        nodes=nodes,
                        kernels=tuple(
                            Kernel(
                                symbol=op.symbol,
                                nodes=(f"node_{op.symbol}",),
                                op_types=(op.rule.capitalize(),),
                                outputs=(op.output,),
                            )
                            for op in part.ops
                        ),
                    )
                )
            variants.append(
                Variant(
                    name=",".join(d.name for d in model.devices) + ("" if number == 0 else f"#{number}"),
                    devices=model.devices,
                    values=tuple(_spec(n, model) for n in model.values),
                    inputs=tuple(index[n] for n in model.inputs),
                    outputs=tuple(index[n] for n in model.outputs),
                    constants={str(index[v]): stored[w] for v, w in model.constants.items()},
                    partitions=tuple(parts),
                    plan=writer.add_member(f"plan-{number}.txt", "a stand-in\n"),
                    summary="a stand-in",
                    bounds=dict(model.bounds),
                    shapes_of=model.shapes_of,
                )
            )
        first = models[0]
        writer.finish(
            producer=Producer(heterocc="0.1.0", tvm=TVM_VERSION),
            model=ModelInfo(
                name="standin.onnx",
                sha256="0" * 64,
                opsets={"": 17},
                inputs=tuple(_common([_spec(m.inputs[i], m) for m in models]) for i in range(len(first.inputs))),
                outputs=tuple(_common([_spec(m.outputs[i], m) for m in models]) for i in range(len(first.outputs))),
            ),
            variants=tuple(variants),
            golden=golden and _golden(writer, first, golden),
        )
    return path


def _golden(writer: BundleWriter, model: Model, arrays: Mapping[str, np.ndarray]) -> Golden:
    members = {name: writer.add_array(f"golden/{name}.npy", array) for name, array in arrays.items()}
    return Golden(
        seed=0,
        inputs={name: members[name] for name in model.inputs},
        outputs={name: members[name] for name in model.outputs},
        rtol=1e-4,
        atol=1e-4,
    )


def _spec(name: str, model: Model) -> TensorSpec:
    dtype, shape = model.values[name]
    return TensorSpec(name=name, dtype=dtype, shape=shape)


def _common(specs: Sequence[TensorSpec]) -> TensorSpec:
    shapes = [spec.shape for spec in specs if spec.shape is not None]
    dims = tuple(d[0] if len(set(d)) == 1 else "nm"[i] for i, d in enumerate(zip(*shapes, strict=True)))
    return specs[0].model_copy(update={"shape": dims if len(shapes) == len(specs) else None})


def compile_part(model: Model, part: Part) -> bytes:
    """The shared object of a partition: `main(*inputs, *outputs, params)`; if dynamic, `main(*inputs, params)`."""
    shapes = [model.values[n][1] for n in (*part.inputs, *part.outputs)]
    if any(isinstance(d, str) for shape in shapes for d in shape or ()):
        return _compile_dynamic(model, part)
    backend = model.devices[part.device].backend
    kinds = {n: (v[0], tuple(d if isinstance(d, int) else 0 for d in v[1] or ())) for n, v in model.values.items()}
    kinds.update({n: (w.dtype.name, w.shape) for n, w in model.weights.items()})
    # Code knows values by place, so that partitions that differ in names only are compiled once.
    inner = (op.output for op in part.ops)
    place = {n: f"t{i}" for i, n in enumerate(dict.fromkeys((*part.inputs, *part.outputs, *part.params, *inner)))}
    return _compile(
        backend,
        tuple(place[n] for n in (*part.inputs, *part.outputs)),
        tuple(place[n] for n in part.params),
        tuple((p, *kinds[n]) for n, p in place.items()),
        tuple(replace(op, inputs=tuple(place[n] for n in op.inputs), output=place[op.output]) for op in part.ops),
    )


def _compile_dynamic(model: Model, part: Part) -> bytes:
    """Code for named dimensions, which returns a tuple of new tensors."""
    import tvm
    from tvm import relax, tirx

    sizes: dict[str, Any] = {}

    def typed(name: str, dtype: str, shape: Sequence[Any]) -> Any:
        dims = [d if isinstance(d, int) else sizes.setdefault(d, tirx.Var(d, "int64")) for d in shape]
        return relax.Var(name, relax.TensorType(dims, dtype))

    weights = [typed(n, model.weights[n].dtype.name, model.weights[n].shape) for n in part.params]
    known = {n: typed(n, model.values[n][0], model.values[n][1] or ()) for n in part.inputs}
    packed = relax.Var("params", relax.TupleType([w.ty for w in weights]))
    rules = {
        "add": relax.op.add,
        "mul": relax.op.multiply,
        "copy": relax.op.negative,
        "softmax of columns": lambda a: relax.op.nn.softmax(a, 0),
    }
    builder = relax.BlockBuilder()
    with builder.function("main", [*known.values(), packed]):
        for number, name in enumerate(part.params):
            known[name] = builder.emit(relax.TupleGetItem(packed, number))
        for op in part.ops:
            known[op.output] = builder.emit(rules[op.rule](*(known[n] for n in op.inputs)))
        builder.emit_func_output(relax.Tuple([known[n] for n in part.outputs]))
    executable = tvm.compile(builder.get(), tvm.target.Target("llvm"))
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "code.so")
        executable.export_library(str(file))
        return file.read_bytes()


@cache
def _compile(
    backend: str,
    arguments: tuple[str, ...],
    params: tuple[str, ...],
    kinds: tuple[tuple[str, str, tuple[int, ...]], ...],
    ops: tuple[Op, ...],
) -> bytes:
    import tvm
    from tvm import relax, te
    from tvm.s_tir import dlight

    target = tvm.target.Target("llvm") if backend == "cpu" else tvm.target.Target({"kind": backend, "host": "llvm"})
    types = {name: relax.TensorType(shape, dtype) for name, dtype, shape in kinds}
    variables = {name: relax.Var(name, types[name]) for name in arguments}
    packed = relax.Var("params", relax.TupleType([types[n] for n in params]))
    module = tvm.IRModule()
    bindings = []
    for number, name in enumerate(params):
        variables[name] = relax.Var(name, types[name])
        bindings.append(relax.VarBinding(variables[name], relax.TupleGetItem(packed, number)))
    shapes = {name: (dtype, shape) for name, dtype, shape in kinds}
    for op in ops:
        if op.output not in variables:
            dtype, shape = shapes[op.output]
            variables[op.output] = relax.Var(op.output, types[op.output])
            bindings.append(
                relax.VarBinding(variables[op.output], relax.op.builtin.alloc_tensor(relax.ShapeExpr(shape), dtype, 0))
            )
        operands = [te.placeholder(shapes[n][1], shapes[n][0], name=f"x{i}") for i, n in enumerate(op.inputs)]
        shape = shapes[op.output][1]
        body = _elementwise(te, shape, operands, RULES[op.rule])
        function = te.create_prim_func([*operands, body]).with_attr("global_symbol", op.symbol)
        symbol = tvm.ir.GlobalVar(op.symbol)
        relax.expr._update_type(symbol, relax.FuncType.opaque_func(ret=relax.TupleType([])))
        module[symbol] = function
        call = relax.Call(symbol, [variables[n] for n in (*op.inputs, op.output)])
        bindings.append(relax.VarBinding(relax.Var("_", relax.TupleType([])), call))
    result = relax.Var("nothing", relax.TupleType([]))
    bindings.append(relax.VarBinding(result, relax.Tuple([])))
    main = relax.Function(
        [*(variables[n] for n in arguments), packed],
        relax.SeqExpr([relax.BindingBlock(bindings)], result),
        relax.TupleType([]),
        is_pure=False,
    ).with_attr("global_symbol", "main")
    module["main"] = main
    if backend != "cpu":
        with target:
            module = dlight.ApplyDefaultSchedule(dlight.gpu.Fallback())(module)
    passes = relax.transform
    pipeline = tvm.transform.Sequential(
        [
            passes.ToNonDataflow(),
            passes.RemovePurityChecking(),
            passes.CallTIRRewrite(),
            passes.StaticPlanBlockMemory(),
            passes.LowerAllocTensor(),
            passes.KillAfterLastUse(),
            passes.LowerRuntimeBuiltin(),
            passes.ComputePrimValue(),
            passes.VMShapeLower(),
            passes.AttachGlobalSymbol(),
        ]
    )
    with _code_generator(backend):
        executable = tvm.compile(module, target, relax_pipeline=pipeline)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "code.so")
        executable.export_library(str(file))
        return file.read_bytes()


def _code_generator(backend: str) -> AbstractContextManager[Any]:
    """The function that TVM needs to generate code for a back end; TVM has none for Vulkan."""
    if backend != "vulkan":
        return nullcontext()
    from heterocc.compiler.lower.vulkan.codegen import generating
    from heterocc.compiler.lower.vulkan.target import limits_from

    return generating(limits_from({"max_num_threads": 256, "max_block_size_x": 256}, frozenset(["float32", "int32"])))


def _elementwise(te: Any, shape: tuple[int, ...], operands: list[Any], rule: Callable[..., Any]) -> Any:
    return te.compute(shape, lambda *index: rule(*(t(*index) for t in operands)), name="y")


def chain(length: int, shape: Sequence[int] = (16,), device: str = "c", dtype: str = "float32") -> Model:
    """x -> +w -> +w …, one partition per node; the letters of `device` by turns give each one's device: c, g, v."""
    names = ["x", *(f"v{i}" for i in range(length))]
    used = sorted(set(device))
    devices = tuple({"c": CPU, "g": OPENCL, "v": VULKAN}[d] for d in used)
    parts = tuple(
        Part(
            device=used.index(device[i % len(device)]),
            inputs=(names[i],),
            outputs=(names[i + 1],),
            ops=(Op("add_w", "add", (names[i], "w"), names[i + 1]),),
            params=("w",),
        )
        for i in range(length)
    )
    return Model(
        values={n: (dtype, tuple(shape)) for n in names},
        inputs=("x",),
        outputs=(names[-1],),
        parts=parts,
        weights={"w": np.ones(tuple(shape), dtype)},
        devices=devices,
    )


def stages(functions: Sequence[Callable[[], object]]) -> Model:
    """x -> x, through one partition for each function, which its kernel calls, on a device of its own."""
    import tvm_ffi

    letters = ["x", *(f"v{i}" for i in range(len(functions) - 1)), "y"]
    parts = []
    for number, function in enumerate(functions):
        name = f"standin.stage{number}"

        def call(function: Callable[[], object] = function) -> int:
            function()
            return 0

        tvm_ffi.register_global_func(name, call, override=True)
        RULES[f"call {name}"] = _calling(name)
        op = Op("stage", f"call {name}", (letters[number],), letters[number + 1])
        parts.append(Part(device=number, inputs=op.inputs, outputs=(op.output,), ops=(op,)))
    return Model(
        values=dict.fromkeys(letters, ("float32", (1,))),
        inputs=("x",),
        outputs=("y",),
        parts=tuple(parts),
        devices=tuple(Device(name=f"STAGE{i}", backend="cpu") for i in range(len(functions))),
    )


def sleeping(milliseconds: int, name: str = "CPU") -> Model:
    """x -> x, by a kernel that sleeps, on a device of this name."""
    part = Part(device=0, inputs=("x",), outputs=("y",), ops=(Op("nap", f"sleep {milliseconds} ms", ("x",), "y"),))
    return Model(
        values=dict.fromkeys("xy", ("float32", (1,))),
        inputs=("x",),
        outputs=("y",),
        parts=(part,),
        devices=(Device(name=name, backend="cpu"),),
    )
