"""The form of the code of kernels of dynamic sizes: in vectors, and without further code for some of the sizes."""

from __future__ import annotations

import re
from collections.abc import Collection

import numpy as np
import onnx
import pytest
import tvm_ffi
from onnx import helper
from tvm import sym, te, tirx
from tvm.tirx import PrimFunc

from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.lower.backend import PartitionJob
from heterocc.compiler.lower.cpu.dynamic import guarded
from heterocc.compiler.lower.cpu.dynamic.guarded import sized_kernel
from heterocc.compiler.lower.cpu.dynamic.own_sizes import with_own_sizes
from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.candidates import Done, Packing
from heterocc.compiler.lower.cpu.generate.convolution.filtering.filtered import FilteredPanels
from heterocc.compiler.lower.cpu.generate.generate import generate
from heterocc.compiler.lower.cpu.generate.isa import Isa, isa_of
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.generate.places import shape_of
from heterocc.compiler.lower.cpu.loops import in_loops
from heterocc.compiler.lower.cpu.schedule import kernel_code, schedule_kernels
from heterocc.compiler.lower.cpu.sizes import assume, assuming, at_least, dims_of
from heterocc.compiler.lower.cpu.target import cpu_target
from heterocc.compiler.lower.pipeline import KernelModule, kernel_module
from heterocc.compiler.lower.variables import size_variable
from tests.compiler.lower.cpu.generate.generated import AVX2, AVX512, NEON, target_of
from tests.compiler.lower.lowered import CPU
from tests.symbolic_models import dynamic_model

_N = helper.make_node
_RNG = np.random.default_rng(0)


def _weight(*shape: int) -> np.ndarray:
    return _RNG.normal(0, 0.3, shape).astype(np.float32)


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_padding_from_a_length_of_4_on_has_one_form(mode: str) -> None:
    pads = {"p": np.array([0, 0, 1, 2, 0, 0, 3, 2])}
    nodes, image = [_N("Pad", ["x", "p"], ["y"], mode=mode)], {"x": ("float32", (1, 32, "m", "k"))}
    (function,) = _kernels_of(dynamic_model(nodes, image, ["y"], pads, opset=19))  # type: ignore[arg-type]
    with assuming(dims_of(function)) as found:
        made = generate(function, (), isa_of(cpu_target(CPU)))
    assert made is not None
    few = [tvm_ffi.structural_map(c, [(tirx.Var, lambda _: tirx.const(4, "int64"))]) for c in found.guards]
    assert all(sym.Analyzer().can_prove(condition) for condition in few)


def test_functions_of_rows_of_any_length_are_computed_in_vectors_of_powers_of_two() -> None:
    proto = dynamic_model([_N("Softmax", ["x"], ["y"], axis=-1)], {"x": ("float32", (8, 64, "n"))}, ["y"], {})
    (function,) = _kernels_of(proto)
    code, _ = sized_kernel(function, (), isa_of(target_of(AVX512)))
    lanes = set(map(int, re.findall(r"vectorized\(T.int64\((\d+)\)\)", code.script())))
    assert max(lanes) == 64
    assert all(n & (n - 1) == 0 for n in lanes)


@pytest.mark.parametrize(("mcpu", "along_channels"), [(AVX512, True), (AVX2, False)])
def test_filtered_maps_of_any_size_have_code_for_four_tiles_with_masks(mcpu: str, along_channels: bool) -> None:
    """Otherwise a vector of tiles is mostly empty: 64 channels at 4x4 took 1.6 times as long."""
    nodes, image = [_N("Conv", ["x", "w"], ["y"], pads=[1] * 4)], {"x": ("float32", (1, 64, "m", "k"))}
    (function,) = _kernels_of(dynamic_model(nodes, image, ["y"], {"w": _weight(64, 64, 3, 3)}))  # type: ignore[arg-type]
    code, packings = sized_kernel(function, {1}, isa_of(target_of(mcpu)))
    assert any(isinstance(packing, FilteredPanels) for packing in packings)
    assert (re.search(r"if \w+ <= T.int64\(4\):", code.script()) is not None) is along_channels


