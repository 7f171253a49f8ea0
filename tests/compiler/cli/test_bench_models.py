"""`heterocc bench model.onnx`: compiled into the cache, and timed against peers."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from heterocc.artifacts.errors import UsageError
from heterocc.compiler.cli.main import app
from heterocc.runtime.cli.bench import onnxruntime_runner
from heterocc.runtime.cli.peers import openvino_runner, peers_of
from tests.compiler.small import conv_net


def bench(*arguments: object) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["bench", *map(str, arguments), "-n", "5", "--json"])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HETEROCC_CACHE", str(tmp_path / "cache"))
    return conv_net(tmp_path / "m.onnx")


def test_a_model_is_compiled_once_and_timed_against_onnx_runtime(model: Path) -> None:
    report = bench(model, "--against", "onnxruntime")
    ours, peer = report["results"]
    assert (ours["runs"], peer["runs"], peer["name"]) == (5, 5, "ONNX Runtime")
    assert report["ratios"]["ONNX Runtime"].keys() == {"min", "median"}
    assert report["median_ratio"] == report["ratios"]["ONNX Runtime"]["median"]
    (bundle,) = (model.parent / "cache" / "bundles-v1").glob("*.hcb")
    written = bundle.stat().st_ino
    bench(model)
    assert bundle.stat().st_ino == written
    assert bench(model, "-d", "CPU")["devices"] == ["CPU"]
    assert len(list(bundle.parent.glob("*.hcb"))) == 2
    conv_net(model).write_bytes(model.read_bytes() + b"\x12\x01x")  # the producer's name
    bench(model)
    assert len(list(bundle.parent.glob("*.hcb"))) == 3


def test_without_a_cache_a_model_is_timed_too(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HETEROCC_CACHE", "off")
    assert bench(model)["results"][0]["runs"] == 5


def test_few_bundles_are_kept(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heterocc.compiler.commands.cached_bundle.MOST_KEPT", 1)
    bench(model)
    bench(model, "-d", "CPU")
    assert len(list((model.parent / "cache" / "bundles-v1").glob("*.hcb"))) == 1


def test_openvino_is_optional_and_its_error_names_the_extra(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    done = CliRunner().invoke(app, ["bench", str(model), "--against", "openvino", "-n", "1"])
    assert done.exit_code == 2 and not (model.parent / "cache" / "bundles-v1").exists()  # nothing was compiled
    assert "OpenVINO is not installed" in done.output and "pip install openvino" in done.output


def test_peers_are_timed_in_the_same_run(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}

    class Request:
        def infer(self, inputs: dict[str, Any]) -> None:
            given.update(inputs)

    class Core:
        def compile_model(self, path: str, device: str, config: dict[str, Any]) -> Any:
            assert (path, device, config["INFERENCE_NUM_THREADS"]) == (str(model), "CPU", 1)
            return types.SimpleNamespace(create_infer_request=Request)

    monkeypatch.setitem(sys.modules, "openvino", types.SimpleNamespace(Core=Core))  # type: ignore[arg-type]
    report = bench(model, "--against", "onnxruntime,openvino", "--threads", 1)
    assert [r["name"] for r in report["results"]] == ["heterocc", "ONNX Runtime", "OpenVINO"]
    assert report["ratios"].keys() == {"ONNX Runtime", "OpenVINO"} and given.keys() == {"x"}
    table = CliRunner().invoke(app, ["bench", str(model), "--against", "onnxruntime", "-n", "3", "--threads", "1"])
    assert "ratio to ONNX Runtime" in table.output


def test_the_value_of_against_names_peers_or_the_model_of_a_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openvino", types.SimpleNamespace())  # type: ignore[arg-type]
    model = conv_net(tmp_path / "m,onnxruntime.onnx")  # a path may have a comma
    (only,) = peers_of(str(model), None)
    assert (only.name, only.model, only.runner) == ("ONNX Runtime", model, onnxruntime_runner)
    plain = conv_net(tmp_path / "m.onnx")
    both = peers_of(f"{plain},openvino,onnxruntime", None)
    assert [(p.name, p.model, p.runner) for p in both] == [
        ("OpenVINO", plain, openvino_runner),
        ("ONNX Runtime", plain, onnxruntime_runner),
    ]
    assert peers_of(None, plain) == ()
    for text, message in (
        ("openvino", "a bundle does not have it"),
        ("tensorrt", "unknown peer 'tensorrt'"),
        ("a.onnx,b.onnx", "more than one model"),
    ):
        with pytest.raises(UsageError, match=message):
            peers_of(text, None)
