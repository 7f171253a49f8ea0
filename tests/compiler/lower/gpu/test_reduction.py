from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from tvm import te, tirx

from heterocc.artifacts.dtypes import NUMERIC_DTYPES
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.lower.gpu.limits import Limits
from heterocc.compiler.lower.gpu.reduction.reduction import schedule_rows
from heterocc.compiler.lower.gpu.reduction.teams import Team
from heterocc.compiler.lower.vulkan.lowering import VulkanLowering
from heterocc.runtime.native.vulkan_api import vulkan_unavailable_reason
from tests.compiler.lower import vulkan_run
from tests.compiler.lower.gpu_places import PLACES, device, outputs, runner, wrong
from tests.compiler.lower.gpu_run import Graph, node

RNG = np.random.default_rng(11)
NO_VULKAN = vulkan_unavailable_reason()


def normal(*shape: int, dtype: str = "float32") -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def normalised(x: np.ndarray, axes: tuple[int, ...], epsilon: float = 1e-5) -> np.ndarray:
    mean = x.mean(axes, keepdims=True)
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + epsilon)


def wide(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


REDUCTIONS: dict[str, Callable[..., np.ndarray]] = {
    "ReduceMean": lambda x, axes: x.mean(axes, keepdims=True),
    "ReduceMax": lambda x, axes: x.max(axes, keepdims=True),
    "ReduceMin": lambda x, axes: x.min(axes, keepdims=True),
    "ReduceProd": lambda x, axes: x.prod(axes, keepdims=True),
    "ReduceL2": lambda x, axes: np.sqrt((x**2).sum(axes, keepdims=True)),
    "ReduceLogSumExp": lambda x, axes: np.log(np.exp(x).sum(axes, keepdims=True)),
}
SHAPES: list[tuple[tuple[int, ...], tuple[int, ...]]] = [
    ((3, 5, 7, 11), (2, 3)),  # a global pool of odd size
    ((3, 5, 7, 16), (1, 2)),  # neighbouring rows side by side
    ((257, 2), (0,)),
    ((1, 4099), (0, 1)),  # one row
    ((5, 1, 37, 1), (1, 2, 3)),
    ((6, 4, 33), (0, 2)),  # terms that are not contiguous
]


@pytest.mark.parametrize("place", PLACES)
def test_reductions_over_any_axes_are_right(place: str, tmp_path: Path) -> None:
    inputs = {f"x{i}": (normal(*shape) / 9 + 1).astype(np.float32) for i, (shape, _) in enumerate(SHAPES)}
    nodes, expected = [], []
    for i, (_, axes) in enumerate(SHAPES):
        # every operator for every shape at one place: building kernels takes long
        names = list(REDUCTIONS) if place == "vulkan-as-gpu" else [list(REDUCTIONS)[i]]
        for name in names:
            nodes.append(node(name, f"x{i}", axes=list(axes)))
            expected.append(REDUCTIONS[name](wide(inputs[f"x{i}"]), axes))
    found, rules = outputs(Graph(inputs, nodes), place, tmp_path)
    with np.errstate(over="ignore"):
        assert wrong(found, [e.astype(np.float32).astype(np.float64) for e in expected], 5e-5) == []
    assert "rows" in rules


@pytest.mark.parametrize("place", PLACES)
def test_softmax_and_normalisations_are_right(place: str, tmp_path: Path) -> None:
    x, image = normal(9, 131), normal(2, 6, 7, 13)
    scale, bias, channels = normal(131), normal(131), normal(6)
    graph = Graph(
        {"x": x, "image": image},
        [
            node("Softmax", "x"),
            node("LogSoftmax", "x", axis=0),
            node("Softmax", "image", axis=1),
            node("LayerNormalization", "x", "scale", "bias"),
            node("InstanceNormalization", "image", "channels", "channels"),
            node("LpNormalization", "x", axis=1),
        ],
        {"scale": scale, "bias": bias, "channels": channels},
    )
    along = wide(channels).reshape(1, 6, 1, 1)
    expected = [
        softmax(wide(x), 1),
        np.log(softmax(wide(x), 0)),
        softmax(wide(image), 1),
        normalised(wide(x), (1,)) * scale + bias,
        normalised(wide(image), (2, 3)) * along + along,
        wide(x) / np.sqrt((wide(x) ** 2).sum(1, keepdims=True)),
    ]
    found, rules = outputs(graph, place, tmp_path)
    assert wrong(found, expected, 2e-5) == []
    assert "rows" in rules


@pytest.mark.parametrize("place", PLACES)
def test_what_comes_before_and_after_a_reduction_is_fused_with_it(place: str, tmp_path: Path) -> None:
    x = normal(17, 75)
    graph = Graph(
        {"x": x},
        [
            node("Abs", "x", outputs=["a"]),
            node("Sqrt", "a", outputs=["r"]),
            node("ReduceMean", "r", outputs=["m"], axes=[1]),
            node("Exp", "m", outputs=["e"]),
            node("Neg", "e"),
        ],
    )
    found, rules = outputs(graph, place, tmp_path)
    assert wrong(found, [-np.exp(np.sqrt(np.abs(wide(x))).mean(1, keepdims=True))], 1e-5) == []
    assert "rows" in rules


@pytest.mark.parametrize("place", PLACES)
def test_reductions_of_other_types_are_right(place: str, tmp_path: Path) -> None:
    x = RNG.integers(1, 5, (3, 41))
    narrow, others = ["int8", "uint8"], ["int32", "int64", "uint32", "uint64", "float64"]
    nodes = [node("ReduceMax", dtype, axes=[1]) for dtype in narrow]
    nodes += [node("ReduceSumSquare", dtype, axes=[1]) for dtype in others]
    found, _ = outputs(Graph({dtype: x.astype(dtype) for dtype in narrow + others}, nodes), place, tmp_path)
    assert [f.dtype.name for f in found] == narrow + others
    expected = [wide(x).max(1, keepdims=True)] * 2 + [(wide(x) ** 2).sum(1, keepdims=True)] * 5
    assert wrong(found, expected, 0) == []


@pytest.mark.parametrize("place", [PLACES[1], PLACES[3]])
def test_the_first_or_last_of_the_largest_elements_is_found(place: str, tmp_path: Path) -> None:
    x = RNG.integers(0, 4, (5, 261)).astype(np.float32)
    x[1] = -np.inf
    x[2, 100] = np.nan
    image = normal(2, 19, 6, 9)
    graph = Graph(
        {"x": x, "image": image},
        [
            node("ArgMax", "x", axis=1),
            node("ArgMax", "x", axis=1, select_last_index=1),
            node("ArgMin", "image", axis=1, keepdims=0),
        ],
    )
    clean = np.where(np.isnan(x), -np.inf, x)
    expected = [
        clean.argmax(1, keepdims=True),
        260 - clean[:, ::-1].argmax(1, keepdims=True),
        image.argmin(1),
    ]
    found, _ = outputs(graph, place, tmp_path)
    assert wrong(found, expected, 0) == []


@pytest.mark.parametrize("place", PLACES)
def test_a_masked_row_has_no_softmax_and_the_others_have(place: str, tmp_path: Path) -> None:
    x = normal(4, 70)
    x[1, 3:] = -np.inf
    x[2] = -np.inf
    with np.errstate(invalid="ignore"):
        expected = softmax(wide(x), 1)
    found, _ = outputs(Graph({"x": x}, [node("Softmax", "x")]), place, tmp_path)
    assert wrong(found, [expected], 1e-5) == []


def rows_kernel(shape: tuple[int, int], dtype: str = "float32") -> Any:
    """The sums of squares of the rows of a matrix, less one."""
    x = te.placeholder(shape, dtype, "x")
    k = te.reduce_axis((0, shape[1]), "k")
    total = te.compute((shape[0],), lambda i: te.sum(x[i, k] * x[i, k], axis=k), "total")
    less = te.compute((shape[0],), lambda i: total[i] - tirx.const(1, dtype), "less")
    return te.create_prim_func([x, less])


@pytest.mark.skipif(NO_VULKAN is not None, reason=f"no Vulkan device: {NO_VULKAN}")
@pytest.mark.parametrize("group", [1, 2, 32, 256])
@pytest.mark.parametrize("shape", [(1, 1), (1, 997), (61, 43), (300, 64)])
def test_every_group_size_and_a_short_grid_give_the_same_sums(group: int, shape: tuple[int, int]) -> None:
    x = normal(*shape)
    limits = Limits(group, False, NUMERIC_DTYPES, grid=7, shared=16384)
    packed = schedule_rows(rows_kernel(shape), limits)
    assert (packed is None) == (shape[1] == 1)
    if packed is None:
        return
    vulkan_run.assert_valid(vulkan_run.kernels_of(packed.function))
    found = vulkan_run.call(packed.function, [x], np.full(shape[0], np.nan, np.float32))
    assert wrong([found], [(wide(x) ** 2).sum(1) - 1], 2e-6) == []


@pytest.mark.skipif(NO_VULKAN is not None, reason=f"no Vulkan device: {NO_VULKAN}")
def test_sums_of_halves_are_accumulated_in_float32() -> None:
    x = np.full((3, 4096), 0.1, np.float16)
    packed = schedule_rows(rows_kernel(x.shape, "float16"), Limits(64, False, NUMERIC_DTYPES, shared=16384))
    assert packed is not None
    found = vulkan_run.call(packed.function, [x], np.zeros(3, np.float16))
    assert wrong([found], [(wide(x) ** 2).sum(1) - 1], 1e-3) == []


@pytest.mark.skipif(NO_VULKAN is not None, reason=f"no Vulkan device: {NO_VULKAN}")
def test_sums_of_more_terms_than_a_software_device_loops_are_right() -> None:
    x = normal(1, 200_001)
    limits = Limits(256, False, NUMERIC_DTYPES, shared=32768, software=True)
    packed = schedule_rows(rows_kernel((1, 200_001)), limits)
    assert packed is not None
    found = vulkan_run.call(packed.function, [x], np.zeros(1, np.float32))
    assert wrong([found], [(wide(x) ** 2).sum(1) - 1], 1e-5) == []


@pytest.mark.skipif(NO_VULKAN is not None, reason=f"no Vulkan device: {NO_VULKAN}")
@pytest.mark.parametrize(
    "team",
    [Team(8, 1, False, 7), Team(4, 8, True, 3), Team(1, 4, True, 5), Team(2, 4, False, 2), Team(16, 1, False, 64)],
)
@pytest.mark.parametrize("shape", [(1, 997), (61, 43)])
def test_every_number_of_groups_that_share_a_row_gives_the_same_sums(team: Team, shape: tuple[int, int]) -> None:
    x = normal(*shape)
    limits = Limits(256, False, NUMERIC_DTYPES, grid=7, shared=16384, choose=lambda _name, _options: team)
    packed = schedule_rows(rows_kernel(shape), limits)
    assert packed is not None
    kernels = vulkan_run.kernels_of(packed.function)
    vulkan_run.assert_valid(kernels)
    assert len(kernels) == 2
    found = vulkan_run.call(packed.function, [x], np.full(shape[0], np.nan, np.float32))
    assert wrong([found], [(wide(x) ** 2).sum(1) - 1], 2e-6) == []


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES[1:3])
def test_sums_of_many_terms_are_shared_by_groups_and_round_little(place: str, tmp_path: Path) -> None:
    x = RNG.uniform(0, 1, (1, 1_000_003)).astype(np.float32)
    x[0, ::1000] = -1
    graph = Graph({"x": x}, [node("ReduceMean", "x", axes=[1]), node("ArgMin", "x", axis=1, select_last_index=1)])
    api = runner(place)
    model, lowered = api.lower(graph, tmp_path, device(place))
    launches = str(dict(lowered.dumps)["scheduled.py"]).count('thread="threadIdx.x"')
    mean, place_of = api.run(model, lowered, graph.inputs)
    assert launches == 4
    assert abs(float(mean[0, 0]) / wide(x).mean() - 1) < 3e-7
    assert place_of[0, 0] == 1_000_000