@pytest.mark.parametrize("times", [1, 8])
def test_a_length_that_a_run_computes_has_one_form_also_for_the_length_0(times: int) -> None:
    nodes = [_N("Conv", ["x", "w"], ["c"], kernel_shape=[11], pads=[5, 5]), _N("Relu", ["c"], ["y"])]
    proto = dynamic_model(nodes, {"x": ("float32", ("b", 32, "s"))}, ["y"], {"w": _weight(32, 32, 11)})
    (function,) = _kernels_of(proto)
    length = size_variable("r", "int64", empty=True) * tirx.const(times, "int64")
    of_run = tvm_ffi.structural_map(
        function, [(tirx.Var, lambda var: length if var.same_as(function.params[0].shape[2]) else var)], order="post"
    )
    with assuming(dims_of(of_run)) as found:
        generated = generate(of_run, {1}, isa_of(target_of(AVX512)))
    assert generated is not None
    assert not found.guards
    code, packings = sized_kernel(of_run, {1}, isa_of(target_of(AVX512)))
    assert packings == generated[1] != ()
    assert "vectorized" in code.script()


def test_outputs_of_transposed_convolutions_of_any_size_are_shuffled() -> None:
    nodes = [_N("ConvTranspose", ["x", "w"], ["c"], strides=[2, 2], pads=[1] * 4), _N("Relu", ["c"], ["y"])]
    proto = dynamic_model(nodes, {"x": ("float32", (1, 8, "h", "w"))}, ["y"], {"w": _weight(8, 6, 4, 4)})
    _, outputs = _kernels_of(proto)
    code, _ = sized_kernel(outputs, (), isa_of(target_of(AVX512)))
    assert "T.Shuffle" in code.script()


def test_a_transposition_of_any_size_to_three_channels_shuffles_vectors_of_pixels() -> None:
    nodes = [_N("Transpose", ["x"], ["y"], perm=[0, 2, 3, 1])]
    (function,) = _kernels_of(dynamic_model(nodes, {"x": ("float32", ("n", 3, "h", "w"))}, ["y"], {}))
    code, _ = sized_kernel(function, (), isa_of(target_of(AVX512)))
    assert "T.Shuffle" in code.script()


def test_heads_of_any_length_that_are_joined_are_copied_in_vectors() -> None:
    """Each vector is within one head, so that its lanes are neighbours in memory and no lane divides its place."""
    nodes = [_N("Transpose", ["x"], ["t"], perm=[0, 2, 1, 3]), _N("Reshape", ["t", "s"], ["y"])]
    proto = dynamic_model(nodes, {"x": ("float32", ("n", 4, "m", 64))}, ["y"], {"s": np.array([0, 0, 256])})
    (function,) = _kernels_of(proto)
    code, _ = sized_kernel(function, (), isa_of(target_of(AVX512)))
    loops: list[tirx.For] = []
    tvm_ffi.structural_walk(code.body, [(tirx.For, loops.append)], order="pre")
    inside: list[tirx.Expr] = []
    for loop in (loop for loop in loops if loop.kind == tirx.ForKind.VECTORIZED):
        tvm_ffi.structural_walk(loop.body, [(kind, inside.append) for kind in (tirx.Div, tirx.Mod)], order="pre")
    assert loops and not inside


def test_code_for_heads_of_any_length_has_no_other_form_for_a_length_like_the_width_of_a_head() -> None:
    nodes = [_N("Reshape", ["x", "s"], ["r"]), _N("Transpose", ["r"], ["y"], perm=[0, 1, 3, 2])]
    proto = dynamic_model(nodes, {"x": ("float32", ("n", 256, "t"))}, ["y"], {"s": np.array([0, 4, 64, -1])})
    (function,) = _kernels_of(proto)
    with assuming(dims_of(function)) as found:
        assert generate(function, (), isa_of(target_of(AVX512))) is not None
    assert not any(isinstance(condition, tirx.NE) for condition in found.guards)


