"""Models with dynamic dimensions on OpenCL and Vulkan devices: bounds, sizes within them, and larger ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

from heterocc.artifacts.errors import FeedError
from heterocc.artifacts.reader import open_bundle
from heterocc.compiler import Reporter, compile_model, query_model, verify_bundle
from heterocc.runtime import load
from heterocc.runtime.native import opencl_unavailable_reason, vulkan_unavailable_reason
from tests.compiler.onnx_build import noise
from tests.fresh_process import fresh
from tests.symbolic_models import convolutions, dynamic_model, filtered, transformer


def _apis() -> list[Any]:
    reasons = {"OPENCL": opencl_unavailable_reason(), "VULKAN": vulkan_unavailable_reason()}
    return [
        pytest.param(name, marks=[getattr(pytest.mark, name.lower()), pytest.mark.skipif(bool(why), reason=str(why))])
        for name, why in reasons.items()
    ]


on_each_gpu = pytest.mark.parametrize("gpu", _apis())


def products() -> onnx.ModelProto:
    """Two products with an activation between them, over a dynamic batch and sequence."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
        helper.make_node("Tanh", ["a"], ["b"], name="middle"),
        helper.make_node("MatMul", ["b", "v"], ["y"], name="last"),
    ]
    inputs = {"x": ("float32", ("batch", "steps", 6))}
    return dynamic_model(nodes, inputs, ["y"], {"w": noise(6, 8), "v": noise(8, 3)})


def tiles() -> onnx.ModelProto:
    """A strided convolution to images of any size, and products of its rows by weights and with each other."""
    n = helper.make_node
    nodes = [
        n("Conv", ["x", "w", "b"], ["c"], name="conv", pads=[1, 1, 1, 1], strides=[2, 2]),
        n("Relu", ["c"], ["r"], name="relu"),
        n("MatMul", ["r", "p"], ["left"], name="dense"),
        n("Transpose", ["r"], ["t"], name="turned", perm=[0, 1, 3, 2]),
        n("MatMul", ["t", "r"], ["y"], name="scores"),
    ]
    weights = {"w": noise(19, 8, 3, 3), "b": noise(19), "p": noise(6, 21)}
    return dynamic_model(nodes, {"x": ("float32", ("batch", 8, "height", 12))}, ["left", "y"], weights)


def reference(path: Path, feed: Mapping[str, np.ndarray]) -> list[Any]:
    return list(onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, dict(feed)))


def saved(folder: Path, model: onnx.ModelProto) -> Path:
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


RUN = """
import numpy as np
from heterocc.runtime import load
for number in range({count}):
    feed = dict(np.load("{folder}/in%d.npz" % number))
    if number == 0:
        session = load("{folder}/m.hcb")
    found = session.run(feed)
    np.savez("{folder}/out%d.npz" % number, **found)
    print(session.variant.name, session.allocated_bytes)
session.close()
"""


def runs(path: Path, feeds: list[dict[str, np.ndarray]]) -> list[tuple[str, int]]:
    """Run a bundle beside its model on several inputs in a fresh process, and compare with ONNX Runtime.

    Returns the variant of each run, and the bytes that the session had allocated after it.
    """
    for number, feed in enumerate(feeds):
        np.savez(path.parent / f"in{number}.npz", **feed)
    lines = fresh(RUN.format(count=len(feeds), folder=path.parent)).split("\n")
    for number, feed in enumerate(feeds):
        with np.load(path.parent / f"out{number}.npz") as found:
            for name, expected in zip(found, reference(path, feed), strict=True):
                np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-5)
    return [(line.split()[0], int(line.split()[1])) for line in lines if line]


