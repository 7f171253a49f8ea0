"""The output of `heterocc partition`."""

import json
from pathlib import Path

import onnx
from typer.testing import CliRunner

from heterocc.compiler.cli.main import app
from tests.compiler.small import conv_net


def partition(*arguments: object) -> str:
    done = CliRunner().invoke(app, ["partition", *(str(a) for a in arguments)])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_summary_comes_first_then_a_line_for_each_partition(tmp_path: Path) -> None:
    lines = partition(conv_net(tmp_path / "m.onnx"), "-d", "CPU").splitlines()
    assert lines[0].startswith("8 nodes: CPU 8 (1 partition); 0 transfers")
    assert lines[3].split()[:4] == ["p0", "CPU", "8", "0"] and "Conv 2" in lines[3]
    assert not any("conv1" in line for line in lines)


def test_the_plan_of_every_node_comes_if_it_is_asked_for_and_in_json(tmp_path: Path) -> None:
    model = conv_net(tmp_path / "m.onnx")
    shown = partition(model, "-d", "CPU", "--plan")
    assert shown.startswith("8 nodes: ") and "    conv1: Conv(x, w1) -> a" in shown
    (part,) = json.loads(partition(model, "-d", "CPU", "--json"))["plan"]["partitions"]
    assert part["nodes"][0] == "conv1" and len(part["nodes"]) == 8


def test_the_affinity_in_a_nodes_metadata_places_it_and_a_file_comes_before_it(tmp_path: Path) -> None:
    proto = onnx.load(conv_net(tmp_path / "m.onnx"))
    node = next(n for n in proto.graph.node if n.name == "gate")
    node.metadata_props.add(key="affinity", value="ORT")
    onnx.save(proto, tmp_path / "m.onnx")
    asked = (tmp_path / "m.onnx", "-d", "CPU,ORT", "--json")
    parts = json.loads(partition(*asked))["plan"]["partitions"]
    assert [p["nodes"] for p in parts if p["device"] == "ORT"] == [["gate"]]
    (tmp_path / "place.toml").write_text('[nodes]\ngate = "CPU"\n')
    parts = json.loads(partition(*asked, "--affinity", tmp_path / "place.toml"))["plan"]["partitions"]
    assert {p["device"] for p in parts} == {"CPU"}


def test_the_optimal_policy_places_by_time_and_compiles(tmp_path: Path) -> None:
    model = conv_net(tmp_path / "m.onnx")
    plan = json.loads(partition(model, "-d", "CPU,ORT", "--policy", "optimal", "--json"))["plan"]
    assert {p["device"] for p in plan["partitions"]} == {"CPU"}
    done = CliRunner().invoke(app, ["compile", str(model), "--policy", "optimal", "-o", str(tmp_path / "m.hcb")])
    assert done.exit_code == 0 and (tmp_path / "m.hcb").exists()


def test_an_objective_chooses_the_policy_and_ends_the_summary_with_its_value(tmp_path: Path) -> None:
    model = conv_net(tmp_path / "m.onnx")
    assert "; slowest device " in partition(model, "-d", "CPU", "--objective", "throughput").splitlines()[0]
    goal = json.loads(partition(model, "-d", "CPU", "--objective", "transfers", "--json"))["plan"]["goal"]
    assert goal == {"objective": "transfers", "value": 0.0, "bound": 0.0}
    done = CliRunner().invoke(app, ["partition", str(model), "--objective", "overlap", "--policy", "greedy"])
    assert done.exit_code == 2 and "does not choose by the objective" in " ".join(done.output.split())
