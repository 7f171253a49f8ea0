"""Several variants in one bundle: names, placement, reports, packing, and the choice on loading."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner

from heterocc.artifacts.errors import (
    PinnedDeviceError,
    PropertyError,
    UnknownDeviceError,
    UnsupportedOpError,
    UsageError,
)
from heterocc.artifacts.reader import open_bundle
from heterocc.compiler import CompileOptions, compile_model
from heterocc.compiler.cli.main import app
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.pipeline.variants import all_devices, variant_specs
from heterocc.passes.affinity import Affinity
from heterocc.runtime import load
from heterocc.runtime.native import opencl_unavailable_reason, vulkan_unavailable_reason
from heterocc.runtime.select.request import AUTO
from heterocc.runtime.select.select import select_variants
from tests.compiler.small import chain, conv_net

GPU = "VULKAN" if vulkan_unavailable_reason() is None else "OPENCL"
NO_GPU = None if GPU == "VULKAN" else opencl_unavailable_reason()
GONE = {"HETEROCC_OPENCL_FAULT": "no-driver", "HETEROCC_VULKAN_FAULT": "no-driver"}


def heterocc(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command here, or with `environment` in a separate process, because drivers are opened once."""
    words = [str(a) for a in arguments]
    if environment:
        command = [sys.executable, "-m", "heterocc.compiler.cli", *words]
        return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    done = CliRunner().invoke(app, words)
    return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)


def describe(name: str, path: Path) -> Path:
    path.write_text(f'name = "{name}"\nbackend = "cpu"\n')
    return path


@pytest.fixture
def board(tmp_path: Path) -> dict[str, Any]:
    """Options with two more CPUs, BIG and LITTLE, that this machine can stand in for."""
    files = [describe("BIG", tmp_path / "big.toml"), describe("LITTLE", tmp_path / "little.toml")]
    return {"device_files": files}


# ---- names and lists ----------------------------------------------------------------------------------------------


def cards(*names: str) -> tuple[TargetDevice, ...]:
    return tuple(TargetDevice(name, "opencl", present=False) for name in names)


def names_of(lists: list[tuple[TargetDevice, ...]]) -> list[str]:
    specs, _ = variant_specs(lists, (), Affinity())
    return [spec.name for spec in specs]


def test_a_variant_is_called_by_its_devices_and_no_two_alike() -> None:
    lists = [cards("A"), cards("VULKAN", "CPU"), cards("A-B", "C"), cards("A", "B-C"), cards("MAIN"), cards("GPU.1")]
    assert names_of(lists) == ["main", "vulkan-cpu", "a-b-c", "a-b-c-2", "main-2", "gpu.1"]
    long = [cards("A"), cards(*(f"{i}{'X' * 30}" for i in range(9))), cards(*(f"{i}{'x' * 30}" for i in range(8)))]
    assert len(set(names_of(long))) == 3 and max(map(len, names_of(long))) <= 102


def test_the_name_cpu_is_kept_for_the_cpu_only_variant() -> None:
    assert names_of([cards("A"), cards("cpu")]) == ["main", "cpu-2"]
    assert names_of([cards("A"), (TargetDevice("CPU", "cpu"),)]) == ["main", "cpu"]


def test_every_device_is_asked_once_and_the_last_resort_last() -> None:
    ort = TargetDevice("ORT", "ort")
    found = all_devices([(TargetDevice("A", "cpu"), ort), (TargetDevice("B", "cpu"), TargetDevice("A", "cpu"), ort)])
    assert [d.name for d in found] == ["A", "B", "ORT"]


