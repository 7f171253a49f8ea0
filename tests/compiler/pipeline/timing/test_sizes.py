"""Plans of models with dynamic sizes are timed at the drawn sizes, and at smaller and larger ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from heterocc.artifacts.manifest import Range
from heterocc.compiler import compile_model
from heterocc.compiler.checking.feed import feed_for
from heterocc.compiler.importer.estimates.runs import Work
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.pipeline.timing.sizes import (
    LITTLE_WORK,
    TIMES,
    at_sizes,
    feeds_between,
    larger_feeds,
    smaller_feeds,
)
from tests.symbolic_models import dynamic_model

NODE = helper.make_node


def imported(nodes: list[object], shape: tuple[int | str, ...], **arrays: object) -> ImportedModel:
    constants = {name: np.array(array) for name, array in arrays.items()}
    return import_model(
        dynamic_model(nodes, {"x": ("float32", shape)}, ["y"], constants),  # type: ignore[arg-type]
        keep_dims=True,
    )


def ranges(bounds: Mapping[str, tuple[int, int]]) -> dict[str, Range]:
    return {name: Range(min=least, max=most) for name, (least, most) in bounds.items()}


def shapes(model: ImportedModel, longer: float = 1.0, **bounds: tuple[int, int]) -> list[tuple[int, ...]]:
    """The shapes of the larger inputs."""
    feeds = larger_feeds(model, feed_for(model, None, 0), ranges(bounds), 0, longer)
    return [feed[model.graph.inputs[0]].shape for feed in feeds]


def small(model: ImportedModel, **bounds: tuple[int, int]) -> list[tuple[int, ...]]:
    """The shapes of the smaller inputs."""
    found = smaller_feeds(model, feed_for(model, None, 0), ranges(bounds), 0)
    return [feed[model.graph.inputs[0]].shape for feed in found]


def test_smaller_inputs_have_a_sixteenth_of_the_elements() -> None:
    assert small(imported([NODE("Relu", ["x"], ["y"])], ("batch", "n"))) == [(1, 8), (1, 32)]
    picture = imported([NODE("Relu", ["x"], ["y"])], ("batch", 3, "height", "width"))
    assert picture.sample(picture.graph.inputs[0]).shape == (1, 3, 224, 224)
    assert small(picture) == [(1, 3, 56, 56), (1, 3, 112, 112)]
    assert small(imported([NODE("Relu", ["x"], ["y"])], ("batch", "n")), n=(100, 200)) == [(1, 100)]
    assert small(imported([NODE("Relu", ["x"], ["y"])], (1, 8))) == []


def test_sizes_follow_those_of_the_timed_inputs() -> None:
    """Where the import found no shapes that ONNX Runtime runs soon enough, the inputs of the check have some."""
    model = replace(imported([NODE("Relu", ["x"], ["y"])], ("batch", "n")), samples={})
    feed = {model.graph.inputs[0]: np.zeros((3, 64), np.float32)}
    found = [next(smaller_feeds(model, feed, {}, 0)), next(larger_feeds(model, feed, {}, 0, 1.0))]
    assert [one[model.graph.inputs[0]].shape for one in found] == [(3, 4), (3, 64 * TIMES[0])]


def test_a_note_has_the_sizes_of_the_first_dimensions_only() -> None:
    model = imported([NODE("Relu", ["x"], ["y"])], tuple(f"d{n}" for n in range(10)))
    found = at_sizes(model, {model.graph.inputs[0]: np.zeros((2,) * 10, np.float32)})
    assert found == f" at {', '.join(f'd{n}=2' for n in range(8))}, …"


def test_there_are_sizes_between_the_drawn_and_far_larger_ones() -> None:
    model = imported([NODE("Relu", ["x"], ["y"])], ("batch", "n"))
    name = model.graph.inputs[0]

    def between(size: int) -> list[tuple[int, ...]]:
        small, large = ({name: np.zeros((2, n), np.float32)} for n in (128, size))
        return [feed[name].shape for feed in feeds_between(model, small, 0, large)]

    assert between(8192) == [(2, 1024)] and between(512) == []


def test_smaller_inputs_are_not_too_much_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight that a run widens may be more memory than larger inputs are allowed to take."""
    monkeypatch.setattr("heterocc.compiler.pipeline.timing.sizes.LITTLE_WORK", Work(1.0, 1))
    model = imported([NODE("Relu", ["x"], ["y"])], ("batch", "n"))
    assert small(model) and not shapes(model)


