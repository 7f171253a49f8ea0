"""Placement by a table of costs: `heterocc partition --cost-table`, and its errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

from heterocc.artifacts.errors import CostTableError, InvalidGraphError, UnsupportedOpError
from heterocc.compiler.cli.main import app
from heterocc.compiler.importer.as_written import graph_as_written
from heterocc.compiler.placement.cost_table import partition_by_table

NODES = ("a", "b", "c", "d")


def diamond(path: Path, **names: str) -> Path:
    """a feeds b and c, which d adds; the value of a has 4,000 bytes."""
    nodes = [
        helper.make_node("Relu", ["x"], ["va"], name="a"),
        helper.make_node("Sigmoid", ["va"], ["vb"], name="b"),
        helper.make_node("Tanh", ["va"], ["vc"], name="c"),
        helper.make_node("Add", ["vb", "vc"], ["y"], name="d"),
    ]
    for node in nodes:
        node.name = names.get(node.name, node.name)
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [10, 100]) for n in "xy"]
    model = helper.make_model(
        helper.make_graph(nodes, "diamond", ends[:1], ends[1:]), opset_imports=[helper.make_opsetid("", 17)]
    )
    onnx.save(model, path)
    return path


def table(path: Path, **changes: Any) -> Path:
    """A is slow and has no launch cost; B is fast for b and d, and takes 4 us to reach."""
    data: dict[str, Any] = {
        "devices": ["A", "B"],
        "node_us": {"a": {"A": 5}, "b": {"A": 30, "B": 2}, "c": {"A": 3, "B": 3.5}, "d": {"A": 40.5, "B": 1}},
        "link": {
            "A->B": {"latency_us": 2, "gb_per_s": 2},
            "B->A": {"latency_us": 2, "gb_per_s": 2},
        },
        "launch_us": {"B": 7},
    }
    data.update(changes)
    path.write_text(json.dumps({key: value for key, value in data.items() if value is not None}))
    return path


def placed(tmp_path: Path, *options: str, **changes: Any) -> dict[str, Any]:
    arguments = [
        "partition",
        str(diamond(tmp_path / "m.onnx")),
        "--cost-table",
        str(table(tmp_path / "t.json", **changes)),
    ]
    done = CliRunner().invoke(app, [*arguments, "--json", *options])
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_plan_of_least_cost_is_written_with_its_transfers_and_bound(tmp_path: Path) -> None:
    found = placed(tmp_path, "--policy", "optimal")
    # a on A, all others on B: 5 + 2 + 3.5 + 1, a's value once in 2 + 4,000 B / 2 GB/s, one launch of B
    assert found["cost_us"] == pytest.approx(5 + 6.5 + 4 + 7)
    assert found["lower_bound_us"] == pytest.approx(found["cost_us"])
    assert [(p["device"], p["nodes"]) for p in found["partitions"]] == [("A", ["a"]), ("B", ["b", "c", "d"])]
    assert [(p["inputs"], p["outputs"]) for p in found["partitions"]] == [(["x"], ["va"]), (["va"], ["y"])]
    assert found["transfers"] == [{"value": "va", "from": "A", "to": "B", "bytes": 4000}]
    assert found["policy"] == "optimal" and 0 <= found["seconds"] < 60


def test_an_objective_has_its_value_and_bound_beside_the_cost_of_a_run(tmp_path: Path) -> None:
    found = placed(tmp_path, "--objective", "transfers")
    assert found["policy"] == "optimal" and found["transfers"] == [] and found["cost_us"] == pytest.approx(78.5)
    assert found["objective"] == {"name": "transfers", "value": 0, "lower_bound": 0}
    found = placed(tmp_path, "--objective", "throughput")
    # a on A; on B the transfer of its value, b, c, d and a launch: c on A would add a transfer of 4 us
    assert found["device_us"] == pytest.approx({"A": 5, "B": 17.5}) and found["cost_us"] == pytest.approx(22.5)
    assert found["objective"]["name"] == "throughput" and found["objective"]["value"] == pytest.approx(17.5)
    assert found["lower_bound_us"] <= 22.5 + 1e-6
    assert found["device_bytes"] == {"A": 4000, "B": 12000}


def test_an_overlapped_plan_has_start_and_end_of_each_partition(tmp_path: Path) -> None:
    found = placed(tmp_path, "--objective", "overlap", launch_us={})
    # a on A to 5 us, its value on B at 9, b to 11; c on A beside these, its value on B at 13, d to 14
    assert found["objective"]["value"] == pytest.approx(14) and found["cost_us"] == pytest.approx(19)
    assert max(p["end_us"] for p in found["partitions"]) == pytest.approx(14)
    assert [p["start_us"] for p in found["partitions"]] == sorted(p["start_us"] for p in found["partitions"])


def test_memory_divides_a_model_or_says_why_it_cannot(tmp_path: Path) -> None:
    found = placed(tmp_path, "--objective", "memory", memory_bytes={"A": 8000, "B": 8000})
    assert found["device_bytes"] == {"A": 8000, "B": 8000}
    arguments = ["partition", str(tmp_path / "m.onnx"), "--cost-table"]
    small = table(tmp_path / "small.json", memory_bytes={"A": 8000, "B": 4000})
    done = CliRunner().invoke(app, [*arguments, str(small), "--objective", "memory"])
    assert done.exit_code == 1 and "HC201" in done.output and "16000 bytes" in done.output.replace("\n", " ")


def test_a_node_without_a_time_names_the_key_to_add_and_the_text_counts_in_words(tmp_path: Path) -> None:
    arguments = ["partition", str(diamond(tmp_path / "m.onnx")), "--cost-table"]
    done = CliRunner().invoke(app, [*arguments, str(table(tmp_path / "t.json", node_us={"a": {"A": 5}}))])
    assert done.exit_code == 1 and "HC201" in done.output and "a time in node_us" in " ".join(done.output.split())
    done = CliRunner().invoke(app, [*arguments, str(table(tmp_path / "t.json")), "--policy", "optimal"])
    assert "(optimal); 2 partitions, 1 transfer, 4000 bytes" in done.stdout and "p0 A: 1 node: a" in done.stdout


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--policy", "merge"], "does not choose by the objective"),
        (["--policy", "measured"], "compiles and times plans"),
        (["--passes", "manual,mincut"], "passes have their objective as an option"),
    ],
)
def test_an_objective_needs_the_policy_that_chooses_by_it(tmp_path: Path, options: list[str], message: str) -> None:
    arguments = ["partition", str(diamond(tmp_path / "m.onnx")), "--cost-table", str(table(tmp_path / "t.json"))]
    done = CliRunner().invoke(app, [*arguments, "--objective", "throughput", *options])
    assert done.exit_code == 2 and "HC120" in done.output and message in " ".join(done.output.split())


def test_greedy_and_merge_keep_the_order_of_devices_and_state_the_same_bound(tmp_path: Path) -> None:
    for policy in ("greedy", "merge"):
        found = placed(tmp_path, "--policy", policy)
        assert found["cost_us"] == pytest.approx(5 + 30 + 3 + 40.5) and len(found["partitions"]) == 1
        assert found["lower_bound_us"] == pytest.approx(22.5)


def test_pins_memory_and_missing_links_bind_the_plan(tmp_path: Path) -> None:
    found = placed(tmp_path, "--policy", "optimal", pin={"b": "A"})
    assert next(p["device"] for p in found["partitions"] if "b" in p["nodes"]) == "A"
    found = placed(tmp_path, "--policy", "optimal", memory_bytes={"A": None, "B": 8000})
    assert sum(len(p["nodes"]) for p in found["partitions"] if p["device"] == "B") <= 2
    found = placed(tmp_path, "--policy", "optimal", link={})
    assert [p["device"] for p in found["partitions"]] == ["A"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"devices": None}, "key 'devices'"),
        ({"devices": []}, "key 'devices'"),
        ({"devices": ["A", "A"]}, "listed twice"),
        ({"speed": 1}, "key 'speed'"),
        ({"node_us": {"a": {"C": 1}}}, "names the device 'C'"),
        ({"node_us": {"z": {"A": 1}}}, "no node 'z'"),
        ({"node_us": {"a": {"A": -1}}}, "key 'node_us.a.A'"),
        ({"link": {"A-B": {"latency_us": 1, "gb_per_s": 1}}}, "'A-B' in 'link'"),
        ({"link": {"A->A": {"latency_us": 1, "gb_per_s": 1}}}, "'A->A' in 'link'"),
        ({"link": {"A->B": {"latency_us": 1, "gb_per_s": 0}}}, "key 'link.A->B.gb_per_s'"),
        ({"pin": {"a": "B"}}, "which cannot run it"),
        ({"pin": {"z": "A"}}, "no node 'z'"),
        ({"memory_bytes": {"C": 1}}, "names the device 'C'"),
    ],
)
def test_an_error_in_a_table_names_its_place(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CostTableError, match=message) as caught:
        partition_by_table(diamond(tmp_path / "m.onnx"), table(tmp_path / "t.json", **changes))
    assert caught.value.code == "HC113" and caught.value.hint


@pytest.mark.parametrize("text", ["{", "[]", '{"devices": ["A"], "devices": ["B"]}', '{"devices": [NaN]}', "\xff"])
def test_what_is_no_table_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "t.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(CostTableError):
        partition_by_table(diamond(tmp_path / "m.onnx"), tmp_path / "t.json")


def test_a_node_that_no_device_has_a_time_for_is_an_error(tmp_path: Path) -> None:
    costs = {"a": {"A": 5}, "b": {"A": 3}, "c": {"A": 3}}
    for policy in ("greedy", "optimal"):
        with pytest.raises(UnsupportedOpError, match=r"'d'.*no time"):
            partition_by_table(diamond(tmp_path / "m.onnx"), table(tmp_path / "t.json", node_us=costs), policy=policy)


def test_options_without_effect_and_unknown_objectives_are_refused(tmp_path: Path) -> None:
    arguments = ["partition", str(diamond(tmp_path / "m.onnx")), "--cost-table", str(table(tmp_path / "t.json"))]
    for option in (["-d", "CPU"], ["--dot", str(tmp_path)], ["--time-passes"], ["--objective", "beauty"]):
        done = CliRunner().invoke(app, [*arguments, *option])
        assert done.exit_code == 2 and "HC120" in done.output


def test_the_graph_is_taken_as_it_is_written(tmp_path: Path) -> None:
    value = helper.make_tensor("value", TensorProto.FLOAT, [1], [2.0])
    nodes = [
        helper.make_node("Constant", [], ["two"], name="two", value=value),
        helper.make_node("Mul", ["two", "two"], ["four"]),
        helper.make_node("Mul", ["x", "four"], ["y"], name="m"),
    ]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 3]) for n in "xy"]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:])), tmp_path / "m.onnx")
    graph, unknown = graph_as_written(tmp_path / "m.onnx")
    assert [n.name for n in graph.nodes] == ["Mul_1", "m"] and graph.constants == {"two"} and unknown == []
    graph, _ = graph_as_written(tmp_path / "m.onnx", timed={"two"})
    assert [n.name for n in graph.nodes] == ["two", "Mul_1", "m"] and not graph.constants


def test_two_nodes_of_one_name_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidGraphError, match="two nodes are named 'b'"):
        graph_as_written(diamond(tmp_path / "m.onnx", c="b"))


def test_an_unknown_size_counts_as_nothing_and_a_warning_says_so(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["v"], name="a"), helper.make_node("Tanh", ["v"], ["y"], name="b")]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 250]) for n in "xy"]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:])), tmp_path / "m.onnx")
    costs = table(tmp_path / "t.json", node_us={"a": {"A": 1}, "b": {"B": 1}}, launch_us={})
    arguments = ["partition", str(tmp_path / "m.onnx"), "--cost-table", str(costs)]
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == 0 and json.loads(done.stdout)["cost_us"] == pytest.approx(4)
    assert "the size of 'v' is not known" in done.stderr
    done = CliRunner().invoke(app, [*arguments, "--json", "--shape", "x=8,250"])
    assert done.exit_code == 0 and json.loads(done.stdout)["cost_us"] == pytest.approx(8) and not done.stderr
    assert "A -> B" in CliRunner().invoke(app, arguments).stdout
