"""Compiles through the Python API, and bundles on machines without the devices that they need."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from heterocc.artifacts.errors import IncompatibleBundleError, PinnedDeviceError
from heterocc.artifacts.reader import open_bundle
from heterocc.compiler import compile_model, query_model
from heterocc.runtime import load
from tests.compiler.small import conv_net, save

NO_DRIVER = {"HETEROCC_OPENCL_FAULT": "no-driver", "HETEROCC_VULKAN_FAULT": "no-driver"}


def heterocc(*arguments: object, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "heterocc.compiler.cli", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **(env or {})})


def placement(report: object) -> dict[str, str]:
    return dict(report.plan.device_of)  # type: ignore[attr-defined]


def test_query_correct_compile_puts_a_node_where_the_user_says(tmp_path: Path) -> None:
    model = conv_net(tmp_path / "m.onnx")
    plan = query_model(model, "CPU,ORT")
    assert plan["gate"] == "CPU"
    plan["gate"] = "ORT"
    report = compile_model(model, tmp_path / "m.hcb", devices="CPU,ORT", affinity=plan)
    assert {n for n, d in placement(report).items() if d == "ORT"} == {"gate"}


def test_the_models_own_affinity_is_obeyed(tmp_path: Path) -> None:
    path = conv_net(tmp_path / "m.onnx")
    model = onnx.load(path)
    next(n for n in model.graph.node if n.name == "fc").metadata_props.add(key="affinity", value="ORT")
    onnx.save(model, path)
    report = compile_model(path, tmp_path / "m.hcb", devices="CPU,ORT")
    assert {n for n, d in placement(report).items() if d == "ORT"} == {"fc"}


def test_a_pin_to_a_device_that_is_not_listed_says_so(tmp_path: Path) -> None:
    with pytest.raises(PinnedDeviceError, match="not listed"):
        compile_model(conv_net(tmp_path / "m.onnx"), tmp_path / "m.hcb", devices="CPU", affinity={"fc": "ORT"})


def test_inputs_and_outputs_keep_names_and_order(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""
      <ir_version: 9, opset_import: ["" : 17]>
      g (float[2] "in/2:0", float[2] "in/1:0", float[3] unused) => (float[2] "out:b", float[2] "out:a", float[2] k)
      <float[2] k = {1, 2}>
      {
        "out:a" = Sub("in/2:0", "in/1:0")
        "out:b" = Add("in/1:0", k)
      }""")
    onnx.save(model, tmp_path / "m.onnx")
    compile_model(tmp_path / "m.onnx", tmp_path / "m.hcb", devices="CPU")
    with load(tmp_path / "m.hcb") as session:
        assert [i.name for i in session.inputs] == ["in/2:0", "in/1:0", "unused"]
        assert [o.name for o in session.outputs] == ["out:b", "out:a", "k"]
        feed = {n: np.full(s, v, np.float32) for n, s, v in (("in/2:0", 2, 5), ("in/1:0", 2, 3), ("unused", 3, 0))}
        b, a, k = session.run(None, feed)
    assert a.tolist() == [2, 2] and b.tolist() == [4, 5] and k.tolist() == [1, 2]


@pytest.mark.opencl
def test_a_bundle_for_a_gpu_falls_back_to_its_cpu_variant_if_the_driver_is_missing(tmp_path: Path) -> None:
    model, bundle = conv_net(tmp_path / "m.onnx"), tmp_path / "m.hcb"
    report = compile_model(model, bundle, devices="OPENCL,CPU", affinity={"conv1": "OPENCL", "fc": "CPU"})
    assert report.variants == ("main", "cpu") and set(placement(report).values()) == {"OPENCL", "CPU"}
    here = json.loads(heterocc("run", bundle, "--json").stdout)
    assert here["devices"] == ["OPENCL", "CPU"]
    there = heterocc("run", bundle, "--json", env=NO_DRIVER)
    assert json.loads(there.stdout)["devices"] == ["CPU"]
    assert "cannot run here" in there.stderr and "OPENCL" in there.stderr
    np.testing.assert_allclose(
        json.loads(there.stdout)["outputs"]["y"]["data"], here["outputs"]["y"]["data"], rtol=1e-3
    )
    asked = heterocc("run", bundle, "-d", "OPENCL,CPU", env=NO_DRIVER)
    assert asked.returncode == 1 and "error[HC310]" in asked.stderr
    data = json.loads(heterocc("check", bundle, "--json", env=NO_DRIVER).stdout)
    assert [v["runs"] for v in data["variants"]] == [False, True] and data["variants"][0]["reasons"]


