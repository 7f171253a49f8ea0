"""Kernels of images of any size that one form of code serves, and what needs no kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm_ffi
from onnx import helper
from tvm import sym, tirx
from tvm.ir import TensorLoad

from heterocc.compiler import compile_model
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.lower.backend import PartitionJob
from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.candidates import candidates, written_best
from heterocc.compiler.lower.cpu.generate.convolution.direct import DirectWriter
from heterocc.compiler.lower.cpu.generate.convolution.form import find_planes
from heterocc.compiler.lower.cpu.generate.generate import FORMS, generate
from heterocc.compiler.lower.cpu.generate.isa import isa_of
from heterocc.compiler.lower.cpu.generate.products.product import ProductWriter, propose_product
from heterocc.compiler.lower.cpu.generate.read import read_kernel
from heterocc.compiler.lower.cpu.sizes import assuming, dims_of, index
from heterocc.compiler.lower.cpu.target import cpu_target
from heterocc.compiler.lower.kernels.expressions import substituted
from heterocc.compiler.lower.pipeline import KernelModule, kernel_module
from heterocc.compiler.lower.relax.fusion import expansions_after_products_apart
from heterocc.runtime import load
from tests.compiler.lower.cpu.generate.generated import AVX2, AVX512, target_of
from tests.compiler.lower.lowered import CPU
from tests.symbolic_models import dynamic_model

_N = helper.make_node
IMAGE: Mapping[str, Sequence[int | str]] = {"x": ("n", 8, "m", "k")}
PIXELS = [
    _N("Conv", ["x", "w"], ["c"], pads=[3] * 4, strides=[4] * 2),
    _N("Reshape", ["c", "rows"], ["r"]),
    _N("Transpose", ["r"], ["t"], perm=[0, 2, 1]),
]
"""The pixels of a map, whose height and width are quotients, as rows [n, pixels, 8]."""

WEIGHTS = {"w": np.ones((8, 8, 7, 7), np.float32), "rows": np.array([0, 0, -1])}


def _kernels(
    nodes: Sequence[onnx.NodeProto],
    shapes: Mapping[str, Sequence[int | str]],
    weights: Mapping[str, np.ndarray],
) -> KernelModule:
    typed = {name: ("float32", tuple(dims)) for name, dims in shapes.items()}
    model = import_model(dynamic_model([*nodes], typed, [nodes[-1].output[0]], dict(weights)), keep_dims=True)
    graph = model.graph
    job = PartitionJob("p0", model, CPU, tuple(n.name for n in graph.nodes), graph.inputs, graph.outputs)
    apart = partial(expansions_after_products_apart, of_channels=True)
    return kernel_module(job, cpu_target(CPU), apart=apart)


def _has_one_form(module: KernelModule, number: int) -> bool:
    """Whether the code of a kernel assumes nothing about sizes."""
    function = module.mod[module.kernels[number].symbol]
    with assuming(dims_of(function)) as found:
        assert generate(function, {1}, isa_of(cpu_target(CPU))) is not None
    return not found.guards


def test_a_reshape_of_an_image_of_any_size_has_no_kernel() -> None:
    assert len(_kernels(PIXELS, IMAGE, WEIGHTS).kernels) == 2


def test_a_product_of_the_pixels_of_an_image_of_any_size_has_one_form() -> None:
    nodes = [*PIXELS, _N("Relu", ["t"], ["u"]), _N("MatMul", ["u", "v"], ["y"])]
    module = _kernels(nodes, IMAGE, {**WEIGHTS, "v": np.ones((8, 24), np.float32)})
    assert _has_one_form(module, len(module.kernels) - 1)


@pytest.mark.parametrize(
    ("node", "more"),
    [
        (_N("Concat", ["x", "z"], ["y"], axis=1), {"z": ("n", 5, "m", "k")}),
        (_N("Relu", ["x"], ["y"]), {}),
    ],
    ids=["concatenation", "map"],
)
def test_maps_of_an_image_of_any_size_have_one_form(
    node: onnx.NodeProto, more: Mapping[str, Sequence[int | str]]
) -> None:
    assert _has_one_form(_kernels([node], {**IMAGE, **more}, {}), 0)


def test_maxima_of_a_map_and_a_row_have_one_form() -> None:
    """Their kernels have stages of two shapes, which may be equal at the run or not."""
    nodes = [_N("Max", ["x", "z"], ["y"])]
    assert _has_one_form(_kernels(nodes, {"x": ("n", "m"), "z": ("m",)}, {}), 0)


def test_products_that_weight_channels_of_any_size_are_kernels_with_one_form_before_the_map() -> None:
    nodes = [_N("Conv", ["z", "w"], ["g"]), _N("Sigmoid", ["g"], ["s"]), _N("Mul", ["x", "s"], ["y"])]
    module = _kernels(nodes, {**IMAGE, "z": ("n", 6, 1, 1)}, {"w": np.ones((8, 6, 1, 1), np.float32)})
    assert [kernel.nodes for kernel in module.kernels] == [("Conv_0",), ("Sigmoid_1",), ("Mul_2",)]
    assert all(_has_one_form(module, place) for place in range(3))


def test_means_of_maps_of_any_size_have_one_form() -> None:
    nodes = [PIXELS[0], _N("ReduceMean", ["c"], ["y"], axes=[2, 3])]
    assert _has_one_form(_kernels(nodes, IMAGE, {"w": WEIGHTS["w"]}), 1)


@pytest.mark.parametrize(("height", "width", "chunks"), [(1, 1, 1), (16, 16, 1), (80, 20, 1), (640, 640, 64)])
def test_chunks_of_an_image_of_any_size_have_more_rows_if_it_is_narrow(height: int, width: int, chunks: int) -> None:
    nodes = [_N("Conv", ["x", "w"], ["y"], strides=[2, 2], pads=[1] * 4)]
    module = _kernels(nodes, IMAGE, {"w": np.ones((16, 8, 3, 3), np.float32)})
    function, isa = module.mod[module.kernels[0].symbol], isa_of(target_of(AVX512))
    with assuming(dims_of(function)) as found:
        kernel = read_kernel(function, {1})
        convolution = None if kernel is None else find_planes(kernel)
        assert kernel is not None and convolution is not None
        writer = DirectWriter(kernel, convolution, isa)
        count, rows = index(writer.chunks), index(writer.rows)
    sizes = {"m": height, "k": width}
    values = [(var, tirx.const(sizes.get(var.name.split("_")[-1], 1), "int64")) for var in found.variables]
    made, tall = (int(sym.Analyzer().simplify(substituted(expr, values))) for expr in (count, rows))
    assert (made, tall) == (chunks, -(-((height + 1) // 2) // chunks))


@pytest.mark.parametrize(
    ("places", "pieces", "last"), [(1, 1, 1), (128, 1, 8), (129, 2, 4), (256, 2, 8), (300, 3, 5), (5000, 40, 1)]
)
def test_a_row_of_any_length_has_pieces_whose_copies_stay_in_a_cache_and_no_vectors_beyond_its_end(
    places: int, pieces: int, last: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each tile of channels reads the copy: 128 channels in four phases take 2 KiB a place, of 256."""
    monkeypatch.setattr(emit, "bound", lambda value: value)
    nodes = [_N("Conv", ["x", "w"], ["y"], strides=[4])]
    module = _kernels(nodes, {"x": ("n", 128, "m")}, {"w": np.ones((16, 128, 4), np.float32)})
    function, isa = module.mod[module.kernels[0].symbol], isa_of(target_of(AVX512))
    with assuming(dims_of(function)) as found:
        kernel = read_kernel(function, {1})
        convolution = None if kernel is None else find_planes(kernel)
        assert kernel is not None and convolution is not None
        writer = DirectWriter(kernel, convolution, isa)
        count = index(writer.pieces)
        writer.take_piece(count - 1)
        vectors = index(writer.vectors)
    sizes = {"n": 1, "m": 4 * places}
    values = [(var, tirx.const(sizes[var.name.split("_")[-1]], "int64")) for var in found.variables]
    made = [int(sym.Analyzer().simplify(substituted(expr, values))) for expr in (count, vectors)]
    assert made == [pieces, last]


