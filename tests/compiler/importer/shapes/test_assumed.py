"""Sizes that nodes need, of models without ONNX Runtime as a device."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import helper

from heterocc.artifacts.manifest import Range
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.pipeline import import_model
from tests.symbolic_models import dynamic_model

N = helper.make_node
IMAGE = {"x": ("float32", (1, 4, "side", 8))}


def pyramid() -> onnx.ModelProto:
    """A map that is halved three times, doubled, and added to the one before."""
    rng = np.random.default_rng(0)
    arrays = {"w": rng.standard_normal((4, 4, 3, 3), dtype=np.float32), "s": np.array([1, 1, 2, 2], np.float32)}
    halved = {"strides": [2, 2], "pads": [1, 1, 1, 1]}
    nodes = [
        N("Conv", ["x", "w"], ["a"], **halved),
        N("Conv", ["a", "w"], ["b"], **halved),
        N("Conv", ["b", "w"], ["c"], **halved),
        N("Resize", ["c", "", "s"], ["d"], mode="nearest"),
        N("Add", ["b", "d"], ["y"]),
    ]
    return dynamic_model(nodes, IMAGE, ["y"], arrays)


def patches(*, token: bool) -> onnx.ModelProto:
    """A position is added to each patch of an image, as in SigLIP, and to a token before them, as in ViT."""
    rng = np.random.default_rng(0)
    arrays = {
        "w": rng.standard_normal((4, 3, 8, 8), dtype=np.float32),
        "flat": np.array([0, 4, -1]),
        "token": rng.standard_normal((1, 1, 4), dtype=np.float32),
        "table": rng.standard_normal((1, 16 + token, 4), dtype=np.float32),
    }
    nodes = [
        N("Conv", ["x", "w"], ["p"], strides=[8, 8]),
        N("Reshape", ["p", "flat"], ["f"]),
        N("Transpose", ["f"], ["t"], perm=[0, 2, 1]),
        *([N("Concat", ["token", "t"], ["all"], axis=1)] if token else []),
        N("Add", ["all" if token else "t", "table"], ["y"]),
    ]
    return dynamic_model(nodes, {"x": ("float32", (1, 3, "high", "wide"))}, ["y"], arrays)


def imported(nodes: list[onnx.NodeProto], shape: tuple[int | str, ...], **arrays: object) -> ImportedModel:
    constants = {name: np.array(value) for name, value in arrays.items()}
    model = dynamic_model(nodes, {"x": ("float32", shape)}, ["y"], constants)  # type: ignore[arg-type]
    return import_model(model, keep_dims=True, assume=True)


def test_maps_that_are_halved_and_doubled_need_a_multiple() -> None:
    model = import_model(pyramid(), keep_dims=True, assume=True)
    assert model.symbols is not None and model.symbols.steps == {"side": 8}
    assert model.bounds["side"] == Range(min=8, step=8)
    assert model.graph.values[model.graph.outputs[0]].shape == (1, 4, "2*(side)//8", 2)
    assert any("'side' must be a multiple of 8" in note for note in model.notes)
    assert model.samples["x"][2] % 8 == 0


def test_nothing_is_assumed_of_a_size_that_is_known_only_at_run_time() -> None:
    """The import would assume it again and again."""
    nodes = [N("NonZero", ["x"], ["places"]), N("MatMul", ["places", "w"], ["y"])]
    model = imported(nodes, ("n",), w=np.ones((8, 2), np.int64))
    assert model.symbols is not None and "places.1" in model.symbols.fresh and not model.notes


def test_nothing_is_assumed_if_another_device_takes_all_sizes() -> None:
    model = import_model(pyramid(), keep_dims=True)
    assert model.symbols is not None and not model.symbols.steps and not model.notes


def test_a_computed_size_that_must_be_a_number_bounds_the_dimension() -> None:
    nodes = [
        N("AveragePool", ["x"], ["p"], kernel_shape=[3, 1], strides=[3, 1]),
        N("Concat", ["p", "one"], ["y"], axis=3),
    ]
    model = imported(nodes, (1, 4, "high", "wide"), one=np.ones((1, 4, 1, 2), np.float32))
    assert model.bounds["high"] == Range(min=3, max=5)
    assert model.graph.values[model.graph.outputs[0]].shape == (1, 4, 1, "wide + 2")


@pytest.mark.parametrize("token", [False, True])
def test_a_number_of_patches_is_that_of_the_positions(token: bool) -> None:
    model = import_model(patches(token=token), keep_dims=True, assume=True)
    assert model.assumes and model.bounds["high"].max is None
    assert model.graph.values[model.graph.outputs[0]].shape == (1, 16 + token, 4)
    assert any(f"must be {16 + token}" in note for note in model.notes)
    assert model.samples["x"] == (1, 3, 32, 32)


def test_a_dimension_that_must_be_one_size_becomes_this_number() -> None:
    model = imported([N("Add", ["x", "t"], ["y"])], ("batch", "steps"), t=np.ones((1, 16), np.float32))
    assert model.graph.values[model.graph.inputs[0]].shape == ("batch", 16)
    assert "'steps' must be 16" in model.notes[0]


def test_an_image_that_is_cut_into_squares_and_put_together_needs_sides_of_whole_squares() -> None:
    """As exporters of TorchScript write the padding of a window, which they leave out of what reads the result."""
    nodes = [
        N("Shape", ["x"], ["s"], start=1, end=3),
        N("Mod", ["s", "four"], ["over"]),
        N("Sub", ["four", "over"], ["more"]),
        N("Mod", ["more", "four"], ["pads"]),
        N("Gather", ["pads", "zero"], ["down"]),
        N("Gather", ["pads", "one"], ["right"]),
        N("Concat", ["zero", "right", "zero", "down", "zero", "zero"], ["listed"], axis=0),
        N("Reshape", ["listed", "pairs"], ["table"]),
        N("Slice", ["table", "last", "end", "zero", "last"], ["turned"]),
        N("Transpose", ["turned"], ["columns"], perm=[1, 0]),
        N("Reshape", ["columns", "last"], ["amounts"]),
        N("Pad", ["x", "amounts"], ["padded"]),
        N("Add", ["x", "padded"], ["y"]),
    ]
    lists = {"four": [4, 4], "one": [1], "zero": [0], "pairs": [-1, 2], "last": [-1], "end": [-(2**62)]}
    model = imported(nodes, (1, "height", "width"), **lists)
    assert model.symbols is not None and model.symbols.steps == {"height": 4, "width": 4}
    assert model.graph.values[model.graph.outputs[0]].shape == (1, "4*(height)//4", "4*(width)//4")


def test_sizes_of_two_names_that_are_equal_for_multiples_of_both_give_these() -> None:
    nodes = [
        N("AveragePool", ["x"], ["p"], kernel_shape=[2, 3], strides=[2, 3]),
        N("Resize", ["p", "", "s"], ["r"], mode="nearest"),
        N("Reshape", ["r", "flat"], ["one"]),
        N("Reshape", ["x", "flat"], ["other"]),
        N("Add", ["one", "other"], ["y"]),
    ]
    model = imported(nodes, (1, 1, "high", "wide"), s=np.array([1, 1, 2, 3], np.float32), flat=[-1])
    assert model.symbols is not None and model.symbols.steps == {"high": 2, "wide": 3}
    assert "'high' must be a multiple of 2, 'wide' must be a multiple of 3" in model.notes[0]


def test_a_range_of_floats_to_a_size_has_a_known_length() -> None:
    nodes = [
        N("Shape", ["x"], ["n"]),
        N("Squeeze", ["n"], ["whole"]),
        N("Cast", ["whole"], ["end"], to=1),
        N("Range", ["start", "end", "step"], ["places"]),
        N("Add", ["x", "places"], ["y"]),
    ]
    model = imported(nodes, ("n",), start=np.float32(0), step=np.float32(1))
    assert model.graph.values[model.graph.outputs[0]].shape == ("n",)


def test_sizes_that_are_equal_for_dimensions_of_1_or_more_are_taken_for_equal() -> None:
    nodes = [
        N("Concat", ["x", "x"], ["twice"], axis=0),
        N("Slice", ["twice", "one", "end", "zero"], ["rest"]),
        N("Shape", ["twice"], ["s"], end=1),
        N("Shape", ["twice"], ["b"], start=1),
        N("Sub", ["s", "one"], ["less"]),
        N("Concat", ["b", "less"], ["wanted"], axis=0),
        N("Reshape", ["rest", "wanted"], ["y"]),
    ]
    model = imported(nodes, ("n", "m"), one=[1], end=[2**62], zero=[0])
    assert model.graph.values[model.graph.outputs[0]].shape == ("m", "2*n - 1")
    assert model.symbols is not None and model.symbols.filled == {"n", "m"}


@pytest.mark.parametrize("shift", [2, -2])
def test_a_row_that_is_shifted_by_a_number_modulo_its_length_keeps_its_length(shift: int) -> None:
    nodes = [
        N("Shape", ["x"], ["n"], start=1),
        N("Mod", ["shift", "n"], ["by"]),
        N("Slice", ["x", "by", "n", "one"], ["behind"]),
        N("Slice", ["x", "zero", "by", "one"], ["before"]),
        N("Concat", ["behind", "before"], ["turned"], axis=1),
        N("Add", ["x", "turned"], ["y"]),
    ]
    model = imported(nodes, ("b", "n"), shift=[shift], one=[1], zero=[0])
    assert model.graph.values[model.graph.outputs[0]].shape == ("b", "n")
    assert model.bounds["n"] == Range(min=3)  # neither part is empty


@pytest.mark.parametrize(("start", "step", "expected"), [(9, -1, "min(10, n)"), (-1, -2, "(n + 1)//2")])
def test_slices_that_run_backwards(start: int, step: int, expected: str) -> None:
    node = N("Slice", ["x", "start", "end", "axis", "step"], ["y"])
    model = imported([node], ("n",), start=[start], end=[-(2**60)], axis=[0], step=[step])
    assert model.graph.values[model.graph.outputs[0]].shape == (expected,)


def test_a_slice_to_a_computed_end_gets_a_least_size() -> None:
    nodes = [
        N("Shape", ["x"], ["n"]),
        N("Sub", ["n", "rest"], ["short"]),
        N("Mod", ["short", "hop"], ["over"]),
        N("Sub", ["n", "over"], ["end"]),
        N("Slice", ["x", "start", "end", "axis"], ["part"]),
        N("Reshape", ["part", "rows"], ["y"]),
    ]
    model = imported(nodes, ("n",), rest=[400], hop=[160], start=[240], axis=[0], rows=[-1, 160])
    assert model.graph.values[model.graph.outputs[0]].shape == ("(n + 80)//160 - 2", 160)
    assert model.bounds["n"] == Range(min=400)


def test_a_range_that_counts_down_through_floats_has_a_known_length() -> None:
    nodes = [
        N("Shape", ["x"], ["n"]),
        N("Cast", ["n"], ["f"], to=1),
        N("Neg", ["f"], ["g"]),
        N("Squeeze", ["f"], ["first"]),
        N("Squeeze", ["g"], ["last"]),
        N("Cast", ["first"], ["one"], to=7),
        N("Cast", ["last"], ["other"], to=7),
        N("Range", ["one", "other", "step"], ["y"]),
    ]
    model = imported(nodes, ("n",), step=-1)
    assert model.graph.values[model.graph.outputs[0]].shape == ("2*n",)


def test_a_float_quotient_is_exact_until_it_is_rounded() -> None:
    nodes = [
        N("Shape", ["x"], ["n"]),
        N("Cast", ["n"], ["f"], to=1),
        N("Div", ["f", "two"], ["half"]),
        N("Add", ["half", "half"], ["twice"]),
        N("Cast", ["twice"], ["s"], to=7),
        N("Expand", ["one", "s"], ["y"]),
    ]
    model = imported(nodes, ("n",), two=np.array([2], np.float32), one=np.ones(1, np.float32))
    assert model.graph.values[model.graph.outputs[0]].shape == ("n",)


def test_a_dimension_with_which_two_products_are_equal_for_one_size_becomes_this_size() -> None:
    """A batch that is exported as if it were 1: 576 * batch * seq must equal 576 * seq."""
    nodes = [N("Reshape", ["x", "rows"], ["r"]), N("Concat", ["r", "s"], ["y"], axis=1)]
    model = dynamic_model(
        nodes,
        {"x": ("float32", ("batch", "seq", 576)), "s": ("float32", ("seq", 3))},
        ["y"],
        {"rows": np.array([-1, 576])},
    )
    found = import_model(model, keep_dims=True, assume=True)
    assert found.graph.values[found.graph.outputs[0]].shape == ("seq", 579)
    assert any("'batch' must be 1" in note for note in found.notes)


def test_a_size_that_is_broadcast_is_not_solved() -> None:
    nodes = [N("Reshape", ["x", "rows"], ["r"]), N("Add", ["r", "s"], ["y"])]
    model = dynamic_model(
        nodes,
        {"x": ("float32", ("batch", "seq", 4)), "s": ("float32", ("seq", 4))},
        ["y"],
        {"rows": np.array([-1, 4])},
    )
    found = import_model(model, keep_dims=True, assume=True)
    assert not any("must be 1" in note for note in found.notes)
