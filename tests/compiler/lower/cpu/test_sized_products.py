"""Matrix products whose sizes are known only at run time: rows of a batch, behind views, in sums over several axes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper
from tvm import relax

from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.lower.backend import LoweredPartition, PartitionJob
from heterocc.compiler.lower.cpu.lowering import CpuLowering
from tests.compiler.lower.lowered import CPU
from tests.symbolic_models import dynamic_model

_N = helper.make_node
_RNG = np.random.default_rng(0)

Reference = Callable[[np.ndarray], np.ndarray]


def _weight(*shape: int) -> np.ndarray:
    return _RNG.normal(0, 0.3, shape).astype(np.float32)


W = {name: _weight(*shape) for name, shape in {"w": (24, 40), "v": (40, 24), "h": (3, 8, 20), "e": (24, 3, 16)}.items()}
W64 = {name: array.astype(np.float64) for name, array in W.items()}
INTS = {"one": np.array([1]), "end": np.array([9999]), "heads": np.array([0, 0, 3, 8])}

VIEWS: dict[str, tuple[list[onnx.NodeProto], Reference]] = {
    "transposed": (
        [_N("Transpose", ["x"], ["t"], perm=[1, 0, 2]), _N("MatMul", ["t", "w"], ["y"])],
        lambda x: x.transpose(1, 0, 2) @ W64["w"],
    ),
    "between two": (
        [
            _N("MatMul", ["x", "w"], ["p"]),
            _N("Transpose", ["p"], ["t"], perm=[1, 0, 2]),
            _N("MatMul", ["t", "v"], ["q"]),
            _N("Relu", ["q"], ["y"]),
        ],
        lambda x: np.maximum((x @ W64["w"]).transpose(1, 0, 2) @ W64["v"], 0),
    ),
    "heads apart": (
        [
            _N("Reshape", ["x", "heads"], ["r"]),
            _N("Transpose", ["r"], ["t"], perm=[2, 1, 0, 3]),
            _N("Einsum", ["t", "h"], ["y"], equation="hbtd,hde->hbte"),
        ],
        lambda x: np.einsum("tbhd,hde->hbte", x.reshape(*x.shape[:2], 3, 8), W64["h"]),
    ),
    "summed over heads": (
        [_N("Reshape", ["x", "heads"], ["r"]), _N("Einsum", ["r", "h"], ["y"], equation="bthd,hde->bte")],
        lambda x: np.einsum("bthd,hde->bte", x.reshape(*x.shape[:2], 3, 8), W64["h"]),
    ),
    "divided into heads": (
        [_N("Einsum", ["x", "e"], ["y"], equation="btd,dhe->bhte")],
        lambda x: np.einsum("btd,dhe->bhte", x, W64["e"]),
    ),
    "a slice": (
        [
            _N("Slice", ["x", "one", "end", "one"], ["s"]),
            _N("Transpose", ["s"], ["t"], perm=[1, 0, 2]),
            _N("MatMul", ["t", "w"], ["y"]),
        ],
        lambda x: x[:, 1:].transpose(1, 0, 2) @ W64["w"],
    ),
}

BATCHES: dict[str, tuple[list[onnx.NodeProto], Sequence[int | str], Reference]] = {
    "layers": (
        [
            _N("MatMul", ["x", "w"], ["p"]),
            _N("Relu", ["p"], ["r"]),
            _N("MatMul", ["r", "v"], ["q"]),
            _N("Softmax", ["q"], ["y"], axis=-1),
        ],
        ("n", 24),
        lambda x: _softmax(np.maximum(x @ W64["w"], 0) @ W64["v"]),
    ),
    "rows of an item": (
        [
            _N("MatMul", ["x", "w"], ["p"]),
            _N("Transpose", ["p"], ["t"], perm=[0, 2, 1]),
            _N("MatMul", ["x", "w"], ["o"]),
            _N("MatMul", ["o", "t"], ["y"]),
        ],
        ("n", 5, 24),
        lambda x: (x @ W64["w"]) @ (x @ W64["w"]).transpose(0, 2, 1),
    ),
    "a residual": (
        [
            _N("MatMul", ["x", "w"], ["p"]),
            _N("MatMul", ["p", "v"], ["q"]),
            _N("Add", ["q", "x"], ["y"]),
        ],
        ("n", 3, 24),
        lambda x: x @ W64["w"] @ W64["v"] + x,
    ),
}


def _softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def _lowered(
    nodes: Sequence[onnx.NodeProto], dims: Sequence[int | str], constants: Mapping[str, np.ndarray] | None = None
) -> LoweredPartition:
    proto = dynamic_model(nodes, {"x": ("float32", dims)}, ["y"], constants or {**W, **INTS})
    model = import_model(proto, keep_dims=True)
    graph = model.graph
    return CpuLowering().lower(
        PartitionJob("p0", model, CPU, tuple(n.name for n in graph.nodes), graph.inputs, graph.outputs)
    )


def _runner(lowered: LoweredPartition, folder: Path) -> Callable[[np.ndarray], np.ndarray]:
    (folder / "code.so").write_bytes(lowered.code)
    entry = relax.VirtualMachine(tvm.runtime.load_module(str(folder / "code.so")), tvm.cpu())["main"]
    params = tuple(tvm.runtime.tensor(p) for p in lowered.params)
    return lambda x: entry(tvm.runtime.tensor(x), params)[0].numpy()


def _check(run: Callable[[np.ndarray], np.ndarray], reference: Reference, shape: Sequence[int]) -> None:
    x = _RNG.normal(size=shape).astype(np.float32)
    expected = reference(x.astype(np.float64))
    ours = run(x)
    assert ours.shape == expected.shape
    np.testing.assert_allclose(ours, expected, rtol=1e-4, atol=1e-5)


def _code(lowered: LoweredPartition, name: str) -> str:
    texts: Mapping[str, str] = dict(lowered.dumps)
    return next(text for file, text in texts.items() if name in file)


@pytest.mark.parametrize("name", VIEWS)
def test_products_behind_views_of_dynamic_dimensions_are_right_at_all_sizes(name: str, tmp_path: Path) -> None:
    nodes, reference = VIEWS[name]
    lowered = _lowered(nodes, ("n", "m", 24))
    run = _runner(lowered, tmp_path)
    for n, m in ((1, 2), (2, 1), (1, 7), (7, 1), (3, 5), (13, 11), (2, 130), (130, 3)):
        if name != "a slice" or m > 1:
            _check(run, reference, (n, m, 24))


@pytest.mark.parametrize("name", VIEWS)
def test_products_behind_views_of_dynamic_dimensions_are_generated(name: str) -> None:
    """A product that is not is plain loops over a sum, and takes a hundred times as long."""
    lowered = _lowered(VIEWS[name][0], ("n", "m", 24))
    assert "T.init()" not in _code(lowered, "scheduled")


@pytest.mark.parametrize("name", BATCHES)
def test_products_of_a_batch_are_right_at_all_sizes(name: str, tmp_path: Path) -> None:
    nodes, dims, reference = BATCHES[name]
    run = _runner(_lowered(nodes, dims), tmp_path)
    for n in (*range(1, 20), 31, 64, 129, 300):
        _check(run, reference, (n, *(d for d in dims if isinstance(d, int))))


@pytest.mark.parametrize("name", BATCHES)
def test_products_of_a_batch_are_generated(name: str) -> None:
    nodes, dims, _ = BATCHES[name]
    assert "T.init()" not in _code(_lowered(nodes, dims), "scheduled")


def test_a_product_with_two_results_is_right_for_any_number_of_rows(tmp_path: Path) -> None:
    nodes = [_N("MatMul", ["x", "w"], ["p"]), _N("Relu", ["p"], ["y"])]
    proto = dynamic_model(nodes, {"x": ("float32", ("n", 24))}, ["y", "p"], W)
    model = import_model(proto, keep_dims=True)
    graph = model.graph
    job = PartitionJob("p0", model, CPU, tuple(n.name for n in graph.nodes), graph.inputs, graph.outputs)
    run = _runner(CpuLowering().lower(job), tmp_path)
    for n in (1, 3, 17):
        _check(run, lambda x: np.maximum(x @ W64["w"], 0), (n, 24))


def test_a_batch_without_items_has_no_rows(tmp_path: Path) -> None:
    nodes, dims, _ = BATCHES["layers"]
    assert _runner(_lowered(nodes, dims), tmp_path)(np.zeros((0, 24), np.float32)).shape == (0, 24)


def test_maps_of_a_batch_and_their_classifier_are_right_and_generated(tmp_path: Path) -> None:
    kernel, classes = _weight(8, 3, 3, 3), _weight(8 * 36, 10)
    nodes = [_N("Conv", ["x", "k"], ["c"], pads=[1] * 4), _N("Flatten", ["c"], ["f"]), _N("MatMul", ["f", "d"], ["y"])]
    lowered = _lowered(nodes, ("n", 3, 6, 6), {"k": kernel, "d": classes})
    assert "T.init()" not in _code(lowered, "scheduled")
    run = _runner(lowered, tmp_path)

    def reference(x: np.ndarray) -> np.ndarray:
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
        maps = np.einsum("nchwij,ocij->nohw", windows, kernel.astype(np.float64))
        return maps.reshape(len(x), -1) @ classes.astype(np.float64)

    for n in (1, 2, 9):
        _check(run, reference, (n, 3, 6, 6))


def test_products_of_a_batch_of_bytes_are_right_and_generated(tmp_path: Path) -> None:
    weight = _RNG.integers(-127, 128, (24, 40)).astype(np.int8)
    constants: dict[str, np.ndarray] = {"w": weight, "s": np.array(0.05, np.float32), "z": np.array(128, np.uint8)}
    constants |= {"u": np.array(0.01, np.float32), "o": np.array(0, np.int8)}
    nodes = [
        _N("QuantizeLinear", ["x", "s", "z"], ["q"]),
        _N("DequantizeLinear", ["q", "s", "z"], ["d"]),
        _N("DequantizeLinear", ["w", "u", "o"], ["v"]),
        _N("MatMul", ["d", "v"], ["y"]),
    ]
    lowered = _lowered(nodes, ("n", 24), constants)
    assert "T.init()" not in _code(lowered, "scheduled")
    run = _runner(lowered, tmp_path)

    def reference(x: np.ndarray) -> np.ndarray:
        rounded = np.clip(np.rint(x.astype(np.float32) / np.float32(0.05)), -128, 127).astype(np.float64)
        return rounded @ weight * (0.05 * 0.01)

    for n in (1, 2, 7, 33):
        _check(run, reference, (n, 24))


LONG = {"w": _weight(96, 40), "r": _weight(40)}

LONG_SUMS: dict[str, tuple[list[onnx.NodeProto], Reference]] = {
    "behind a view, with a function": (
        [
            _N("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
            _N("MatMul", ["t", "w"], ["p"]),
            _N("Add", ["p", "r"], ["q"]),
            _N("Tanh", ["q"], ["y"]),
        ],
        lambda x: np.tanh(x.transpose(1, 0, 2) @ LONG["w"].astype(np.float64) + LONG["r"]),
    ),
    "rows side by side": (
        [_N("MatMul", ["x", "w"], ["p"]), _N("Add", ["p", "r"], ["y"])],
        lambda x: x @ LONG["w"].astype(np.float64) + LONG["r"],
    ),
    "columns of any number": (
        [_N("Transpose", ["x"], ["t"], perm=[0, 2, 1]), _N("MatMul", ["x", "t"], ["p"]), _N("Relu", ["p"], ["y"])],
        lambda x: np.maximum(x @ x.transpose(0, 2, 1), 0),
    ),
}


@pytest.mark.parametrize("name", LONG_SUMS)
def test_long_sums_of_any_rows_are_right_in_tiles_of_each_size(name: str, tmp_path: Path) -> None:
    nodes, reference = LONG_SUMS[name]
    run = _runner(_lowered(nodes, ("n", "m", 96), LONG), tmp_path)
    for n, m in ((1, 1), (2, 1), (1, 7), (7, 1), (3, 5), *((1, m) for m in range(8, 30)), (11, 13), (130, 3)):
        x = _RNG.normal(size=(n, m, 96)).astype(np.float32)
        np.testing.assert_allclose(run(x), reference(x.astype(np.float64)), rtol=1e-4, atol=1e-4)


def test_tiles_of_all_sizes_of_long_sums_have_one_epilogue() -> None:
    nodes, _ = LONG_SUMS["behind a view, with a function"]
    columns = 3  # vectors of a tile, each with a loop over rows of its own
    assert 1 <= _code(_lowered(nodes, ("n", "m", 96), LONG), "scheduled").count("T.tanh(") <= columns
