"""Bundles with code for several CPUs, of which the runtime picks the best that fits."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import numpy as np
import pytest
from onnx import helper
from typer.testing import CliRunner

from heterocc.artifacts.errors import UsageError
from heterocc.artifacts.reader import open_bundle
from heterocc.artifacts.settings import CPU_PROPERTY
from heterocc.compiler import compile_model
from heterocc.compiler.cli.main import app
from heterocc.compiler.devices.cpu_targets import cpu_target_of, with_cpu_targets
from heterocc.compiler.devices.host import code_features, host_cpu
from heterocc.compiler.devices.names import host_device, ort_device
from heterocc.runtime.native import opencl_unavailable_reason
from tests.compiler.small import conv_net, save
from tests.fresh_process import fresh

X86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="names x86-64 levels")

RUN = """
import json, sys
import numpy as np
from heterocc.artifacts.errors import HeteroccError
from heterocc.artifacts.frozen import replaced
from heterocc.artifacts.reader import open_bundle
from heterocc.runtime import load
from heterocc.runtime.machine import compat
from heterocc.runtime.select import select

here = compat.host()
limited = replaced(here, cpu_features=here.cpu_features - set({without!r}))
select.host = lambda: limited
with open_bundle({bundle!r}) as bundle:
    golden = bundle.manifest.golden
    feed = {{name: bundle.array(member).copy() for name, member in golden.inputs.items()}}
    expected = {{name: bundle.array(member).copy() for name, member in golden.outputs.items()}}
try:
    with load({bundle!r}, {devices!r}) as session:
        results = session.run(feed)
        right = all(np.allclose(results[name], expected[name], rtol=1e-3, atol=1e-4) for name in expected)
        print(json.dumps([session.variant.name, list(session.notes), right]))
except HeteroccError as error:
    print(json.dumps([error.code, error.message, error.hint]))