def test_without_a_driver_a_compile_for_gpu_is_generic_unchecked_and_says_so(tmp_path: Path) -> None:
    model, bundle = conv_net(tmp_path / "m.onnx"), tmp_path / "m.hcb"
    done = heterocc("compile", model, "-d", "GPU,CPU", "-o", bundle, "--json", env=NO_DRIVER)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["variants"] == ["main", "cpu"]
    assert any("GPU" in text and "not on this machine" in text for text in report["unchecked"])
    ran = heterocc("run", bundle, "--json", env=NO_DRIVER)
    assert ran.returncode == 0 and json.loads(ran.stdout)["devices"] == ["CPU"]


def test_a_bundle_for_another_cpu_is_refused_with_the_feature_that_is_missing(tmp_path: Path) -> None:
    model, bundle = conv_net(tmp_path / "m.onnx"), tmp_path / "m.hcb"
    device = tmp_path / "tbm.toml"
    # No x86 CPU has had trailing bit manipulation since 2017.
    device.write_text(
        'name = "TBM"\nbackend = "cpu"\n[target]\nkind = "llvm"\nmtriple = "x86_64-linux-gnu"\n'
        'mcpu = "x86-64-v3"\nmattr = ["+tbm"]\n'
    )
    compile_model(model, bundle, devices="TBM", device_files=[device])
    with pytest.raises(IncompatibleBundleError) as caught:
        load(bundle)
    assert "tbm" in str(caught.value)


def test_a_property_travels_to_its_device_only(tmp_path: Path) -> None:
    bundle = tmp_path / "m.hcb"
    compile_model(
        conv_net(tmp_path / "m.onnx"), bundle, devices="CPU,ORT", properties=["CPU.threads=1"], affinity={"fc": "ORT"}
    )
    with load(bundle) as session:
        assert {d.name: dict(d.properties) for d in session.variant.devices} == {"CPU": {"threads": "1"}, "ORT": {}}
        assert session.threads == 1


def test_an_output_on_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    model = conv_net(tmp_path / "m.onnx")
    script = (
        "import resource, sys; from heterocc.compiler.cli.main import main;"
        "import heterocc.compiler.pipeline.packed, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "import heterocc.compiler.build.pack as p; real = p.pack;\n"
        "def limited(*a, **k):\n resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000)); return real(*a, **k)\n"
        "heterocc.compiler.pipeline.packed.pack = limited\n"
        "sys.argv = ['heterocc', 'compile', sys.argv[1], '-d', 'CPU', '-o', sys.argv[2], '--no-check']; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(model), str(tmp_path / "m.hcb")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "error[HC111]" in done.stderr, done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.onnx"]


def test_a_model_with_types_that_onnx_runtime_lacks_compiles_unchecked(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""
      <ir_version: 9, opset_import: ["" : 17]>
      g (int32[2, 3] a, int32[3, 2] b) => (int32[2, 2] y) { y = Gemm(a, b) }
    """)
    onnx.save(model, tmp_path / "m.onnx")
    report = compile_model(tmp_path / "m.onnx", tmp_path / "m.hcb", devices="CPU")
    assert any("no partition is checked" in w and "Gemm" in w for w in report.warnings)
    a, b = np.arange(6, dtype=np.int32).reshape(2, 3), np.arange(6, dtype=np.int32).reshape(3, 2)
    np.testing.assert_array_equal(load(tmp_path / "m.hcb").run({"a": a, "b": b})["y"], a @ b)
    found = heterocc("compile", tmp_path / "m.onnx", "-d", "ORT", "-o", tmp_path / "n.hcb")
    assert found.returncode == 1 and "Traceback" not in found.stderr


def test_large_golden_vectors_are_left_out_of_a_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heterocc.compiler.pipeline.expected.MOST_GOLDEN_BYTES", 0)
    model = save(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])], {"x": [2, 3]}, {"y": [2, 3]})
    report = compile_model(model, tmp_path / "m.hcb", devices=["CPU"])
    assert "the bundle has no golden vectors: they would have more than 0 bytes" in report.notes
    with open_bundle(tmp_path / "m.hcb") as bundle:
        assert not bundle.manifest.all_goldens