@pytest.mark.parametrize("pads", [[0, 0, 0, 0, 0, 0, 1, 1], [0, 0, 1, 0, 0, 0, 0, 0]], ids=["behind", "before"])
def test_padding_of_any_size_is_not_fused_with_a_convolution_before_it(pads: list[int]) -> None:
    nodes = [_N("Conv", ["x", "w"], ["c"]), _N("Relu", ["c"], ["r"]), _N("Pad", ["r", "p"], ["y"])]
    proto = dynamic_model(
        nodes, {"x": ("float32", (1, 8, "h", "w"))}, ["y"], {"w": _weight(8, 8, 3, 3), "p": np.array(pads)}
    )
    for kernel in _kernels_of(proto):
        code, _ = kernel_code(kernel, {1}, isa_of(target_of(AVX512)))
        assert code.script() != in_loops(kernel).script()


@pytest.mark.parametrize("axis", [1, 2])
def test_places_of_extremes_of_rows_of_any_length_are_written_in_vectors(axis: int) -> None:
    proto = dynamic_model([_N("ArgMax", ["x"], ["y"], axis=axis)], {"x": ("float32", ("n", "m", 32))}, ["y"], {})
    (kernel,) = _kernels_of(proto)
    assert "T.Ramp" in kernel_code(kernel, (), isa_of(target_of(AVX512)))[0].script()


@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions_of_images_of_any_size_have_one_form(stride: int) -> None:
    nodes = [_N("Conv", ["x", "w"], ["y"], pads=[1] * 4, strides=[stride] * 2)]
    packings = one_form_of(nodes, {"w": _weight(64, 32, 3, 3)})
    assert isinstance(packings[0], FilteredPanels if stride == 1 else Panels)


@pytest.mark.parametrize(("kind", "stride"), [("MaxPool", 2), ("MaxPool", 3), ("AveragePool", 1)])
def test_pooling_of_images_of_any_size_has_one_form(kind: str, stride: int) -> None:
    one_form_of([_N(kind, ["x"], ["y"], kernel_shape=[3, 3], pads=[0, 0, 1, 1], strides=[stride] * 2)], {})


@pytest.mark.parametrize("kind", ["Softmax", "LogSoftmax"])
def test_rows_of_any_length_have_one_form_with_masks(kind: str) -> None:
    one_form_of([_N(kind, ["x"], ["y"], axis=-1)], {}, isa_of(target_of(AVX512)))


@pytest.mark.parametrize("last", ["QuantizeLinear", "DequantizeLinear"])
def test_rows_that_are_quantised_have_one_form(last: str) -> None:
    nodes = [_N("Softmax", ["x"], ["s"], axis=-1), _N("QuantizeLinear", ["s", "step", "zero"], ["y"])]
    if last == "DequantizeLinear":
        nodes = [nodes[0], _N("QuantizeLinear", ["s", "step", "zero"], ["q"]), _N(last, ["q", "step", "zero"], ["y"])]
    weights = {"step": np.array(1 / 256, np.float32), "zero": np.array(0, np.uint8)}
    one_form_of(nodes, weights, isa_of(target_of(AVX512)))


def test_pointwise_convolutions_with_strides_copy_rows() -> None:
    one_form_of([_N("Conv", ["x", "w"], ["y"], strides=[2, 2])], {"w": _weight(64, 32, 1, 1)})


@pytest.mark.parametrize("mcpu", [AVX512, AVX2])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_depthwise_convolutions_of_any_size_have_one_form(stride: int, mcpu: str) -> None:
    nodes = [_N("Conv", ["x", "w"], ["y"], pads=[1] * 4, strides=[stride] * 2, group=32)]
    assert not one_form_of(nodes, {"w": _weight(32, 1, 3, 3)}, isa_of(target_of(mcpu)))