def test_few_frames_of_a_signal_have_code_along_the_rows_of_the_weight() -> None:
    """A voice detector transforms four frames a call: vectors along these are mostly empty."""
    nodes = [_N("Conv", ["x", "w"], ["y"], strides=[128])]
    module = _kernels(nodes, {"x": ("n", 1, "m")}, {"w": np.ones((258, 1, 256), np.float32)})
    function, isa = module.mod[module.kernels[0].symbol], isa_of(target_of(AVX512))
    with assuming(dims_of(function)):
        kernel = read_kernel(function, {1})
        assert kernel is not None
        (product,) = propose_product(kernel, isa)
        writer = product.writer(isa)
        assert isinstance(writer, ProductWriter) and writer.copies and writer.takes_few_columns()


@pytest.mark.parametrize(("size", "sizes"), [(64, [6, 3, 2, 1]), (512, [6, 5, 4, 3, 2, 1])])
def test_few_rows_have_a_size_of_tile_each_only_if_the_weights_are_far(size: int, sizes: list[int]) -> None:
    """Little weights stay in a near cache, so that two tiles read them in hardly more time than one."""
    module = _kernels([_N("MatMul", ["x", "w"], ["y"])], {"x": ("n", size)}, {"w": np.ones((size, size), np.float32)})
    function, isa = module.mod[module.kernels[0].symbol], isa_of(target_of(AVX512))
    with assuming(dims_of(function)):
        kernel = read_kernel(function, {1})
        assert kernel is not None
        (product,) = propose_product(kernel, isa)
        writer = product.writer(isa)
        assert isinstance(writer, ProductWriter)
        assert [run.size for run in writer.row_runs] == sizes


