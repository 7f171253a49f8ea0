from __future__ import annotations

import numpy as np
import pytest
import tvm
from onnx import helper
from tvm import relax

from heterocc.artifacts.errors import LoweringError
from heterocc.compiler.lower.converters.resize.resize_operators import axis_table
from heterocc.compiler.lower.pipeline import KernelModule, destination_passing, kernel_module
from tests.compiler.lower.lowered import job, model, run_cpu

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4) - 11
node = helper.make_node


def kernels(made: object) -> KernelModule:
    return kernel_module(job(made), tvm.target.Target("llvm"))  # type: ignore[arg-type]


def test_every_kind_of_output_gets_its_own_memory() -> None:
    weight = np.arange(32, dtype=np.float32)
    made = model(
        [
            node("Relu", ["x"], ["a"]),
            node("Identity", ["a"], ["again"]),
            node("Identity", ["x"], ["input"]),
            node("Identity", ["w"], ["weight"]),
            node("Reshape", ["a", "shape"], ["view"]),
            node("Reshape", ["x", "shape"], ["input_view"]),
            node("Shape", ["x"], ["size"]),
            node("Neg", ["view"], ["b"]),
        ],
        {"x": X},
        ["a", "again", "input", "weight", "view", "input_view", "size", "b"],
        {"w": weight, "shape": np.array([6, 4], np.int64)},
    )
    found = run_cpu(made, {"x": X})
    relu = np.maximum(X, 0)
    np.testing.assert_array_equal(found["a"], relu)
    np.testing.assert_array_equal(found["again"], relu)
    np.testing.assert_array_equal(found["input"], X)
    np.testing.assert_array_equal(found["weight"], weight)
    np.testing.assert_array_equal(found["view"], relu.reshape(6, 4))
    np.testing.assert_array_equal(found["input_view"], X.reshape(6, 4))
    np.testing.assert_array_equal(found["size"], X.shape)
    np.testing.assert_array_equal(found["b"], -relu.reshape(6, 4))


@pytest.mark.parametrize("dtype", ["float64", "float16", "int64", "int32", "int8", "uint8", "bool"])
def test_copies_of_all_dtypes_and_of_scalars_are_exact(dtype: str) -> None:
    array = (np.arange(5) % 2).astype(dtype)
    scalar = np.array(1, dtype=dtype)
    nodes = [node("Identity", ["x"], ["y"]), node("Identity", ["s"], ["t"])]
    found = run_cpu(model(nodes, {"x": array, "s": scalar}, ["y", "t"]), {"x": array, "s": scalar})
    np.testing.assert_array_equal(found["y"], array)
    np.testing.assert_array_equal(found["t"], scalar)
    assert found["t"].shape == ()


def test_a_value_used_inside_and_output_is_right_in_both_places() -> None:
    nodes = [node("Exp", ["x"], ["a"]), node("Sqrt", ["a"], ["b"]), node("Sub", ["b", "a"], ["c"])]
    x = X / 10
    found = run_cpu(model(nodes, {"x": x}, ["a", "c"]), {"x": x})
    np.testing.assert_allclose(found["a"], np.exp(x), rtol=1e-5)
    np.testing.assert_allclose(found["c"], np.sqrt(np.exp(x)) - np.exp(x), rtol=1e-4, atol=1e-5)


def test_kernels_name_every_node_they_compute_and_the_value_they_write() -> None:
    rng = np.random.default_rng(0)
    weights = {f"w{i}": rng.standard_normal((8, 8, 3, 3)).astype(np.float32) for i in range(3)}
    nodes = []
    for i in range(3):
        nodes += [
            node("Conv", [f"v{i}", f"w{i}"], [f"c{i}"], name=f"conv{i}", pads=[1] * 4),
            node("Relu", [f"c{i}"], [f"v{i + 1}"], name=f"relu{i}"),
        ]
    nodes.append(node("Flatten", ["v3"], ["flat"], name="flat"))
    nodes.append(node("Softmax", ["flat"], ["y"], name="soft"))
    x = rng.standard_normal((1, 8, 6, 6)).astype(np.float32)
    module = kernels(model(nodes, {"v0": x}, ["y"], weights))
    table = [(k.symbol, k.nodes, k.outputs) for k in module.kernels]
    assert table[:3] == [(f"conv{i}_and_1_more", (f"conv{i}", f"relu{i}"), (f"v{i + 1}",)) for i in range(3)]
    assert table[3] == ("soft", ("soft",), ("y",))
    # Three equal convolutions are one function.
    assert sum(gv.name_hint.startswith("conv") for gv in module.mod.get_global_vars()) == 1


def test_symbols_are_c_identifiers_of_bounded_length_and_never_main() -> None:
    names = ["main", "1/x", "a" * 300, "main_1"]
    nodes = [node("Erf", [f"v{i}"], [f"v{i + 1}"], name=n) for i, n in enumerate(names)]
    made = model(nodes, {"v0": X}, [f"v{i}" for i in range(1, 5)])
    symbols = [k.symbol for k in kernels(made).kernels]
    assert len(set(symbols)) == len(symbols) == 4
    assert all(s.isidentifier() and len(s) <= 100 and s != "main" for s in symbols)


