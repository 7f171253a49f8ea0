"""One function for kernels that differ only in the sizes of their arguments."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
import tvm_ffi
from onnx import NodeProto, helper
from tvm import tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.lower.backend import PartitionJob
from heterocc.compiler.lower.codegen.kernel_objects import KernelObjects
from heterocc.compiler.lower.cpu.common_code import with_common_code
from heterocc.compiler.lower.cpu.generate.emit import bound
from heterocc.compiler.lower.cpu.generate.isa import isa_of
from heterocc.compiler.lower.cpu.generate.places import shape_of
from heterocc.compiler.lower.cpu.lowering import CpuLowering
from heterocc.compiler.lower.cpu.schedule import kernel_code, schedule_kernels
from heterocc.compiler.lower.cpu.target import cpu_target
from heterocc.compiler.lower.pipeline import kernel_module
from tests.compiler.lower.lowered import CPU, assert_same, execute, job, model, run_ort
from tests.symbolic_models import dynamic_model

node = helper.make_node
RNG = np.random.default_rng(29)


def floats(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def kernel(channels: int, columns: int, *, rows: int | None = None, lanes: int = 4, divisor: int = 1) -> tirx.PrimFunc:
    """Twice a map of channels, in vectors; only the first `rows` of them, and each vector `divisor` times."""
    with IRBuilder() as builder, build.prim_func(s_tir=True):
        build.func_name("kernel")
        x = build.arg("x", build.Buffer((channels, columns), "float32"))
        y = build.arg("y", build.Buffer((channels, columns), "float32"))
        flat_x = build.decl_buffer((channels * columns,), "float32", data=tirx.buffer_data(x))
        flat_y = build.decl_buffer((channels * columns,), "float32", data=tirx.buffer_data(y))
        count = (rows or channels) * columns // lanes * divisor
        with build.serial(0, count) as v, build.vectorized(0, lanes) as lane:
            place = tirx.floordiv(v, tirx.const(divisor, "int32")) * lanes + lane
            build.buffer_store(flat_y, flat_x[place] * 2.0, [place])
    return builder.get()


def run(function: tirx.PrimFunc, *shape: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = floats(*shape), np.zeros(shape, np.float32)
    made = tvm.runtime.tensor(x), tvm.runtime.tensor(y)
    tvm.compile(function.with_attr("global_symbol", "main"), "llvm")["main"](*made)
    return made[1].numpy(), x


def test_kernels_that_differ_in_a_dimension_are_one_function_of_it() -> None:
    sizes = (8, 12, 40)
    common = with_common_code([kernel(n, 16) for n in sizes])
    assert all(f.same_as(common[0]) for f in common)
    for n in (*sizes, 1, 1000):
        found, x = run(common[0], n, 16)
        np.testing.assert_array_equal(found, x * 2)


def test_the_divisor_of_an_index_that_is_computed_once_is_a_number_of_the_family() -> None:
    """As the number of channels, by which the number of a plane is divided before the loops over its pixels."""

    def planes(channels: int) -> tirx.PrimFunc:
        with IRBuilder() as builder, build.prim_func(s_tir=True):
            build.func_name("kernel")
            x = build.arg("x", build.Buffer((3, channels, 4), "float32"))
            y = build.arg("y", build.Buffer((3, channels, 4), "float32"))
            with build.serial(tirx.const(0, "int64"), tirx.const(3 * channels, "int64")) as plane:
                item = bound(tirx.floordiv(plane, tirx.const(channels, "int64")))
                channel = bound(tirx.floormod(plane, tirx.const(channels, "int64")))
                with build.serial(0, 4) as n:
                    build.buffer_store(y, x[item, channel, n] * 2.0, [item, channel, n])
        return builder.get()

    common = with_common_code([planes(n) for n in (8, 12, 40)])
    assert all(f.same_as(common[0]) for f in common)
    found, x = run(common[0], 3, 7, 4)
    np.testing.assert_array_equal(found, x * 2)


@pytest.mark.parametrize(
    "kernels",
    [
        pytest.param([kernel(8, 16), kernel(8, 32)], id="rows of other lengths"),
        pytest.param([kernel(8, 16), kernel(12, 16, lanes=8)], id="other vectors"),
        pytest.param([kernel(8, 16), kernel(12, 16).with_attr("other", 1)], id="other attributes"),
        pytest.param([kernel(8, 16, divisor=8), kernel(12, 16, divisor=12)], id="other divisors"),
        pytest.param([kernel(8, 16), kernel(8, 16, rows=4)], id="a number without a dimension that differs"),
    ],
)
def test_other_kernels_stay_apart(kernels: list[tirx.PrimFunc]) -> None:
    assert with_common_code(kernels) == kernels


def test_a_number_that_follows_from_no_dimension_divides_a_family() -> None:
    sizes = ((8, 4), (40, 8), (12, 4), (24, 8))
    found = with_common_code([kernel(n, 16, rows=rows) for n, rows in sizes])
    assert found[0].same_as(found[2]) and found[1].same_as(found[3]) and not found[0].same_as(found[1])
    for function, (n, rows) in zip(found, sizes, strict=True):
        made, x = run(function, n, 16)
        x[rows:] = 0
        np.testing.assert_array_equal(made, x * 2)


def test_the_order_of_kernels_does_not_change_their_common_code() -> None:
    kernels = [kernel(n, 16) for n in (8, 12, 24)]
    found = with_common_code(kernels)[0], with_common_code(kernels[::-1])[0]
    assert tvm_ffi.structural_equal(*found)


def common(nodes: list[NodeProto], inputs: dict[str, tuple[str, tuple[str | int, ...]]], **weights: np.ndarray) -> int:
    """The number of functions of a model of any size, whose last values are its outputs."""
    made = dynamic_model(nodes, inputs, [n.output[0] for n in nodes], weights)
    imported, target = import_model(made, keep_dims=True), cpu_target(CPU)
    graph = imported.graph
    parts = PartitionJob("p0", imported, CPU, tuple(n.name for n in graph.nodes), graph.inputs, graph.outputs)
    module = kernel_module(parts, target)
    kernels, constant = [module.mod[kernel.symbol] for kernel in module.kernels], (1,) if weights else ()
    codes = with_common_code([kernel_code(each, constant, isa_of(target))[0] for each in kernels])
    return sum(not any(code.same_as(known) for known in codes[:n]) for n, code in enumerate(codes))


def test_means_of_planes_of_any_size_have_one_function_whatever_their_channels() -> None:
    """No index is divided by the number of channels."""
    nodes = [node("GlobalAveragePool", [name], [f"{name}_mean"]) for name in "xz"]
    maps = {name: ("float32", ("n", channels, "h", "w")) for name, channels in (("x", 40), ("z", 24))}
    assert common(nodes, maps) == 1


def test_depthwise_convolutions_of_any_size_have_one_function_whatever_their_channels() -> None:
    """From which size on planes are prefetched is compared with their bytes, and not with a quotient of these."""
    several = {"x": 40, "y": 88, "z": 48}
    nodes = [node("Conv", [n, f"w{n}"], [f"{n}_c"], pads=[2] * 4, group=c) for n, c in several.items()]
    maps = {name: ("float32", ("n", channels, "h", "w")) for name, channels in several.items()}
    assert common(nodes, maps, **{f"w{n}": floats(c, 1, 5, 5) for n, c in several.items()}) == 1


def test_pointwise_convolutions_of_any_size_have_one_function_whatever_their_channels() -> None:
    several = {"x": (64, 16), "y": (104, 32), "z": (200, 40)}
    nodes = [node("Conv", [n, f"w{n}"], [f"{n}_c"]) for n in several]
    maps = {name: ("float32", ("n", channels, "h", 1000)) for name, (channels, _) in several.items()}
    assert common(nodes, maps, **{f"w{n}": floats(out, into, 1, 1) for n, (into, out) in several.items()}) == 1


def test_maps_of_any_size_by_a_number_of_each_channel_have_one_function_whatever_their_channels() -> None:
    """A plane's number is not divided by that of channels: it is the place of its number."""
    several = {"x": 40, "y": 88, "z": 48}
    nodes = [node("Mul", [n, f"s{n}"], [f"{n}_m"]) for n in several]
    maps = {name: ("float32", ("n", channels, "h", "w")) for name, channels in several.items()}
    scales = {f"s{name}": ("float32", ("n", channels, 1, 1)) for name, channels in several.items()}
    assert common(nodes, {**maps, **scales}) == 1