@on_each_gpu
def test_one_bundle_runs_at_all_sizes_within_default_bounds_and_larger_ones_on_the_cpu(
    gpu: str, tmp_path: Path
) -> None:
    path = saved(tmp_path, products())
    reporter = Reporter()
    report = compile_model(path, tmp_path / "m.hcb", devices=f"{gpu},CPU", policy="greedy", reporter=reporter)
    assert report.variants == ("main", "cpu", "main@cpu")
    assert set(report.plan.device_of.values()) == {gpu}
    notes = "; ".join(reporter.notes)
    assert f"memory of {gpu} is planned for batch up to 16, steps up to 512, by default" in notes
    assert "sizes beyond these bounds run on the CPU in variant main" in notes
    with load(tmp_path / "m.hcb") as session:
        used = []
        for batch, steps in ((1, 1), (16, 20), (3, 7), (17, 2)):
            x = noise(batch, steps, 6)
            np.testing.assert_allclose(session.run({"x": x})["y"], reference(path, {"x": x})[0], rtol=1e-4, atol=1e-5)
            used.append((session.variant.name, session.allocated_bytes))
        assert [name for name, _ in used] == ["main", "main", "main", "main@cpu"]
        assert used[0][1] == used[2][1] >= 16 * 512 * 6 * 4  # planned for the bounds, whatever the first size
        empty = {"x": noise(0, 2, 6)}
        assert session.run(empty)["y"].shape == reference(path, empty)[0].shape


@pytest.mark.slow
@on_each_gpu
def test_products_and_convolutions_in_tiles_are_right_at_sizes_that_tiles_do_not_divide(
    gpu: str, tmp_path: Path
) -> None:
    path = saved(tmp_path, tiles())
    options = {"dims": {"batch": (1, 5), "height": (1, 40)}, "policy": "greedy", "cpu_variant": False, "check": False}
    report = compile_model(path, tmp_path / "m.hcb", devices=f"{gpu},CPU", **options)
    assert set(report.plan.device_of.values()) == {gpu}
    with load(tmp_path / "m.hcb") as session:
        for batch, height in ((1, 1), (5, 40), (3, 7), (2, 26), (1, 2)):
            x = noise(batch, 8, height, 12)
            for found, expected in zip(session.run({"x": x}).values(), reference(path, {"x": x}), strict=True):
                np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


@on_each_gpu
def test_a_size_beyond_given_bounds_is_an_error_that_names_dimension_bounds_size_and_flag(
    gpu: str, tmp_path: Path
) -> None:
    path = saved(tmp_path, products())
    report = compile_model(
        path,
        tmp_path / "m.hcb",
        devices=f"{gpu},CPU",
        dims={"batch": (1, 4), "steps": (2, 8)},
        affinity={"middle": "CPU"},
        policy="greedy",
        check=False,
    )
    assert report.variants == ("main", "cpu")
    assert [part.device for part in report.plan.partitions] == [gpu, "CPU", gpu]
    with open_bundle(tmp_path / "m.hcb") as bundle:
        variant = bundle.manifest.variants[0]
        names = {variant.values[int(index)].name: size for index, size in variant.rooms.items()}
        assert names == {"x": 4 * 8 * 6 * 4, "b": 4 * 8 * 8 * 4}
    with load(tmp_path / "m.hcb") as session:
        for shape in ((1, 2, 6), (4, 8, 6), (3, 5, 6)):
            x = noise(*shape)
            np.testing.assert_allclose(session.run({"x": x})["y"], reference(path, {"x": x})[0], rtol=1e-4, atol=1e-5)
        with pytest.raises(FeedError) as caught:
            session.run({"x": noise(5, 8, 6)})
        assert caught.value.message == "dimension 'batch' of input 'x' must be 1 to 4, got 5"
        assert "--dim batch=1..5" in caught.value.command_text()


@on_each_gpu
def test_a_batch_of_separate_items_runs_at_any_size_within_its_bounds(gpu: str, tmp_path: Path) -> None:
    path = saved(tmp_path, products())
    dims = {"batch": (1, 4), "steps": 5}
    compile_model(path, tmp_path / "m.hcb", devices=f"{gpu},CPU", dims=dims, policy="greedy", cpu_variant=False)
    with load(tmp_path / "m.hcb") as session:
        for batch in (1, 4, 3):
            x = noise(batch, 5, 6)
            np.testing.assert_allclose(session.run({"x": x})["y"], reference(path, {"x": x})[0], rtol=1e-4, atol=1e-5)