def test_rows_are_shared_if_the_device_takes_the_results_of_the_parts_too() -> None:
    function = rows_kernel((1, 1 << 20))
    for buffers, launches in ((3, 2), (2, 1)):
        packed = schedule_rows(function, Limits(64, False, NUMERIC_DTYPES, shared=16384, buffers=buffers))
        assert packed is not None
        assert str(packed.function.script()).count('thread="threadIdx.x"') == launches


@pytest.mark.skipif(NO_VULKAN is not None, reason=f"no Vulkan device: {NO_VULKAN}")
@pytest.mark.parametrize("operator", ["ReduceMax", "Softmax", "MatMul"])
def test_what_one_group_would_go_round_too_often_for_is_taken_by_many(operator: str, tmp_path: Path) -> None:
    terms = 20_000_000
    shapes = {"a": [1, terms], **({"b": [terms, 1]} if operator == "MatMul" else {})}
    graph = helper.make_graph(
        [helper.make_node(operator, list(shapes), ["y"], name="n")],
        "long",
        [helper.make_tensor_value_info(name, 1, shape) for name, shape in shapes.items()],
        [helper.make_tensor_value_info("y", 1, None)],
    )
    path = tmp_path / "long.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    model = import_model(path)
    assert VulkanLowering().trial(model, model.graph.nodes[0].name, device("vulkan")) is None