def test_weights_of_few_taps_are_read_once_for_a_plane_of_any_size() -> None:
    """Not again for each tile: once in the code for rows of at most a vector, and once in that for longer ones."""
    nodes = [_N("Conv", ["x", "w"], ["y"], pads=[1] * 4, group=8)]
    module = _kernels(nodes, IMAGE, {"w": np.ones((8, 1, 3, 3), np.float32)})
    function = module.mod[module.kernels[0].symbol]
    with assuming(dims_of(function)):
        found = generate(function, {1}, isa_of(target_of(AVX512)))
    assert found is not None
    loads: list[TensorLoad] = []
    tvm_ffi.structural_walk(found[0].body, [(TensorLoad, loads.append)], order="pre")
    assert sum(_elements(load) == 72 for load in loads) == 2 * 9


def _elements(load: TensorLoad) -> int | None:
    """The elements of a flat array of fixed size."""
    first = load.source.shape[0]
    return int(first) if len(load.source.shape) == 1 and isinstance(first, tirx.IntImm) else None


@pytest.mark.parametrize(("kernel", "stride", "channels"), [(256, 128, 40), (10, 5, 40), (512, 160, 514)])
def test_frames_of_a_signal_of_any_length_behind_a_slice_of_all_are_one_product(
    kernel: int, stride: int, channels: int
) -> None:
    weights = {"w": np.ones((channels, 1, kernel), np.float32), "from": np.array([0]), "to": np.array([2**63 - 1])}
    nodes = [_N("Conv", ["x", "w"], ["c"], strides=[stride]), _N("Slice", ["c", "from", "to", "from"], ["y"])]
    module = _kernels(nodes, {"x": ("n", 1, "length")}, weights)
    assert len(module.kernels) == 1 and _has_one_form(module, 0)
    function, isa = module.mod[module.kernels[0].symbol], isa_of(cpu_target(CPU))
    with assuming(dims_of(function)):
        found, product = generate(function, {1}, isa), written_best(read_kernel(function, {1}), (propose_product,), isa)
    assert found is not None and product is not None
    assert tvm_ffi.structural_equal(found[0], product[0])