def test_tiles_of_many_sums_of_any_number_of_rows_take_their_terms_one_by_one() -> None:
    """Code for many tiles is long, and sums that do not wait for each other hide a loop's own time."""
    nodes, image = [_N("MatMul", ["x", "w"], ["y"])], {"x": ("float32", ("n", 64))}
    (function,) = _kernels_of(dynamic_model(nodes, image, ["y"], {"w": _weight(64, 64)}))  # type: ignore[arg-type]
    code, _ = sized_kernel(function, {1}, isa_of(target_of(AVX512)))
    assert "in range(T.int64(64))" in code.script()
    assert "in range(T.int64(32))" in code.script()  # a tile of one row waits


@pytest.mark.parametrize("mcpu", [AVX512, AVX2, NEON])
def test_products_of_images_of_any_size_have_one_form(mcpu: str) -> None:
    one_form_of([_N("Conv", ["x", "w"], ["y"])], {"w": _weight(64, 32, 1, 1)}, isa_of(target_of(mcpu)))


@pytest.mark.parametrize(("taps", "groups"), [(3, 1), (3, 32)], ids=["copied rows", "planes"])
def test_convolutions_of_large_images_of_any_size_fetch_what_they_read_next(
    taps: int, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[bool] = []
    prefetch = emit.prefetch
    monkeypatch.setattr(
        emit, "prefetch", lambda *given, **how: read.append("to_write" not in how) or prefetch(*given, **how)
    )
    conv = _N("Conv", ["x", "w"], ["y"], pads=[taps // 2] * 4, strides=[2, 2], group=groups)
    one_form_of([conv], {"w": _weight(64, 32 // groups, taps, taps)}, isa_of(target_of(AVX512)))
    assert any(read)


def one_form_of(
    nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray], isa: Isa | None = None
) -> tuple[Packing, ...]:
    """The packings of a kernel of an image of any size whose code assumes nothing about sizes."""
    function = _kernel_of(nodes, weights)
    with assuming(dims_of(function)) as found:
        done = generate(function, {1}, isa or isa_of(cpu_target(CPU)))
    assert done is not None and not found.guards
    return done[1]


def _kernel_of(nodes: list[onnx.NodeProto], weights: dict[str, np.ndarray]) -> PrimFunc:
    """The only kernel of a network of an image [1, 32, m, k]."""
    (function,) = _kernels_of(dynamic_model(nodes, {"x": ("float32", (1, 32, "m", "k"))}, ["y"], weights))
    return function


def _kernels_of(proto: onnx.ModelProto) -> list[PrimFunc]:
    """The kernels of a model, in the order of its nodes."""
    module = _module_of(proto)
    return [module.mod[kernel.symbol] for kernel in module.kernels]


def _module_of(proto: onnx.ModelProto) -> KernelModule:
    """The unscheduled kernels of a model."""
    model = import_model(proto, keep_dims=True)
    graph = model.graph
    job = PartitionJob("p0", model, CPU, tuple(n.name for n in graph.nodes), graph.inputs, graph.outputs)
    return kernel_module(job, cpu_target(CPU))


@pytest.mark.parametrize(
    "before",
    [
        [
            _N("MaxPool", ["x"], ["a"], kernel_shape=[3, 3], strides=[4, 4]),
            _N("MaxPool", ["a"], ["b"], kernel_shape=[3, 3], strides=[2, 2]),
        ],
        [_N("MaxPool", ["x"], ["b"], kernel_shape=[3, 3])],
        [_N("Slice", ["x", "one", "end", "width"], ["b"])],
    ],
    ids=["halved several times", "smaller by a window", "sliced, and at least 0"],
)
def test_padded_convolutions_of_maps_that_an_image_determines_are_generated(before: list[onnx.NodeProto]) -> None:
    nodes = [*before, _N("Conv", ["b", "w"], ["y"], pads=[1] * 4, strides=[2, 2])]
    places = {"one": np.array([1]), "end": np.array([2**31]), "width": np.array([3])}
    weights = {"w": _weight(8, 4, 3, 3)} | (places if before[-1].op_type == "Slice" else {})
    proto = dynamic_model(nodes, {"x": ("float32", ("n", 4, "m", "k"))}, ["y"], weights)
    for function in map(with_own_sizes, _kernels_of(proto)):
        code, _ = kernel_code(function, {1}, isa_of(cpu_target(CPU)))
        assert code.script() != in_loops(function).script()


def test_gates_of_an_image_of_any_size_have_code() -> None:
    nodes = [
        _N("GlobalAveragePool", ["x"], ["a"]),
        _N("Conv", ["a", "w"], ["g"]),
        _N("HardSigmoid", ["g"], ["s"]),
        _N("Mul", ["x", "s"], ["y"]),
    ]
    proto = dynamic_model(nodes, {"x": ("float32", ("n", 16, "m", "k"))}, ["y"], {"w": _weight(16, 16, 1, 1)})
    assert schedule_kernels(_module_of(proto), cpu_target(CPU)).kernels


@pytest.mark.parametrize("mcpu", [AVX512, AVX2, NEON])
def test_code_for_a_batch_of_any_size_has_no_other_form_for_small_batches(mcpu: str) -> None:
    nodes = [
        _N("Conv", ["x", "dense"], ["a"], pads=[1, 1, 1, 1]),
        _N("Conv", ["a", "deep"], ["b"], pads=[1, 1, 1, 1], group=32),
        _N("Conv", ["b", "deep"], ["c"], strides=[2, 2], pads=[0, 0, 1, 1], group=32),
        _N("Conv", ["c", "single"], ["d"]),
        _N("MaxPool", ["d"], ["e"], kernel_shape=[3, 3], strides=[2, 2]),
        _N("Conv", ["e", "wide"], ["y"], pads=[1, 3, 1, 3]),
    ]
    weights = {"dense": _weight(32, 3, 3, 3), "deep": _weight(32, 1, 3, 3), "single": _weight(32, 32, 1, 1)}
    weights["wide"] = _weight(24, 32, 3, 7)
    proto = dynamic_model(nodes, {"x": ("float32", ("n", 3, 81, 77))}, ["y"], weights)
    for function in _kernels_of(proto):
        with assuming(dims_of(function)) as found:
            assert generate(function, {1}, isa_of(target_of(mcpu))) is not None
        assert not found.guards, function.attrs["global_symbol"]


def test_sums_of_terms_that_are_apart_are_computed_in_vectors_along_the_result() -> None:
    """Term by term for a row of a Resize with antialias: terms are rows, and the innermost loop is one over columns."""
    n, c, m, k, taps = (tirx.Var(name, "int64") for name in ("n", "c", "m", "k", "taps"))
    data, shares = te.placeholder((n, m, k), name="data"), te.placeholder((taps, c), name="shares")
    term = te.reduce_axis((0, taps), name="term")

    def at(i: tirx.Var, y: tirx.Var, x: tirx.Var) -> tirx.Expr:
        place = tirx.min(y + term.var, m - tirx.const(1, "int64"))
        return te.sum(data(i, place, x) * shares(term.var, y), axis=[term])

    function = te.create_prim_func([data, shares, te.compute((n, c, k), at, name="sums")])
    plain = in_loops(function.with_attr("global_symbol", "kernel"))
    inner: list[tirx.For] = []
    tvm_ffi.structural_walk(plain.body, [(tirx.For, inner.append)], order="pre")
    assert inner[-1].extent.same_as(k)
    assert inner[-2].extent.same_as(taps)


def test_code_with_a_guard_has_no_packed_weights_as_loops_read_them(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [_N("MatMul", ["x", "w"], ["y"])]
    (function,) = _kernels_of(dynamic_model(nodes, {"x": ("float32", ("n", 24))}, ["y"], {"w": _weight(24, 40)}))
    isa = isa_of(target_of(AVX512))
    assert sized_kernel(function, {1}, isa)[1]

    def guarding(function: tirx.PrimFunc, weights: Collection[int], isa: Isa) -> Done | None:
        (rows, _) = shape_of(function.params[0]) or ()
        assume(at_least(rows, 3))
        return generate(function, weights, isa)

    monkeypatch.setattr(guarded, "generate", guarding)
    code, packings = sized_kernel(function, {1}, isa)
    assert packings == ()
    assert "assumed" in code.script() and "Broadcast" in code.script()