def test_all_items_of_a_group_meet_at_every_barrier() -> None:
    packed = schedule_rows(rows_kernel((61, 43)), Limits(64, False, NUMERIC_DTYPES, shared=16384))
    assert packed is not None
    text = str(packed.function.script())
    indents = {len(line) - len(line.lstrip()) for line in text.splitlines() if "tvm_storage_sync" in line}
    items = next(line for line in text.splitlines() if 'thread="threadIdx.x"' in line)
    assert indents == {len(items) - len(items.lstrip()) + 4}


def test_windows_and_shared_operands_are_left_to_other_rules() -> None:
    x = te.placeholder((8, 40), "float32", "x")
    k = te.reduce_axis((0, 3), "k")
    window = te.compute((8, 38), lambda i, j: te.max(x[i, j + k], axis=k), "window")
    limits = Limits(64, False, NUMERIC_DTYPES, shared=16384)
    assert schedule_rows(te.create_prim_func([x, window]), limits) is None
    double = te.compute((8, 40), lambda i, j: x[i, j] * 2.0, "double")
    assert schedule_rows(te.create_prim_func([x, double]), limits) is None


@pytest.mark.parametrize("place", PLACES)
def test_a_normalisation_is_one_kernel(place: str, tmp_path: Path) -> None:
    x = normal(6, 50)
    graph = Graph(
        {"x": x},
        [node("LayerNormalization", "x", "scale", outputs=["first"]), node("LayerNormalization", "first", "scale")],
        {"scale": normal(50)},
    )
    scale = wide(graph.constants["scale"])
    api = runner(place)
    model, lowered = api.lower(graph, tmp_path, device(place))
    assert [k.nodes for k in lowered.kernels] == [(n.name,) for n in model.graph.nodes]
    assert str(dict(lowered.dumps)["scheduled.py"]).count("@T.prim_func") == 1  # equal ones share their code
    found = api.run(model, lowered, graph.inputs)
    assert wrong(found, [normalised(normalised(wide(x), (1,)) * scale, (1,)) * scale], 1e-5) == []


@pytest.mark.parametrize("place", PLACES[1:3])
def test_cheap_arithmetic_before_a_normalisation_is_part_of_its_kernel(place: str, tmp_path: Path) -> None:
    x, z = normal(6, 50), normal(4, 30)
    graph = Graph(
        {"x": x, "z": z},
        [
            node("Mul", "x", "x", outputs=["squares"]),
            node("ReduceMean", "squares", outputs=["mean"], axes=[1]),
            node("Sqrt", "mean", outputs=["root"]),
            node("Div", "x", "root"),
            node("Tanh", "z", outputs=["dear"]),
            node("Softmax", "dear"),
        ],
    )
    api = runner(place)
    model, lowered = api.lower(graph, tmp_path, device(place))
    assert sorted(len(k.nodes) for k in lowered.kernels) == [1, 1, 4]
    found = api.run(model, lowered, graph.inputs)
    root = np.sqrt((wide(x) ** 2).mean(1, keepdims=True))
    assert wrong(found, [wide(x) / root, softmax(np.tanh(wide(z)), 1)], 1e-5) == []