def dense(layers: int, grown: int, first: int) -> tuple[list[NodeProto], dict[str, np.ndarray], dict[str, np.ndarray]]:
    """A dense block of a map of `first` channels: each layer reads what all before it computed."""
    nodes, weights, last = [], {}, "x"
    for n in range(layers):
        channels = first + grown * n
        weights[f"s{n}"] = floats(1, channels, 1, 1)
        weights[f"w{n}"] = floats(24, channels, 1, 1) / 4
        weights[f"v{n}"] = floats(grown, 24, 3, 3) / 12
        nodes += [
            node("Mul", [last, f"s{n}"], [f"m{n}"], name=f"m{n}"),
            node("Relu", [f"m{n}"], [f"r{n}"], name=f"r{n}"),
            node("Conv", [f"r{n}", f"w{n}"], [f"a{n}"], name=f"a{n}"),
            node("Conv", [f"a{n}", f"v{n}"], [f"c{n}"], pads=[1] * 4, name=f"c{n}"),
            node("Concat", [last, f"c{n}"], [f"d{n}"], axis=1, name=f"d{n}"),
        ]
        last = f"d{n}"
    return nodes, {"x": floats(1, first, 18, 22)}, weights


def compiled(monkeypatch: pytest.MonkeyPatch, layers: int, first: int = 16) -> int:
    """The number of functions that are compiled for a dense block, whose results are as ONNX Runtime's."""
    nodes, feeds, weights = dense(layers, 8, first)
    made = model(nodes, feeds, [f"d{layers - 1}"], weights)
    work, names = job(made), set()
    begin = KernelObjects.begin

    def begun(objects: KernelObjects, function: tirx.PrimFunc) -> str:
        names.add(name := begin(objects, function))
        return name

    with monkeypatch.context() as patch:
        patch.setattr(KernelObjects, "begin", begun)
        lowered = CpuLowering().lower(work)
    assert_same(execute(work, lowered, feeds), run_ort(made, feeds))
    return len(names)


def test_dense_blocks_of_any_depth_have_as_many_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiled(monkeypatch, 7) == compiled(monkeypatch, 4)


def test_a_concatenation_that_is_not_run_is_not_written() -> None:
    nodes, feeds, weights = dense(3, 8, 16)
    target = cpu_target(CPU)
    begun: list[tirx.PrimFunc] = []
    module = kernel_module(job(model(nodes, feeds, ["d2"], weights)), target)
    schedule_kernels(module, target, on_kernel=begun.append)
    every = {gvar.name_hint for gvar in module.mod.get_global_vars()}
    assert {"d0", "d1", "d2"} <= every  # of an input, of parts, to an output
    added = [f for f in begun if shape_of(f.params[1]) == (1, 8, 18, 22)]
    assert len(added) == 2 and len(begun) == len(every - {"main"}) - 1