"""
AVX512 = ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")


def run(bundle: Path, devices: str | None = None, without: tuple[str, ...] = ()) -> list[object]:
    """Name and notes of the variant that a fresh process loads on a CPU without some features, or the error."""
    found: list[object] = json.loads(fresh(RUN.format(bundle=str(bundle), devices=devices, without=without)))
    return found


def wide_net(path: Path) -> Path:
    """A convolution by minimal filtering and a product, with weights that are packed: x[1,32,16,16] → y[1,64]."""
    rng = np.random.default_rng(0)
    constants = {
        "w": rng.standard_normal((32, 32, 3, 3)).astype(np.float32) / 17,
        "m": rng.standard_normal((32, 64)).astype(np.float32),
        "shape": np.array([1, 32], np.int64),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"], name="relu"),
        helper.make_node("GlobalAveragePool", ["b"], ["c"], name="pool"),
        helper.make_node("Reshape", ["c", "shape"], ["d"], name="flat"),
        helper.make_node("MatMul", ["d", "m"], ["y"], name="fc"),
    ]
    return save(path, nodes, {"x": [1, 32, 16, 16]}, {"y": [1, 64]}, constants)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("targets")
    compile_model(
        wide_net(folder / "m.onnx"), folder / "m.hcb", devices="CPU", cpu_targets=["x86-64-v3", "x86-64-v4", "x86-64"]
    )
    return folder / "m.hcb"


@X86
@pytest.mark.parametrize("devices", [None, "CPU", pytest.param("AUTO", marks=pytest.mark.slow)])
def test_the_best_code_that_the_cpu_can_run_is_loaded(bundle: Path, devices: str | None) -> None:
    here = host_cpu().features
    cases = [
        ((), "main", "x86-64-v4"),
        (AVX512, "cpu-x86-64-v3", "x86-64-v3"),
        ((*AVX512, "avx2"), "cpu-x86-64", "x86-64"),
    ]
    for without, variant, cpu in cases:
        if not set(code_features(cpu_target_of(cpu))) <= here - set(without):
            continue
        name, notes, right = run(bundle, devices, without)
        assert (name, right) == (variant, True)
        assert len(notes) == 1 and f"CPU ({cpu})" in notes[0]  # type: ignore[arg-type,index]


@X86
def test_a_bundle_without_code_for_the_cpu_says_what_each_variant_lacks(tmp_path: Path) -> None:
    path = tmp_path / "m.hcb"
    compile_model(conv_net(tmp_path / "m.onnx"), path, devices="CPU", cpu_targets="x86-64-v3,x86-64-v4", check=False)
    for devices in (None, "CPU"):
        code, message, hint = run(path, devices, ("avx2", *AVX512))
        assert code == "HC310" and "can run here" in str(message)
        assert "CPU (x86-64-v4)" in str(hint) and "CPU (x86-64-v3) cannot run here" in str(hint)
        assert "lacks: avx2" in str(hint)


@X86
def test_the_variants_of_several_cpus_share_their_weights(bundle: Path) -> None:
    with open_bundle(bundle) as opened:
        manifest = opened.manifest
        assert manifest.version.major == 2
        assert [v.name for v in manifest.variants] == ["main", "cpu-x86-64-v3", "cpu-x86-64"]
        assert [v.devices[0].properties[CPU_PROPERTY] for v in manifest.variants] == [
            "x86-64-v4",
            "x86-64-v3",
            "x86-64",
        ]
        params = [{manifest.weights[i].sha256 for p in v.partitions for i in p.params} for v in manifest.variants]
        large = {w.sha256 for w in manifest.weights if w.nbytes >= 4096}
        assert len(large) == 2 and all(large <= read for read in params)


@X86
def test_check_and_inspect_show_the_cpu_of_each_variant(bundle: Path) -> None:
    shown = CliRunner().invoke(app, ["inspect", str(bundle)]).stdout
    assert "device  CPU (cpu.0) x86-64-v4 x86_64" in shown and "device  CPU (cpu.0) x86-64-v3 x86_64" in shown
    told = CliRunner().invoke(app, ["check", str(bundle)]).stdout
    assert "variant cpu-x86-64-v3 (x86-64-v3): can run here" in told
    report = json.loads(CliRunner().invoke(app, ["check", str(bundle), "--json"]).stdout)
    assert [v["cpus"] for v in report["variants"]] == [["x86-64-v4"], ["x86-64-v3"], ["x86-64"]]


@X86
@pytest.mark.opencl
def test_variants_with_a_gpu_have_code_for_each_cpu_and_so_has_the_cpu_only_form(tmp_path: Path) -> None:
    reason = opencl_unavailable_reason()
    if reason is not None:
        pytest.skip(reason)
    path = tmp_path / "m.hcb"
    report = compile_model(
        conv_net(tmp_path / "m.onnx"),
        path,
        devices="OPENCL,CPU",
        cpu_targets="x86-64-v3,x86-64-v4,armv8-a",
        affinity={"conv1": "CPU"},
        policy="greedy",
        check=False,
    )
    assert report.variants == ("main", "opencl-cpu-x86-64-v3", "cpu", "cpu-x86-64-v3")
    assert any("OPENCL,CPU is not compiled for armv8-a" in note for note in report.notes)
    with open_bundle(path) as opened:
        codes = [{p.code for p in v.partitions} for v in opened.manifest.variants]
        assert codes[0] & codes[1] and codes[0] != codes[1]  # the GPU's code is stored once
    name, notes, right = run(path, "OPENCL,CPU", AVX512)
    assert name == "opencl-cpu-x86-64-v3" and right and "OPENCL,CPU (x86-64-v3)" in notes[0]  # type: ignore[index]
    name, _, right = run(path, "CPU", AVX512)
    assert name == "cpu-x86-64-v3" and right


def test_a_gpu_that_takes_every_node_needs_no_variant_for_each_cpu(tmp_path: Path) -> None:
    if opencl_unavailable_reason() is not None:
        pytest.skip("no OpenCL")
    report = compile_model(
        conv_net(tmp_path / "m.onnx"),
        devices="OPENCL,CPU",
        cpu_targets="x86-64-v3,x86-64-v2" if platform.machine() == "x86_64" else "armv8-a,armv8.2-a",
        stop_after="partition",
    )
    assert [p.name for p in report.plans] in (["main", "cpu", "cpu-x86-64-v2"], ["main", "cpu", "cpu-armv8-a"])


def test_names_of_targets_stand_for_features() -> None:
    assert cpu_target_of("x86-64-v3")["mcpu"] == "x86-64-v3"
    assert {"avx512f", "avx512vnni"} <= set(code_features(cpu_target_of("x86-64-v4+avx512vnni")))
    assert "-prefer-256-bit" in cpu_target_of("skylake-avx512")["mattr"]  # type: ignore[operator]
    arm = cpu_target_of("armv8.2-a+dotprod")
    assert arm["mtriple"] == "aarch64-linux-gnu" and {"dotprod", "lse", "rdm", "crc"} <= set(code_features(arm))
    assert "sve" not in code_features(arm) and "neon" not in code_features(arm)
    assert set(code_features(cpu_target_of("neoverse-n1"))) >= {"dotprod", "fullfp16"}
    assert cpu_target_of("native") == host_cpu().target


@pytest.mark.parametrize(
    ("names", "message", "hint"),
    [
        (["x86-64-v5"], "there is no CPU target 'x86-64-v5'", "x86-64-v4"),
        (["armv8.2"], "there is no CPU target 'armv8.2'", "armv8.2-a"),
        (["cortex-a67"], "there is no CPU target 'cortex-a67'", "cortex-a76"),
        (["i686"], "there is no CPU target 'i686'", ""),
        (["generic"], "there is no CPU target 'generic'", ""),
        (["x86-64-v3+avx512vni"], "an unknown feature 'avx512vni'", "avx512vnni"),
        (["armv8.2-a+dotprd"], "an unknown feature 'dotprd'", "dotprod"),
        (["x86-64-v3", "X86-64-V3"], "'x86-64-v3' and 'X86-64-V3' are the same", ""),
        (["x86-64-v3", ""], "an empty name", ""),
    ],
)
def test_unknown_targets_are_errors_with_the_nearest_names(names: list[str], message: str, hint: str) -> None:
    with pytest.raises(UsageError, match=message.replace("(", "\\(")) as caught:
        with_cpu_targets([(host_device(),)], names)
    assert hint in (caught.value.hint or "")
    assert "--> --cpu-targets " in caught.value.command_text()


def test_targets_need_a_cpu_and_no_other_name_for_it() -> None:
    with pytest.raises(UsageError, match="no CPU is listed"):
        with_cpu_targets([(ort_device(),)], ["native"])
    with pytest.raises(UsageError, match=r"both CPU targets and CPU\.mcpu=znver4"):
        with_cpu_targets([(host_device(),)], ["native"], ["CPU.mcpu=znver4"])


def test_lists_without_targets_stay_as_they_are() -> None:
    lists = [(host_device(), ort_device())]
    assert with_cpu_targets(lists, ()) == (tuple(lists), ())