def test_weights_are_arguments_and_unchanged_ones_are_the_models_own_memory() -> None:
    rng = np.random.default_rng(0)
    weights = {
        "m": rng.standard_normal((16, 8)).astype(np.float32),
        "bias": rng.standard_normal(8).astype(np.float32),
        "table": np.arange(40, dtype=np.int64) % 3,
    }
    nodes = [
        node("Gemm", ["x", "m", "bias"], ["g"]),
        node("Gather", ["g", "table"], ["y"], axis=0),
    ]
    x = rng.standard_normal((3, 16)).astype(np.float32)
    module = kernels(model(nodes, {"x": x}, ["y"], weights))
    assert any(np.shares_memory(a, weights["m"]) for a in module.arrays.values())
    assert any(a.dtype == np.int32 and a.shape == (40,) for a in module.arrays.values())
    assert not [k for k in module.kernels if not k.nodes]


def test_what_depends_on_weights_alone_is_computed_while_compiling() -> None:
    rng = np.random.default_rng(0)
    arrays = {n: rng.random(32).astype(np.float32) + 0.5 for n in ("scale", "bias", "mean", "variance")}
    nodes = [
        node("Tanh", ["scale"], ["s"], name="tanh"),
        node("BatchNormalization", ["x", "s", "bias", "mean", "variance"], ["y"], name="bn"),
    ]
    x = rng.standard_normal((1, 32, 3)).astype(np.float32)
    made = model(nodes, {"x": x}, ["y"], arrays)
    assert [k.nodes for k in kernels(made).kernels] == [("bn",)]
    scale = np.tanh(arrays["scale"]) / np.sqrt(arrays["variance"] + 1e-5)
    wanted = (x[0] - arrays["mean"][:, None]) * scale[:, None] + arrays["bias"][:, None]
    np.testing.assert_allclose(run_cpu(made, {"x": x})["y"][0], wanted, rtol=1e-4, atol=1e-5)


def test_sixty_four_bit_constants_keep_their_width() -> None:
    big = np.array([2**40, 5], dtype=np.int64)
    x = np.array([1, 2], dtype=np.int64)
    nodes = [node("Add", ["x", "big"], ["y"]), node("Mul", ["x", "one"], ["z"])]
    found = run_cpu(model(nodes, {"x": x}, ["y", "z"], {"big": big, "one": np.array(2**35)}), {"x": x})
    np.testing.assert_array_equal(found["y"], x + big)
    np.testing.assert_array_equal(found["z"], x * 2**35)


def test_an_operator_without_converter_is_refused_by_the_nodes_own_name() -> None:
    lost = node("SoftmaxCrossEntropyLoss", ["x", "classes"], ["y"], name="lost")  # the import expands it
    made = model([lost], {"x": np.eye(3, dtype=np.float32)}, ["y"], {"classes": np.arange(3)})
    with pytest.raises(LoweringError, match="no converter for SoftmaxCrossEntropyLoss") as caught:
        kernels(made)
    assert caught.value.where == "node 'model/lost' (SoftmaxCrossEntropyLoss)"


def test_a_shape_that_depends_on_data_is_refused() -> None:
    x = np.array([0, 1, 2], dtype=np.float32)
    made = model([node("NonZero", ["x"], ["y"], name="nz")], {"x": x}, ["y"])
    with pytest.raises(LoweringError, match="depends on data"):
        kernels(made)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("transform", ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"])
def test_resize_weights_of_every_output_sum_to_one(mode: str, transform: str) -> None:
    for size, out in ((7, 3), (5, 11), (1, 4), (6, 1)):
        attrs = {"mode": mode, "coordinate_transformation_mode": transform}
        index, weight = axis_table(size, out / size, out, attrs)
        assert index.min() >= 0 and index.max() < size
        np.testing.assert_allclose(weight.sum(axis=1), 1)


def test_gather_counts_negative_indices_from_the_end_and_never_reads_outside() -> None:
    x = np.arange(10, dtype=np.float32) + 1
    where = np.array([0, -1, 9, -10, 99, -99], dtype=np.int64)
    made = model([node("Gather", ["x", "i"], ["y"])], {"x": x, "i": where[:4]}, ["y"])
    np.testing.assert_array_equal(run_cpu(made, {"x": x, "i": where[:4]})["y"], [1, 10, 10, 1])
    with pytest.raises(ValueError, match="an index is out of range for a dimension of 10"):
        run_cpu(made, {"x": x, "i": where[2:]})
    made = model([node("Gather", ["x", "i"], ["y"])], {"x": x}, ["y"], {"i": where[:4]})
    np.testing.assert_array_equal(run_cpu(made, {"x": x})["y"], [1, 10, 10, 1])
    with pytest.raises(LoweringError, match="out of range for a dimension of 10"):
        kernels(model([node("Gather", ["x", "i"], ["y"])], {"x": x}, ["y"], {"i": where}))


def test_the_parts_of_a_program_check_their_own_weights_alone() -> None:
    # TVM checks each field of the tuple that has a type, in each call.
    weight = np.arange(12, dtype=np.float32).reshape(4, 3)
    made = kernels(model([node("MatMul", ["x", "w"], ["y"])], {"x": X}, ["y"], {"w": weight}))
    entry = destination_passing(made, weights_before=2, weights_after=1)
    fields = entry["main"].params[-1].ty.fields
    assert [isinstance(field, relax.TensorType) for field in fields] == [False, False, True, False]
