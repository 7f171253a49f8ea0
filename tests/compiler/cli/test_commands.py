"""The commands as users run them: output, files and failures."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import helper
from typer.testing import CliRunner, Result

from heterocc.artifacts.reader import open_bundle
from heterocc.compiler.cli.main import app
from heterocc.compiler.importer.pipeline import import_model
from tests.compiler.small import conv_net, save


def heterocc(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(a) for a in arguments])


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    done = heterocc("compile", conv_net(folder / "m.onnx"), "-d", "CPU", "-o", folder / "m.hcb", "-q")
    assert done.exit_code == 0, done.output
    return folder / "m.hcb"


def test_compile_prints_the_summary_and_what_it_wrote(tmp_path: Path) -> None:
    done = heterocc("compile", conv_net(tmp_path / "m.onnx"), "-o", tmp_path / "m.hcb", "--time-passes")
    assert done.exit_code == 0, done.output
    assert "8 nodes: CPU 8 (1 partition); 0 transfers" in done.stdout
    assert f"wrote {tmp_path / 'm.hcb'}" in done.stdout
    assert "greedy" in done.stdout and "lower" in done.stdout


def test_compile_as_json_is_one_document(tmp_path: Path) -> None:
    done = heterocc("compile", conv_net(tmp_path / "m.onnx"), "-o", tmp_path / "m.hcb", "--json")
    report = json.loads(done.stdout)
    assert report["output"] == str(tmp_path / "m.hcb") and report["bytes"] == (tmp_path / "m.hcb").stat().st_size
    assert report["partitions"] == [{"name": "p0", "device": "CPU", "nodes": 8}]


@pytest.mark.parametrize("stage", ["import", "partition", "lower"])
def test_a_compile_that_stops_early_writes_no_bundle(stage: str, tmp_path: Path) -> None:
    done = heterocc("compile", conv_net(tmp_path / "m.onnx"), "-o", tmp_path / "m.hcb", "--stop-after", stage)
    assert done.exit_code == 0, done.output
    assert "8 nodes" in done.stdout and not (tmp_path / "m.hcb").exists()


def test_dumps_hold_the_plan_after_every_pass_and_the_code(tmp_path: Path) -> None:
    dump = tmp_path / "dump"
    done = heterocc("compile", conv_net(tmp_path / "m.onnx"), "-o", tmp_path / "m.hcb", "--dump-dir", dump)
    assert done.exit_code == 0, done.output
    names = sorted(p.name for p in dump.iterdir())
    assert names[:3] == ["00-greedy.plan", "01-manual.plan", "02-merge.plan"]
    assert [n for n in names if n.startswith("main-p0.")]
    assert "p0" not in done.stdout.split("wrote")[0]


def test_partition_prints_the_plan_writes_graphs_and_an_affinity_file_that_can_be_given_back(tmp_path: Path) -> None:
    model, place = conv_net(tmp_path / "m.onnx"), tmp_path / "place.toml"
    done = heterocc("partition", model, "-d", "CPU,ORT", "--dot", tmp_path / "dot", "--write-affinity", place)
    assert done.exit_code == 0, done.output
    assert {p.name for p in (tmp_path / "dot").iterdir()} == {"hetero_affinity_m.dot", "hetero_subgraphs_m.dot"}
    place.write_text(
        place.read_text().replace('"gate" = "CPU"', '"gate" = "ORT"').replace('gate = "CPU"', 'gate = "ORT"')
    )
    again = heterocc("partition", model, "-d", "CPU,ORT", "--affinity", place, "--json")
    devices = {p["device"]: p["nodes"] for p in json.loads(again.stdout)["partitions"]}
    assert devices["ORT"] == 1


def test_query_lists_every_operator_and_json_every_node(tmp_path: Path) -> None:
    model = conv_net(tmp_path / "m.onnx")
    shown = heterocc("query", model, "-d", "CPU,ORT")
    assert shown.exit_code == 0 and "Conv" in shown.stdout
    data = json.loads(heterocc("query", model, "-d", "CPU,ORT", "--json").stdout)
    nodes = import_model(model).graph.nodes
    assert [n["name"] for n in data["nodes"]] == [n.name for n in nodes] and len(nodes) > 1
    assert all(n["op_type"] in shown.stdout for n in data["nodes"])


def test_devices_lists_cpu_and_says_why_others_are_missing() -> None:
    report = json.loads(heterocc("devices", "--json").stdout)
    assert report["devices"][0]["label"] == "CPU"
    here, absent = {d["backend"] for d in report["devices"]}, {a["backend"] for a in report["absent"]}
    assert here | absent == {"cpu", "opencl", "vulkan", "cuda", "ort"}
    assert not here & absent
    assert all(a["reason"] for a in report["absent"])
    assert "CPU" in heterocc("devices").stdout


def test_run_reads_and_writes_npz(bundle: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=np.ones((1, 4, 8, 8), np.float32))
    done = heterocc("run", bundle, "--inputs", tmp_path / "in.npz", "--outputs", tmp_path / "out.npz")
    assert done.exit_code == 0, done.output
    with np.load(tmp_path / "out.npz") as archive:
        assert archive["y"].shape == (1, 5)
    raw = tmp_path / "x.bin"
    raw.write_bytes(np.ones((1, 4, 8, 8), np.float32).tobytes())
    data = json.loads(heterocc("run", bundle, "-i", raw, "--json").stdout)
    with np.load(tmp_path / "out.npz") as archive:
        np.testing.assert_allclose(data["outputs"]["y"]["data"], archive["y"], rtol=1e-6)


@pytest.mark.parametrize(
    ("feed", "words"),
    [
        ({"z": np.ones((1, 4, 8, 8), np.float32)}, "'z'"),
        ({"x": np.ones((1, 4, 8, 8), np.float64)}, "float64"),
        ({"x": np.ones((1, 4, 8, 9), np.float32)}, "9]"),
        ({}, "'x'"),
    ],
)
def test_run_refuses_inputs_of_another_name_dtype_or_shape(
    feed: dict[str, np.ndarray], words: str, bundle: Path, tmp_path: Path
) -> None:
    np.savez(tmp_path / "in.npz", **feed)
    done = heterocc("run", bundle, "-i", tmp_path / "in.npz", "-o", tmp_path / "out.npz")
    assert done.exit_code == 1 and "error[HC110]" in done.stderr and words in done.stderr, done.stderr
    assert not (tmp_path / "out.npz").exists()


def test_compile_checks_with_the_users_own_inputs_and_keeps_them_as_golden(tmp_path: Path) -> None:
    mine = np.full((1, 4, 8, 8), 0.5, np.float32)
    np.savez(tmp_path / "in.npz", x=mine)
    model = conv_net(tmp_path / "m.onnx")
    done = heterocc("compile", model, "-d", "CPU", "-o", tmp_path / "m.hcb", "--inputs", tmp_path / "in.npz")
    assert done.exit_code == 0, done.output
    with open_bundle(tmp_path / "m.hcb") as opened:
        assert opened.manifest.golden is not None
        assert np.array_equal(opened.array(opened.manifest.golden.inputs["x"]), mine)
    np.savez(tmp_path / "in.npz", y=mine)
    again = heterocc("compile", model, "-d", "CPU", "-o", tmp_path / "n.hcb", "--inputs", tmp_path / "in.npz")
    assert again.exit_code == 1 and "error[HC110]: input 'x' is missing" in again.stderr


def test_run_without_inputs_draws_seeded_ones(bundle: Path) -> None:
    first, again, other = (heterocc("run", bundle, "--json", "--seed", s).stdout for s in (3, 3, 4))
    assert first == again != other


def test_run_with_a_profile_names_the_nodes(bundle: Path) -> None:
    done = heterocc("run", bundle, "--profile")
    assert done.exit_code == 0 and "EXECUTED" in done.stdout and "fc" in done.stdout


def test_bench_reports_percentiles_and_the_peer(bundle: Path) -> None:
    model = bundle.with_name("m.onnx")
    report = json.loads(heterocc("bench", bundle, "-n", 20, "--against", model, "--json").stdout)
    ours, peer = report["results"]
    assert ours["runs"] == 20 and ours["latency_ms"]["min"] <= ours["latency_ms"]["p99"]
    assert peer["name"] == "ONNX Runtime" and report["median_ratio"] > 0
    threads = json.loads(heterocc("bench", bundle, "-n", 20, "--requests", 3, "--json").stdout)
    assert threads["results"][0]["runs"] == 20


@pytest.mark.parametrize(
    ("options", "threads", "requests"),
    [
        ([], 3, 1),
        (["--hint", "latency"], 3, 1),
        (["--hint", "throughput"], 1, 3),
        (["--hint", "throughput", "--requests", 2], 1, 2),
        (["--hint", "throughput", "--threads", 2], 2, 1),
        (["-d", "MULTI:CPU"], 3, 1),
    ],
)
def test_bench_follows_the_hint_in_text_json_and_csv(
    bundle: Path, options: list[object], threads: int, requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVM_NUM_THREADS", "3")
    report = json.loads(heterocc("bench", bundle, "-n", 6, *options, "--json").stdout)
    assert (report["threads"], report["requests"], report["devices"]) == (threads, requests, ["CPU"])
    (row,) = csv.DictReader(heterocc("bench", bundle, "-n", 6, *options, "--csv").stdout.splitlines())
    assert (row["threads"], row["requests"], row["devices"]) == (str(threads), str(requests), "CPU")
    assert row["runs"] == "6" and float(row["min_ms"]) <= float(row["max_ms"]) and float(row["runs_per_second"]) > 0
    text = heterocc("bench", bundle, "-n", 6, *options).stdout
    assert text.startswith(f"{requests} request{'s' * (requests != 1)} at a time on CPU, {threads} CPU thread")


def test_bench_refuses_an_unknown_hint_and_two_formats(bundle: Path) -> None:
    done = heterocc("bench", bundle, "--hint", "speed")
    assert done.exit_code == 2 and "'speed' is not one of 'latency', 'throughput'" in done.stderr
    assert "--> heterocc bench" in done.stderr and "`heterocc bench --help` shows the options" in done.stderr
    for other in ("--json", "--profile"):
        done = heterocc("bench", bundle, "--csv", other)
        assert done.exit_code == 2 and f"--csv cannot be combined with {other}" in done.output


def test_inspect_and_check_and_verify_answer(bundle: Path) -> None:
    shown = heterocc("inspect", bundle, "--plan", "--members", "--kernels")
    assert shown.exit_code == 0 and "conv1" in shown.stdout and "weights" in shown.stdout
    assert json.loads(heterocc("inspect", bundle, "--json").stdout)["format"] == "heterocc-bundle"
    assert "can run here" in heterocc("check", bundle).stdout
    assert json.loads(heterocc("check", bundle, "--json").stdout)["runs"] is True
    assert "ok" in heterocc("verify", bundle).stdout
    assert json.loads(heterocc("verify", bundle, bundle.with_name("m.onnx"), "--json").stdout)["ok"] is True


def test_a_damaged_bundle_fails_check_and_the_exit_code_says_so(bundle: Path, tmp_path: Path) -> None:
    data = bytearray(bundle.read_bytes())
    data[5000] ^= 0xFF
    broken = tmp_path / "b.hcb"
    broken.write_bytes(bytes(data))
    done = heterocc("check", broken)
    assert done.exit_code == 1
    assert "would run here if it were intact" in done.stdout and "loads" not in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "exit_code"),
    [
        (["compile", "absent.onnx"], "HC101", 1),
        (["compile", "text.onnx"], "HC102", 1),
        (["compile", "cut.onnx"], "HC10", 1),
        (["compile", "dynamic.onnx", "-d", "VULKAN"], "HC104", 1),
        (["compile", "m.onnx", "--shape", "z=1"], "HC106", 2),
        (["compile", "m.onnx", "-d", "TPU"], "HC402", 2),
        (["compile", "m.onnx", "-d", ","], "HC402", 2),
        (["compile", "m.onnx", "-p", "GPU.precision=f16"], "HC405", 2),
        (["compile", "m.onnx", "-o", "m.onnx/m.hcb"], "HC111", 1),
        (["compile", "m.onnx", "-o", "m.onnx"], "HC111", 1),
        (["compile", "m.onnx", "-o", "-"], "HC111", 1),
        (["partition", "m.onnx", "--write-affinity", "m.onnx"], "HC111", 1),
        (["compile", "m.onnx", "-a", "nothing.toml"], "HC108", 1),
        (["compile", "m.onnx", "-a", "absent.toml"], "HC101", 1),
        (["compile", "m.onnx", "--passes", "gredy"], "HC121", 2),
        (["compile", "m.onnx", "--policy", "fastest"], "HC120", 2),
        (["compile", "m.onnx", "--stop-after", "never"], "HC120", 2),
        (["compile", "m.onnx", "--pass-limit", "0"], "HC120", 2),
        (["compile", "loop.onnx", "-d", "CPU"], "HC201", 1),
        (["compile", "m.onnx", "-d", "CPU", "-a", "pin.toml"], "HC202", 1),
        (["run", "absent.hcb"], "HC101", 1),
        (["run", "text.onnx"], "HC301", 1),
        (["inspect", "x" * 300], "HC101", 1),
        (["bench", "x" * 300], "HC101", 1),
        (["compile", "m.onnx", "--seed", str(2**31)], "HC120", 2),
        (["compile", "m.onnx", "-a", "."], "HC101", 1),
        (["compile", "m.onnx/m.onnx"], "HC101", 1),
        (["verify", "text.onnx", "--bisect"], "HC120", 2),
    ],
)
def test_bad_input_is_one_explained_error(
    arguments: list[str], code: str, exit_code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    conv_net(tmp_path / "m.onnx")
    data = (tmp_path / "m.onnx").read_bytes()
    (tmp_path / "text.onnx").write_text("no model at all\n")
    (tmp_path / "cut.onnx").write_bytes(data[: len(data) // 2])
    save(tmp_path / "dynamic.onnx", [helper.make_node("Relu", ["x"], ["y"])], {"x": ["n", 3]}, {"y": ["n", 3]})
    save(
        tmp_path / "loop.onnx",
        [helper.make_node("Det", ["x"], ["y"], name="det")],
        {"x": [2, 17, 17]},
        {"y": [2]},
    )
    (tmp_path / "nothing.toml").write_text('[nodes]\n"no_such_node" = "CPU"\n')
    (tmp_path / "pin.toml").write_text('[nodes]\n"conv1" = "ORT"\n')
    done = heterocc(*arguments)
    assert done.exit_code == exit_code, done.output
    text = done.stderr
    assert f"error[{code}" in text and "Traceback" not in text
    assert text.count("error[") == 1
    assert "hint:" in text
    assert not (tmp_path / "m.hcb").exists()


def test_errors_come_as_json_too(tmp_path: Path) -> None:
    done = heterocc("compile", tmp_path / "absent.onnx", "--json")
    assert json.loads(done.stdout)["error"]["code"] == "HC101"


def test_the_command_starts_without_tvm_and_without_onnx() -> None:
    script = """
import sys
sys.argv = ["heterocc", "--version"]
import heterocc.compiler.cli.main
try:
    heterocc.compiler.cli.main.main()
finally:
    assert not {"tvm", "onnx", "onnx_graphsurgeon", "onnxruntime", "tvm_ffi"} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.startswith("heterocc "), done.stderr


def test_output_into_a_closed_pipe_is_no_traceback(bundle: Path) -> None:
    command = f"{sys.executable} -m heterocc.compiler.cli.main inspect {bundle} --json | head -1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.stdout.strip() == "{" and "Traceback" not in done.stderr