def test_a_signal_is_far_longer_than_the_drawn_one_and_its_batch_is_not() -> None:
    model = imported([NODE("Relu", ["x"], ["y"])], ("batch", "n"))
    assert model.sample(model.graph.inputs[0]).shape == (1, 128)
    assert shapes(model) == [(1, 128 * times) for times in TIMES]


def test_rows_of_a_table_are_more_than_one() -> None:
    model = imported([NODE("MatMul", ["x", "w"], ["y"])], ("rows", 8), w=np.ones((8, 4), np.float32))
    assert shapes(model) == [(times, 8) for times in TIMES]


def test_a_run_at_larger_sizes_is_little_work() -> None:
    square = [NODE("MatMul", ["x", "w"], ["a"]), NODE("Transpose", ["a"], ["t"], perm=[1, 0]),
              NODE("MatMul", ["a", "t"], ["y"])]  # fmt: skip
    model = imported(square, ("batch", 256), w=np.ones((256, 64), np.float32))
    found = shapes(model)
    assert found and all(2 * 64 * n * n <= LITTLE_WORK.flops for n, _ in found)
    heavy = imported([NODE("MatMul", ["x", "w"], ["y"])], ("batch", "n", 2048), w=np.ones((2048, 2048), np.float32))
    assert shapes(heavy) == []
    assert shapes(heavy, longer=5.0) == [(1, 512, 2048)]  # where a run was seen to take little time for its operations


def test_sides_of_a_larger_picture_have_a_product() -> None:
    weights = {"w": np.ones((64, 3, 3, 3), np.float32)}
    picture = imported([NODE("Conv", ["x", "w"], ["y"])], ("batch", 3, "height", "width"), **weights)
    assert shapes(picture, longer=5.0) == [(1, 3, 448, 448)]
    assert shapes(picture, longer=3.0) == []


def test_larger_sizes_are_within_the_given_bounds() -> None:
    model = imported([NODE("Relu", ["x"], ["y"])], ("batch", "n"))
    assert shapes(model, n=(1, 1000)) == [(1, 1000), (1, 512)]
    assert shapes(model, n=(1, 128)) == []


def test_plans_are_timed_at_the_largest_sizes_that_the_model_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HETEROCC_CALIBRATION")
    monkeypatch.setenv("HETEROCC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("heterocc.compiler.pipeline.timing.timed_runs.LIMIT", 0.1)
    monkeypatch.setattr("heterocc.compiler.pipeline.timing.timed_runs.ALONE", 0.0)
    nodes = [
        NODE("Shape", ["x"], ["s"], start=1),
        NODE("Squeeze", ["s", "zero"], ["n"]),
        NODE("Range", ["none", "n", "one"], ["places"]),
        NODE("Gather", ["table", "places"], ["positions"]),
        NODE("Add", ["x", "positions"], ["y"]),
    ]
    constants = {"zero": np.array([0]), "none": np.array(0), "one": np.array(1), "table": np.ones(3000, np.float32)}
    proto = dynamic_model(nodes, {"x": ("float32", ("batch", "n"))}, ["y"], constants)
    for again in ("", " by an earlier compile"):
        report = compile_model(proto, tmp_path / "m.hcb")
        (note,) = [text for text in report.notes if text.startswith("timed")]
        at = "batch=1, n=8 and at batch=1, n=128 and at batch=1, n=2048"  # not at 512 times as many
        assert note.startswith(f"timed at {at}{again}: merge"), note
        assert {plan.name for _, plan in report.timed if plan.seconds} == {"merge", "ORT alone"}