@pytest.mark.parametrize("rows", [(), (1,)], ids=["signal", "image of one row"])
def test_padded_frames_of_a_signal_of_any_length_are_a_product_of_padded_data(
    rows: tuple[int, ...], tmp_path: Path
) -> None:
    weight = np.random.default_rng(0).standard_normal((5, 1, 30)).astype(np.float32)
    held = weight.reshape(5, 1, *rows, 30)
    nodes = [_N("Conv", ["x", "w"], ["y"], strides=[*rows, 20], pads=[*[0] * len(rows), 3, *[0] * len(rows), 17])]
    module = _kernels(nodes, {"x": ("n", 1, *rows, "length")}, {"w": held})
    assert len(module.kernels) == 2
    model = dynamic_model(nodes, {"x": ("float32", ("n", 1, *rows, "length"))}, ["y"], {"w": held})
    compile_model(model, tmp_path / "m.hcb", devices="CPU")
    rng = np.random.default_rng(1)
    with load(tmp_path / "m.hcb") as session:
        for batch, length in [(1, 10), (2, 30), (3, 333)]:
            x = rng.standard_normal((batch, 1, length)).astype(np.float32)
            padded = np.pad(x[:, 0].astype(np.float64), ((0, 0), (3, 17)))
            frames = np.lib.stride_tricks.sliding_window_view(padded, 30, axis=1)[:, ::20]
            wanted = np.einsum("nft,ot->nof", frames, weight[:, 0])
            found = session.run({"x": x.reshape(batch, 1, *rows, length)})["y"]
            np.testing.assert_allclose(found.reshape(wanted.shape), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("taps", "stride", "pads"), [(475, 441, (17, 458)), (90, 17, (9, 8)), (100, 3, (0, 0)), (90, 16, (9, 0))]
)
def test_a_long_row_of_taps_by_a_stride_is_loops(taps: int, stride: int, pads: tuple[int, int], tmp_path: Path) -> None:
    """A resampler of speech has 475 taps by a stride of 441: with code for each, LLVM did not end within minutes."""
    random = np.random.default_rng(0)
    weight = random.normal(0, taps**-0.5, (4, 2, taps)).astype(np.float32)
    nodes = [_N("Conv", ["x", "w"], ["y"], strides=[stride], pads=pads)]
    typed = {"x": ("float32", ("n", 2, "m"))}
    model = dynamic_model(nodes, typed, ["y"], {"w": weight})
    bundle = tmp_path / "m.hcb"
    compile_model(model, bundle, devices="CPU", check=False)
    with load(bundle) as session:
        for number, length in ((1, taps), (2, 901)):
            x = random.normal(size=(number, 2, length)).astype(np.float32)
            (ours,) = session.run({"x": x}).values()
            padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), pads))
            windows = np.lib.stride_tricks.sliding_window_view(padded, taps, axis=2)[:, :, ::stride]
            expected = np.einsum("ncpt,oct->nop", windows, weight.astype(np.float64))
            np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mcpu", [AVX512, AVX2])
def test_maps_of_a_few_pixels_in_a_batch_of_any_size_have_vectors_along_channels(mcpu: str) -> None:
    """Their rows of 17 pixels fill half of two vectors."""
    module = _kernels(
        [_N("Conv", ["x", "w"], ["y"])], {"x": ("n", 32, 1, 21)}, {"w": np.ones((200, 32, 1, 5), np.float32)}
    )
    function, isa = module.mod[module.kernels[0].symbol], isa_of(target_of(mcpu))
    with assuming(dims_of(function)) as found:
        kernel = read_kernel(function, {1})
        assert candidates(kernel, FORMS, isa)[0].form == "channels"
        assert generate(function, {1}, isa) is not None
    assert not found.guards


def test_a_part_without_elements_is_not_generated() -> None:
    """Generators leave loops of one turn out, and wrote a number beyond the end of a part of size 0."""
    nodes = [_N("Relu", ["x"], ["r"]), _N("Slice", ["r", "from", "to", "axis"], ["y"])]
    weights = {"from": np.array([8]), "to": np.array([9]), "axis": np.array([1])}
    module = _kernels(nodes, {"x": ("n", 8)}, weights)
    assert len(module.kernels) > 0
    function = module.mod[module.kernels[-1].symbol]
    with assuming(dims_of(function)):
        assert generate(function, set(), isa_of(cpu_target(CPU))) is None


def test_a_product_over_a_size_of_the_run_is_one_also_if_something_is_added() -> None:
    nodes = [_N("MatMul", ["a", "b"], ["p"]), _N("Add", ["p", "r"], ["y"])]
    module = _kernels(nodes, {"a": (256, "k"), "b": ("k", 256), "r": (256, 256)}, {})
    function = module.mod[module.kernels[0].symbol]
    with assuming(dims_of(function)):
        kernel = read_kernel(function, ())
        assert kernel is not None and written_best(kernel, (propose_product,), isa_of(cpu_target(CPU))) is not None