def test_a_query_says_which_dimensions_are_planned_for_a_gpu(tmp_path: Path) -> None:
    result = query_model(saved(tmp_path, products()), "OPENCL,CPU")
    assert not result.unsupported("OPENCL")
    assert any("batch up to 16, steps up to 512" in note for note in result.notes)


@pytest.mark.slow
@on_each_gpu
def test_an_encoder_runs_at_three_sizes_from_one_bundle(gpu: str, tmp_path: Path) -> None:
    path = saved(tmp_path, transformer())
    report = compile_model(path, tmp_path / "m.hcb", devices=f"{gpu},CPU", policy="greedy")
    assert gpu in report.plan.device_of.values()
    rng = np.random.default_rng(0)
    feeds = []
    for shape in ((1, 3), (4, 40), (16, 8)):
        feeds.append({"ids": rng.integers(0, 50, shape), "mask": rng.integers(0, 2, shape)})
    assert [name for name, _ in runs(path, feeds)] == ["main"] * 3
    assert verify_bundle(tmp_path / "m.hcb", path).ok


@pytest.mark.slow
@on_each_gpu
def test_a_batch_runs_filtered_convolutions_at_three_sizes_from_one_bundle(gpu: str, tmp_path: Path) -> None:
    path = saved(tmp_path, filtered())
    compile_model(path, tmp_path / "m.hcb", devices=f"{gpu},CPU", policy="greedy")
    used = runs(path, [{"x": noise(batch, 3, 28, 28)} for batch in (1, 16, 5)])
    assert [name for name, _ in used] == ["main"] * 3


@pytest.mark.slow
@on_each_gpu
@pytest.mark.parametrize("side", [16, "side"])
def test_convolutions_run_at_three_sizes_from_one_bundle(gpu: str, side: int | str, tmp_path: Path) -> None:
    path = saved(tmp_path, convolutions(side))
    dims = {"batch": (1, 6)} | ({} if side == 16 else {"side": (8, 50)})
    compile_model(path, tmp_path / "m.hcb", devices=f"{gpu},CPU", policy="greedy", dims=dims)
    sizes = [(1, 16), (6, 16), (3, 16)] if side == 16 else [(1, 16), (6, 31), (3, 50)]
    used = runs(path, [{"x": noise(batch, 3, size, size)} for batch, size in sizes])
    assert [name for name, _ in used] == ["main"] * 3


@on_each_gpu
def test_sizes_that_code_would_read_beyond_are_an_error_before_a_gpu_runs(tmp_path: Path, gpu: str) -> None:
    model = onnx.parser.parse_model("""
    <ir_version: 10, opset_import: ["" : 21]>
    net (float[b, n] x, int64[c, n] i) => (float[b, m] y, float[c, n] z)
    {
      p = Constant<value_ints=[0, 4, 0, 4]>()
      y = Pad<mode="reflect">(x, p)
      z = GatherElements<axis=1>(x, i)
    }
    """)
    bounds = {"b": (1, 8), "n": (1, 16), "c": (1, 8)}
    compile_model(model, tmp_path / "m.hcb", devices=f"{gpu},CPU", dims=bounds, cpu_variant=False)
    with load(tmp_path / "m.hcb") as session:
        assert session.devices[0] == gpu
        x, i = np.arange(12, dtype=np.float32).reshape(2, 6), np.zeros((2, 6), np.int64)
        assert session.run({"x": x, "i": i})["y"].shape == (2, 14)
        with pytest.raises(FeedError, match=r"'n' of input 'x' is 4: Pad .* 5 or more, not 4"):
            session.run({"x": x[:, :4], "i": i[:, :4]})
        with pytest.raises(FeedError, match=r"GatherElements .* 5 or more, not 2"):
            session.run({"x": x, "i": np.zeros((5, 6), np.int64)})
