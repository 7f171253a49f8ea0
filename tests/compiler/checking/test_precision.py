"""`precision=f16`: half the bytes, correct within rounding, and wrong on overflow."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from onnx import helper
from typer.testing import CliRunner

from heterocc.artifacts.reader import open_bundle
from heterocc.compiler import compile_model
from heterocc.compiler.build.build import BuiltPlan
from heterocc.compiler.checking.check import Checker
from heterocc.compiler.checking.verdict import CheckResult
from heterocc.compiler.checking.verify import verify_bundle
from heterocc.compiler.cli.main import app
from heterocc.compiler.devices.names import resolve_devices
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.support.trial import Support
from heterocc.runtime.native.vulkan_api import vulkan_unavailable_reason
from tests.compiler.small import conv_net, save

REASON = vulkan_unavailable_reason()
pytestmark = [
    pytest.mark.vulkan,
    pytest.mark.skipif(REASON is not None, reason=f"no Vulkan device: {REASON}"),
]
HALF = ["VULKAN.precision=f16"]
PLANT = "HETEROCC_TEST_WRONG_KERNEL"


def weights_of(bundle: Path) -> dict[str, int]:
    """Bytes of all weights of the first variant, by dtype."""
    with open_bundle(bundle) as opened:
        found: dict[str, int] = {}
        for part in opened.manifest.variants[0].partitions:
            for weight in (opened.manifest.weights[i] for i in part.params):
                found[weight.dtype] = found.get(weight.dtype, 0) + weight.nbytes
        return found


def test_weights_are_half_the_size_and_the_error_is_reported(tmp_path: Path) -> None:
    model, half, single = conv_net(tmp_path / "m.onnx"), tmp_path / "half.hcb", tmp_path / "single.hcb"
    report = compile_model(model, half, devices="VULKAN,CPU", properties=HALF)
    compile_model(model, single, devices="VULKAN,CPU")
    assert weights_of(half) == {"float16": weights_of(single)["float32"] // 2}
    assert not report.moved and not report.warnings
    assert any("VULKAN computes in f16: largest error" in note and "of the model" in note for note in report.notes)
    costs = {cost.partition: cost for _, cost in report.costs}
    assert set(costs) == {"p0", None}
    assert 1e-5 < costs[None].error < 1e-2 and 50 < costs[None].snr < 100
    entries = json.loads(json.dumps(report.to_json()))["precision"]
    assert [entry["partition"] for entry in entries] == ["p0", None] and entries[0]["variant"] == "main"
    with open_bundle(half) as bundle:
        main, cpu = bundle.manifest.variants
        assert main.devices[0].properties == {"precision": "f16"}
        assert any("VULKAN computes in f16" in note for note in main.notes)
        assert not any("f16" in note for note in cpu.notes) and not cpu.devices[0].properties
        assert bundle.manifest.golden is not None and bundle.manifest.golden.snr is not None
    shown = CliRunner().invoke(app, ["inspect", str(half)]).output
    assert "precision=f16" in shown


def test_verify_judges_half_precision_by_its_own_tolerance_and_the_other_variant_by_the_usual_one(
    tmp_path: Path,
) -> None:
    model, bundle = conv_net(tmp_path / "m.onnx"), tmp_path / "m.hcb"
    compile_model(model, bundle, devices="VULKAN,CPU", properties=HALF)
    for source in (None, model):
        for devices in ("VULKAN", "CPU"):
            assert verify_bundle(bundle, source, devices=devices).ok
    worst = max(d.max_abs for d in verify_bundle(bundle, None, devices="VULKAN").differences)
    assert worst > 5 * max(d.max_abs for d in verify_bundle(bundle, None, devices="CPU").differences)


def test_the_cost_is_reported_by_device_and_for_the_chain_of_partitions(tmp_path: Path) -> None:
    pins = {n: ("VULKAN", "CPU")[i % 2] for i, n in enumerate(("conv1", "relu1", "conv2", "sum", "gate", "pool"))}
    report = compile_model(
        conv_net(tmp_path / "m.onnx"), tmp_path / "m.hcb", devices="VULKAN,CPU", properties=HALF, affinity=pins
    )
    partitions = [c.partition for _, c in report.costs]
    halved = [f"p{i}" for i, p in enumerate(report.plan.partitions) if p.device == "VULKAN"]
    assert len(halved) > 1 and partitions == [*halved, None]
    notes = [n for n in report.notes if "computes in f16" in n]
    assert len(notes) == 2 and notes[1].endswith("of the model")
    worst = min((c for _, c in report.costs if c.partition is not None), key=lambda c: c.snr)
    assert notes[0].endswith(f"'{worst.value}' of {worst.partition}")


@pytest.mark.parametrize("node", ["conv2", *(pytest.param(n, marks=pytest.mark.slow) for n in ("pool", "fc"))])
def test_a_planted_wrong_kernel_is_found_in_half_precision(
    node: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, bundle = conv_net(tmp_path / "m.onnx"), tmp_path / "m.hcb"
    monkeypatch.setenv(PLANT, node)
    compile_model(model, bundle, devices="VULKAN,ORT", properties=HALF, check=False)
    report = compile_model(model, tmp_path / "moved.hcb", devices="VULKAN,ORT", properties=HALF)
    monkeypatch.delenv(PLANT)
    assert node in [m.node for m in report.moved]
    assert verify_bundle(tmp_path / "moved.hcb", model).ok
    assert not verify_bundle(bundle, None).ok
    found = verify_bundle(bundle, model, bisect=True)
    assert not found.ok and found.culprit is not None and node in found.culprit.nodes


def test_a_node_that_overflows_half_precision_goes_to_the_next_device(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    constants = {n: rng.standard_normal((64, 64)).astype(np.float32) for n in ("w1", "w2")}
    constants["gain"] = np.full((64,), 6e4, np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"], name="first"),
        helper.make_node("Mul", ["a", "gain"], ["b"], name="gain"),
        helper.make_node("MatMul", ["b", "w2"], ["c"], name="second"),
        helper.make_node("Tanh", ["c"], ["y"], name="tanh"),
    ]
    model = save(tmp_path / "m.onnx", nodes, {"x": [4, 64]}, {"y": [4, 64]}, constants)
    report = compile_model(model, tmp_path / "m.hcb", devices="VULKAN,CPU", properties=HALF)
    assert "gain" in [m.node for m in report.moved] and "second" not in [m.node for m in report.moved]
    assert {m.target for m in report.moved} == {"CPU"}
    assert any("computes a wrong result on VULKAN" in w and "float16 ends at 65504" in w for w in report.warnings)
    assert verify_bundle(tmp_path / "m.hcb", model).ok


def test_all_nodes_that_overflow_go_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    constants: dict[str, np.ndarray] = {
        "gain": np.full((32,), 6e4, np.float32),
        "loss": np.full((32,), 2e-5, np.float32),
    }
    nodes, last = [], "x"
    for i in range(4):
        constants[f"w{i}"] = rng.standard_normal((32, 32)).astype(np.float32) / 4
        constants[f"v{i}"] = rng.standard_normal((32, 32)).astype(np.float32) / 4
        nodes += [
            helper.make_node("MatMul", [last, f"w{i}"], [f"a{i}"], name=f"first{i}"),
            helper.make_node("Mul", [f"a{i}", "gain"], [f"b{i}"], name=f"gain{i}"),
            helper.make_node("MatMul", [f"b{i}", f"v{i}"], [f"c{i}"], name=f"second{i}"),
            helper.make_node("Mul", [f"c{i}", "loss"], [f"d{i}"], name=f"loss{i}"),
            helper.make_node("Tanh", [f"d{i}"], [f"e{i}"], name=f"tanh{i}"),
        ]
        last = f"e{i}"
    model = save(tmp_path / "m.onnx", nodes, {"x": [4, 32]}, {last: [4, 32]}, constants)
    rounds: list[int] = []
    check = Checker.check

    def counted(self: Checker, built: BuiltPlan) -> CheckResult:
        rounds.append(1)
        return check(self, built)

    monkeypatch.setattr(Checker, "check", counted)
    report = compile_model(model, tmp_path / "m.hcb", devices="VULKAN,CPU", properties=HALF, cpu_variant=False)
    assert {m.node for m in report.moved} == {f"gain{i}" for i in range(4)} and len(rounds) == 2
    assert all("float16 ends at 65504" in m.error for m in report.moved)
    assert verify_bundle(tmp_path / "m.hcb", model).ok


def test_without_the_property_nothing_changes(tmp_path: Path) -> None:
    model = conv_net(tmp_path / "m.onnx")
    for name in ("plain", "again"):
        compile_model(model, tmp_path / f"{name}.hcb", devices="VULKAN,CPU")
    assert (tmp_path / "plain.hcb").read_bytes() == (tmp_path / "again.hcb").read_bytes()
    assert set(weights_of(tmp_path / "plain.hcb")) == {"float32"}
    with open_bundle(tmp_path / "plain.hcb") as bundle:
        assert bundle.manifest.golden is not None and bundle.manifest.golden.snr is None
        assert not bundle.manifest.variants[0].devices[0].properties
        assert "storage16" not in bundle.manifest.variants[0].devices[0].requires


def test_the_cache_of_answers_distinguishes_precisions(tmp_path: Path) -> None:
    support = Support(import_model(conv_net(tmp_path / "m.onnx")))
    (single,), _ = resolve_devices("VULKAN")
    (half,), _ = resolve_devices("VULKAN", properties=HALF)
    (stated,), _ = resolve_devices("VULKAN", properties=["VULKAN.precision=f32"])
    for node in support.model.graph.nodes:
        assert support.key(node, half) != support.key(node, single) == support.key(node, stated)
