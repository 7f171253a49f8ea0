"""`CPU.precision=bf16`: smaller weights, results within rounding, and clear answers where it is not possible."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from heterocc.artifacts.errors import PropertyError
from heterocc.artifacts.reader import open_bundle
from heterocc.compiler import compile_model
from heterocc.compiler.checking.judge import Judge
from heterocc.compiler.checking.reference import Reference
from heterocc.compiler.checking.verify import verify_bundle
from heterocc.compiler.devices.cpu_targets import with_cpu_targets, with_possible_products
from heterocc.compiler.devices.host import host_cpu
from heterocc.compiler.devices.names import resolve_devices
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.lower.half.products import product_nodes
from tests.compiler.small import save

PRECISION = "CPU.precision=bf16"
RNG = np.random.default_rng(5)
runs_here = pytest.mark.skipif("avx512bf16" not in host_cpu().features, reason="this CPU lacks AVX512-BF16")


def product_net(path: Path) -> Path:
    """y = relu(x W)."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], name="product"),
        helper.make_node("Relu", ["p"], ["y"], name="relu"),
    ]
    return save(path, nodes, {"x": (4, 64)}, {"y": (4, 48)}, {"w": RNG.standard_normal((64, 48)).astype(np.float32)})


@runs_here
def test_weights_of_products_are_half_the_size_and_the_error_is_reported(tmp_path: Path) -> None:
    model, bundle = product_net(tmp_path / "m.onnx"), tmp_path / "m.hcb"
    report = compile_model(model, bundle, devices="CPU", properties=[PRECISION])
    assert not report.moved and not report.warnings
    assert any("CPU computes in bf16: largest error" in note for note in report.notes)
    (cost,) = {cost for _, cost in report.costs if cost.partition is None}
    assert 40 < cost.snr < 70
    with open_bundle(bundle) as opened:
        assert opened.manifest.variants[0].devices[0].properties == {"precision": "bf16"}
        assert "avx512bf16" in opened.manifest.variants[0].devices[0].cpu_features
        assert sum(w.nbytes for w in opened.manifest.weights if w.dtype == "int32") == 64 * 48 * 2
    assert verify_bundle(bundle, None).ok and verify_bundle(bundle, model).ok


def test_the_reference_rounds_the_factors_of_products_alone(tmp_path: Path) -> None:
    model = import_model(product_net(tmp_path / "m.onnx"))
    feed = {"x": RNG.standard_normal((4, 64)).astype(np.float32)}
    exact = Reference(model, ["y"]).run(feed)["y"]
    short = Reference(model, ["y"], paired=["product", "relu"]).run(feed)["y"]
    error = float(np.abs(short - exact).max() / np.abs(exact).max())
    assert 1e-4 < error < 1e-2
    np.testing.assert_array_equal(Reference(model, ["y"], paired=["relu"]).run(feed)["y"], exact)
    assert Judge(model, feed, ["y"], paired=["product"]).compare("y", short, exact).ok
    assert not Judge(model, feed, ["y"], paired=["product"]).compare("y", exact * np.float32(1.1), exact).ok


def test_convolutions_of_several_taps_stay_in_float32(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "point"], ["p"], name="one"),
        helper.make_node("Conv", ["p", "square"], ["y"], name="nine"),
    ]
    weights = {"point": RNG.standard_normal((8, 8, 1, 1)), "square": RNG.standard_normal((8, 8, 3, 3))}
    shapes = {"x": (1, 8, 5, 5)}, {"y": (1, 8, 3, 3)}
    model = import_model(
        save(tmp_path / "m.onnx", nodes, *shapes, {n: w.astype(np.float32) for n, w in weights.items()})
    )
    assert product_nodes(model, ["one", "nine"]) == {"one"}


def test_a_cpu_without_the_instructions_is_refused_with_a_hint() -> None:
    devices, _ = resolve_devices("CPU", properties=[PRECISION, "CPU.mcpu=x86-64-v3"])
    with pytest.raises(PropertyError, match=r"x86-64-v3.* lacks AVX512-BF16") as raised:
        with_possible_products([devices], fall_back=False)
    assert "CPU.mcpu=znver4" in str(raised.value.hint)


def test_of_several_cpu_targets_those_without_the_instructions_stay_in_float32() -> None:
    devices, _ = resolve_devices("CPU", properties=[PRECISION])
    lists, _ = with_cpu_targets([devices], ["x86-64-v3", "znver4"])
    found, notes = with_possible_products(lists, fall_back=True)
    precisions = {devices[0].properties["cpu"]: devices[0].properties.get("precision") for devices in found}
    assert precisions == {"x86-64-v3": None, "znver4": "bf16"}
    assert len(notes) == 1 and "x86-64-v3" in notes[0]