@pytest.mark.parametrize(
    ("devices", "variants", "words"),
    [
        ("CPU,ORT", ["CPU", "CPU,ORT"], "'CPU,ORT' is given twice"),
        ("CPU", ["cpu"], "'CPU' is given twice"),
        ("BIG,CPU", ["LITTLE,CPU", "LITTLE,CPU"], "'LITTLE,CPU' is given twice"),
    ],
)
def test_the_same_devices_twice_are_an_error(
    devices: str, variants: list[str], words: str, tmp_path: Path, board: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        compile_model(conv_net(tmp_path / "m.onnx"), tmp_path / "m.hcb", devices=devices, variants=variants, **board)
    assert "--> --variant " in caught.value.command_text()


def test_one_device_by_two_names_is_the_same_variant() -> None:
    one, other = TargetDevice("GPU", "opencl", 0), TargetDevice("OPENCL", "opencl", 0)
    with pytest.raises(UsageError, match="'GPU' and 'OPENCL' are the same variant"):
        variant_specs([(one,), (other,)], (), Affinity())


def test_a_list_that_is_none_is_an_error(tmp_path: Path) -> None:
    for text in (",", "TPU", "CPU,"):
        with pytest.raises(UnknownDeviceError):
            compile_model(conv_net(tmp_path / "m.onnx"), tmp_path / "m.hcb", variants=[text])


def test_a_property_may_name_a_device_of_any_variant_and_of_no_other(tmp_path: Path, board: dict[str, Any]) -> None:
    model, bundle = conv_net(tmp_path / "m.onnx"), tmp_path / "m.hcb"
    compile_model(model, bundle, devices="BIG", variants=["LITTLE"], properties=["LITTLE.threads=1"], **board)
    with load(bundle, "LITTLE") as session:
        assert session.threads == 1
    with open_bundle(bundle) as opened:
        assert [dict(v.devices[0].properties) for v in opened.manifest.variants] == [{}, {"threads": "1"}]
    with pytest.raises(PropertyError, match="device 'CPU' is not listed") as caught:
        compile_model(model, bundle, devices="BIG", variants=["LITTLE"], properties=["CPU.threads=1"], **board)
    assert caught.value.hint == "the devices are BIG, LITTLE"


# ---- pins ---------------------------------------------------------------------------------------------------------


def test_pins_count_in_the_variants_that_list_their_device(tmp_path: Path, board: dict[str, Any]) -> None:
    pins = {"conv1": "BIG", "fc": "LITTLE", "gate": "CPU"}
    model = conv_net(tmp_path / "m.onnx")
    report = compile_model(
        model, tmp_path / "m.hcb", devices="BIG,CPU", variants=["LITTLE,CPU"], affinity=pins, **board
    )
    big, little = (variant.plan for variant in report.plans[:2])
    assert dict(big.pins) == {"conv1": "BIG", "gate": "CPU"}
    assert dict(little.pins) == {"fc": "LITTLE", "gate": "CPU"}
    notes = [n for n in report.notes if "ignores" in n]
    assert notes == [
        "variant main ignores 1 affinity rule: it does not list LITTLE",
        "variant little-cpu ignores 1 affinity rule: it does not list BIG",
    ]


def test_the_models_own_pins_count_in_the_variants_that_list_their_device(
    tmp_path: Path, board: dict[str, Any]
) -> None:
    path = conv_net(tmp_path / "m.onnx")
    model = onnx.load(path)
    next(n for n in model.graph.node if n.name == "fc").metadata_props.add(key="affinity", value="big")
    onnx.save(model, path)
    report = compile_model(path, tmp_path / "m.hcb", devices="CPU,BIG", variants=["CPU,LITTLE"], **board)
    assert [dict(v.plan.pins) for v in report.plans] == [{"fc": "BIG"}, {}]
    assert "variant cpu-little ignores the model's own affinity of 1 node: it does not list BIG" in report.notes


def test_a_file_that_covers_every_node_covers_those_of_each_variants_devices(
    tmp_path: Path, board: dict[str, Any]
) -> None:
    place = tmp_path / "place.toml"
    place.write_text('mode = "manual"\n[globs]\n"*" = "BIG"\n')
    report = compile_model(
        conv_net(tmp_path / "m.onnx"), tmp_path / "m.hcb", devices="BIG", variants=["LITTLE"], affinity=place, **board
    )
    assert [set(v.plan.device_of.values()) for v in report.plans] == [{"BIG"}, {"LITTLE"}]


def test_a_pin_to_a_device_that_no_variant_lists_is_an_error(tmp_path: Path, board: dict[str, Any]) -> None:
    model, pins = conv_net(tmp_path / "m.onnx"), {"fc": "ORT"}
    with pytest.raises(PinnedDeviceError, match="'ORT', which is not listed"):
        compile_model(model, tmp_path / "m.hcb", devices="BIG", variants=["LITTLE"], affinity=pins, **board)


# ---- the bundle ---------------------------------------------------------------------------------------------------


def test_variants_are_packed_in_order_and_share_weights_and_code(tmp_path: Path, board: dict[str, Any]) -> None:
    model, bundle, alone = conv_net(tmp_path / "m.onnx"), tmp_path / "m.hcb", tmp_path / "alone.hcb"
    pins = {"conv1": "CPU"}
    report = compile_model(
        model, bundle, devices="BIG,CPU", variants=["LITTLE,CPU", "CPU"], affinity=pins, policy="greedy", **board
    )
    assert report.variants == ("main", "little-cpu", "cpu")
    compile_model(model, alone, devices="BIG,CPU", affinity=pins, policy="greedy", **board)
    with open_bundle(bundle) as opened, open_bundle(alone) as single:
        manifest = opened.manifest
        assert [v.name for v in manifest.variants] == ["main", "little-cpu", "cpu"]
        places = Counter((w.offset, w.sha256) for w in manifest.weights if w.nbytes)
        assert len({digest for _, digest in places}) == len(places)
        size = {m.name: m.size for m in manifest.members}
        assert size["weights.bin"] < 1.5 * {m.name: m.size for m in single.manifest.members}["weights.bin"]
        codes = {
            v.name: {p.name: p.code for p in v.partitions if v.devices[p.device].name == "CPU"}
            for v in manifest.variants
        }
        assert codes["main"] == codes["little-cpu"] == {"p0": "code/main/p0.so"}
    x = np.random.default_rng(0).random((1, 4, 8, 8), np.float32)
    results = []
    for devices in ("BIG,CPU", "LITTLE,CPU", "CPU"):
        with load(bundle, devices) as session:
            assert ",".join(sorted(session.devices)) == ",".join(sorted(devices.split(",")))
            results.append(session.run({"x": x})["y"])
    np.testing.assert_allclose(results[1], results[0], rtol=1e-4)
    np.testing.assert_allclose(results[2], results[0], rtol=1e-4)


def test_the_same_input_gives_the_same_bytes(tmp_path: Path, board: dict[str, Any]) -> None:
    model = conv_net(tmp_path / "m.onnx")
    for name in ("a.hcb", "b.hcb"):
        compile_model(model, tmp_path / name, devices="BIG", variants=["LITTLE", "CPU"], **board)
    assert (tmp_path / "a.hcb").read_bytes() == (tmp_path / "b.hcb").read_bytes()


def test_a_variant_that_no_device_can_run_is_an_error_that_names_it(tmp_path: Path) -> None:
    from onnx import helper

    from tests.compiler.small import save

    model = save(tmp_path / "m.onnx", [helper.make_node("Det", ["x"], ["y"])], {"x": [2, 17, 17]}, {"y": [2]})
    with pytest.raises(UnsupportedOpError, match="variant cpu: no device can run Det"):
        compile_model(model, tmp_path / "n.hcb", devices="CPU,ORT", variants=["CPU"])
    assert not (tmp_path / "n.hcb").exists()


def test_python_takes_variants_as_texts_or_lists(tmp_path: Path, board: dict[str, Any]) -> None:
    model = conv_net(tmp_path / "m.onnx")
    options = CompileOptions(devices=("BIG",), variants=("LITTLE,CPU", ("LITTLE",)), **board, stop_after="partition")
    assert [v.name for v in compile_model(model, options=options).plans] == ["main", "little-cpu", "little"]
    report = compile_model(model, devices="BIG", variants="CPU", stop_after="partition", **board)
    assert [v.name for v in report.plans] == ["main", "cpu"]


# ---- the command line ---------------------------------------------------------------------------------------------


def test_each_variant_has_its_summary_its_dumps_and_its_graphs(tmp_path: Path, board: dict[str, Any]) -> None:
    files = [f"--device-file={path}" for path in board["device_files"]]
    done = heterocc(
        "compile", conv_net(tmp_path / "m.onnx"), "-d", "BIG,CPU", "--variant", "LITTLE,CPU", "--variant", "CPU",
        *files, "-o", tmp_path / "m.hcb", "--dump-dir", tmp_path / "dump", "--dot", tmp_path / "dot",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines[:3]] == ["main", "little-cpu", "cpu"]
    assert lines[1].startswith("little-cpu: 8 nodes: LITTLE 8 (1 partition)")
    assert lines[-1].endswith("main, little-cpu, cpu)")
    names = {p.name for p in (tmp_path / "dump").iterdir()}
    assert {"00-greedy.plan", "little-cpu-00-greedy.plan", "cpu-02-merge.plan"} <= names
    assert {name.split("-p0.")[0] for name in names if "-p0." in name} == {"main", "little-cpu", "cpu"}
    drawn = {str(p.relative_to(tmp_path / "dot")) for p in (tmp_path / "dot").rglob("*.dot")}
    assert {"hetero_subgraphs_m.dot", "little-cpu/hetero_subgraphs_m.dot", "cpu/hetero_affinity_m.dot"} <= drawn
    with open_bundle(tmp_path / "m.hcb") as opened:
        members = {m.name for m in opened.manifest.members}
    assert {"graphs/hetero_subgraphs_m.dot", "graphs/little-cpu/hetero_subgraphs_m.dot"} <= members


DONE = {"import": 1, "partition": 3, "lower": 6}
"""How many of a compile's timed steps have been done when it stops after a stage."""


@pytest.mark.parametrize("stage", DONE)
def test_a_compile_that_stops_early_reports_every_variant(stage: str, tmp_path: Path, board: dict[str, Any]) -> None:
    files = [f"--device-file={path}" for path in board["device_files"]]
    done = heterocc(
        "compile", conv_net(tmp_path / "m.onnx"), "-d", "BIG", "--variant", "LITTLE,CPU", *files, "--json",
        "--stop-after", stage, "-o", tmp_path / "m.hcb",
    )  # fmt: skip
    report = json.loads(done.stdout)
    plans = {plan["name"]: plan for plan in report["plans"]}
    assert list(plans) == ([] if stage == "import" else ["main", "little-cpu"])
    assert report["variants"] == [] and not (tmp_path / "m.hcb").exists()
    assert list(report["seconds"]) == ["import", "query", "partition", "reference", "lower", "check"][: DONE[stage]]
    if stage != "import":
        assert plans["little-cpu"]["devices"] == ["LITTLE", "CPU"]
        assert plans["main"]["partitions"] == report["partitions"] == [{"name": "p0", "device": "BIG", "nodes": 8}]
        assert plans["main"]["summary"] == report["summary"]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small network, its first node on a GPU and its last on the CPU, with a CPU variant."""
    if NO_GPU is not None:
        pytest.skip(NO_GPU)
    folder = tmp_path_factory.mktemp("mixed")
    report = compile_model(
        conv_net(folder / "m.onnx"), folder / "m.hcb", devices=f"{GPU},CPU", affinity={"conv1": GPU, "fc": "CPU"}
    )
    assert report.variants == ("main", "cpu")
    return folder / "m.hcb"


def test_run_notes_the_choice_of_auto(mixed: Path) -> None:
    done = heterocc("run", mixed, "-d", "AUTO", "--json")
    data = json.loads(done.stdout)
    assert f"note: {data['notes'][0]}" in done.stderr and data["notes"][0].startswith("AUTO chose ")
    with open_bundle(mixed) as bundle:
        (expected, *_) = select_variants(bundle.manifest, AUTO, "m").variants
    assert data["variant"] == expected.name


def test_check_lists_the_variants_that_would_be_tried(mixed: Path) -> None:
    named = json.loads(heterocc("check", mixed, "-d", f"{GPU},CPU", "--json").stdout)
    assert named["order"] == ["main"]
    automatic = json.loads(heterocc("check", mixed, "-d", "AUTO", "--json", **GONE).stdout)
    assert automatic["order"] == ["cpu"] and [v["runs"] for v in automatic["variants"]] == [False, True]
    both = heterocc("check", mixed)
    assert "loads main; if that fails, cpu" in both.stdout
    unknown = heterocc("check", mixed, "-d", "NPU")
    assert unknown.returncode == 2 and "no variant for NPU" in unknown.stderr


@pytest.mark.parametrize("command", [("verify",), ("bench", "-n", "3")])
def test_a_fallback_is_noted_once_by_every_command(command: tuple[str, ...], mixed: Path) -> None:
    name, *options = command
    done = heterocc(name, mixed, *options, "--json", **GONE)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(f"the variant for {GPU},CPU cannot run here") == 1
    assert done.stderr.count("runs on CPU instead") == 1
    assert any("cannot run here" in note for note in json.loads(done.stdout)["notes"])


@pytest.mark.skipif(NO_GPU is not None, reason=f"no GPU API: {NO_GPU}")
def test_multi_compiles_variants_that_multi_loads(tmp_path: Path) -> None:
    report = compile_model(
        chain(tmp_path / "m.onnx", 1), tmp_path / "m.hcb", devices=f"MULTI:CUDA.7,{GPU},CPU", check=False
    )
    assert report.variants == ("main", "cpu")
    assert any("MULTI skipped CUDA.7" in note for note in report.notes)
    assert any(f"load the bundle with MULTI:{GPU},CPU" in note for note in report.notes)
    with load(tmp_path / "m.hcb", f"MULTI:{GPU},CPU") as session:
        assert [v.devices[0].name for v in session.variants] == [GPU, "CPU"]
        (name,) = [i.name for i in session.inputs]
        feeds = [{name: np.full(session.inputs[0].shape or (), i, np.float32)} for i in range(10)]
        expected = [session.run(feed) for feed in feeds]
        for result, same in zip(session.stream(feeds), expected, strict=True):
            for output in result:
                np.testing.assert_array_equal(result[output], same[output])
