"""The support query, with lowerings that fail by operator type."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from rich.console import Console

from heterocc.artifacts.errors import AffinityPatternError, LoweringError, UnknownDeviceError
from heterocc.compiler.cli.tables import query_table
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.pipeline import import_model
from heterocc.compiler.lower.backend import LoweredPartition, PartitionJob
from heterocc.compiler.placement.machine import build_machine
from heterocc.compiler.support import trial
from heterocc.compiler.support.cache import Answer, Answers
from heterocc.compiler.support.query import QueryResult, query_model
from heterocc.compiler.support.trial import Refusal, Support
from tests.compiler.onnx_build import model as onnx_model
from tests.compiler.onnx_build import node as onnx_node
from tests.compiler.onnx_build import value

D0 = TargetDevice("D0", "cpu", target={"kind": "llvm", "mcpu": "d0"})
D1 = TargetDevice("D1", "cpu", target={"kind": "llvm", "mcpu": "d1"})
ORT = TargetDevice("ORT", "ort", static_shapes_only=False)


@dataclass
class FakeLowering:
    """A lowering of every operator except `lacks`; records its trials."""

    lacks: frozenset[str]
    asked: list[str] = field(default_factory=list)

    def lower(self, job: PartitionJob) -> LoweredPartition:
        raise LoweringError("this lowering only answers")

    def trial(self, model: ImportedModel, node: str, device: TargetDevice) -> str | None:
        self.asked.append(node)
        op_type = model.graph.node_by_name[node].op_type
        return f"{device.name} has no converter for {op_type}" if op_type in self.lacks else None


@dataclass
class Bench:
    """Fake lowerings by device name."""

    lacks: dict[str, set[str]]
    made: dict[str, FakeLowering] = field(default_factory=dict)

    def __call__(self, device: TargetDevice) -> FakeLowering:
        return self.made.setdefault(device.name, FakeLowering(frozenset(self.lacks.get(device.name, ()))))


def save(tmp_path: Path, nodes: Sequence[onnx.NodeProto], shape: Sequence[int | str], **constants: np.ndarray) -> Path:
    last = nodes[-1].output[0]
    graph = helper.make_graph(
        list(nodes),
        "g",
        [helper.make_tensor_value_info("p", TensorProto.FLOAT, list(shape))],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    path = tmp_path / "g.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10), path)
    return path


@pytest.fixture
def sub_reshape(tmp_path: Path) -> ImportedModel:
    """p -> sub -> reshape."""
    nodes = [
        helper.make_node("Sub", ["p", "k"], ["s"], name="sub"),
        helper.make_node("Reshape", ["s", "to"], ["r"], name="reshape"),
    ]
    k, to = np.arange(6, dtype=np.float32).reshape(2, 3), np.array([3, 2], np.int64)
    return import_model(save(tmp_path, nodes, [2, 3], k=k, to=to))


LACKS = {"D0": {"Sub"}, "D1": {"Reshape"}}


def ask(
    model: ImportedModel, *devices: TargetDevice, bench: Callable[[TargetDevice], FakeLowering] | None = None
) -> QueryResult:
    return query_model(model, devices, lowering=bench or Bench(LACKS), cache=Answers())


def by_label(result: QueryResult) -> dict[str, str]:
    return {result.graph.node_by_name[n].label: d for n, d in result.items()}


def labels(result: QueryResult, nodes: Sequence[str]) -> list[str]:
    return [result.graph.node_by_name[n].label for n in nodes]


def test_only_what_the_first_device_lacks_goes_to_the_second(sub_reshape: ImportedModel) -> None:
    result = ask(sub_reshape, D0, D1)
    assert by_label(result) == {"sub": "D1", "reshape": "D0"}
    assert result.nowhere == ()


def test_the_first_device_alone_reports_exactly_what_it_lacks(sub_reshape: ImportedModel) -> None:
    result = ask(sub_reshape, D0)
    assert labels(result, result.unsupported("D0")) == ["sub"]
    assert labels(result, result.nowhere) == ["sub"]
    assert result.reason("sub", "D0") == "D0 has no converter for Sub"
    assert by_label(result) == {"reshape": "D0"}


def test_a_dynamic_shape_on_a_static_only_device_is_unsupported_and_says_why(sub_reshape: ImportedModel) -> None:
    graph = sub_reshape.graph
    dynamic = dict(graph.values)
    written = graph.node_by_name[next(iter(graph.node_by_name))].outputs[0]
    dynamic[written] = type(dynamic[written])(written, "float32", (None, 3))
    model = _with_values(sub_reshape, dynamic)
    static_only = ask(model, D0, D1)
    assert labels(static_only, static_only.nowhere) == ["sub", "reshape"]
    assert "[?, 3]" in (static_only.reason("sub", "D1") or "")
    assert "known only at run time" in (static_only.reason("sub", "D1") or "")
    free = TargetDevice("D1", "cpu", target={"kind": "llvm"}, static_shapes_only=False)
    assert ask(model, D0, free).supports("sub", "D1")


def _with_values(model: ImportedModel, values: dict) -> ImportedModel:
    import dataclasses

    return dataclasses.replace(model, graph=dataclasses.replace(model.graph, values=values))


def test_affinities_of_the_model_do_not_change_the_answer(sub_reshape: ImportedModel) -> None:
    import dataclasses

    pinned = tuple(dataclasses.replace(n, affinity="D1") for n in sub_reshape.graph.nodes)
    model = dataclasses.replace(sub_reshape, graph=dataclasses.replace(sub_reshape.graph, nodes=pinned))
    assert ask(model, D0, D1).to_json()["nodes"] == ask(sub_reshape, D0, D1).to_json()["nodes"]


@pytest.mark.parametrize(
    ("device", "rule", "words"),
    [
        (TargetDevice("D", "cpu", refuses=frozenset(["Sub"])), "refused", "described as refusing Sub"),
        (TargetDevice("D", "cpu", dtypes=frozenset(["int64"])), "dtype", "is float32, which D does not compute"),
        (TargetDevice("D", "cpu", max_buffer=23), "limit", "has 24 bytes, more than the 23 of one buffer"),
        (TargetDevice("D", "cpu", memory=71), "limit", "its tensors have 72 bytes, more than D's 71"),
    ],
)
def test_a_devices_limits_are_asked_before_any_trial(
    sub_reshape: ImportedModel, device: TargetDevice, rule: str, words: str
) -> None:
    bench = Bench({})
    result = ask(sub_reshape, device, bench=bench)
    refusal = next(iter(result.refusals["D"].values()))
    assert refusal.rule == rule
    assert words in refusal.reason
    assert "sub" not in labels(result, bench.made["D"].asked if bench.made else [])


def test_limits_that_are_met_exactly_are_no_refusal(sub_reshape: ImportedModel) -> None:
    assert ask(sub_reshape, TargetDevice("D", "cpu", max_buffer=24, memory=72), bench=Bench({})).nowhere == ()


def joining(count: int) -> onnx.ModelProto:
    names = [f"x{n}" for n in range(count)]
    return onnx_model([onnx_node("Max", " ".join(names), "y")], [value(n, [1]) for n in names], [value("y", [1])])


def branching(count: int) -> onnx.ModelProto:
    bodies = [
        helper.make_graph(
            [onnx_node("Neg", "x", f"{b}{n}") for n in range(count)],
            b,
            [],
            [value(f"{b}{n}", [1]) for n in range(count)],
        )
        for b in "ab"
    ]
    branches = dict(zip(("then_branch", "else_branch"), bodies, strict=True))
    names = [f"y{n}" for n in range(count)]
    node = onnx_node("If", "c", " ".join(names), **branches)
    return onnx_model([node], [value("c", [], TensorProto.BOOL), value("x", [1])], [value(n, [1]) for n in names])


@pytest.mark.parametrize("build", [joining, branching])
def test_a_node_of_thousands_of_inputs_or_outputs_is_refused_before_any_trial(
    monkeypatch: pytest.MonkeyPatch, build: Callable[[int], onnx.ModelProto]
) -> None:
    monkeypatch.setattr(trial, "MOST_ENDS", 20)
    for count, refused in (19, False), (21, True):
        result = query_model(import_model(build(count)), "CPU,ORT")
        (node,) = result.graph.nodes
        assert result[node.name] == ("ORT" if refused else "CPU")
        assert ("inputs and outputs, more than 20" in str(result.reason(node.name, "CPU"))) is refused


def test_no_code_is_made_of_a_model_of_more_named_sizes_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "MOST_NAMED", 3)
    for count, refused in (3, False), (4, True):
        nodes = [onnx_node("Neg", f"x{n}", f"y{n}") for n in range(count)]
        inputs, outputs = ([value(f"{kind}{n}", [f"d{n}"]) for n in range(count)] for kind in "xy")
        result = query_model(import_model(onnx_model(nodes, inputs, outputs), keep_dims=True), "CPU,ORT")
        assert set(result.values()) == {"ORT" if refused else "CPU"}
        assert ("4 named sizes, more than 3" in str(result.reason(result.graph.nodes[0].name, "CPU"))) is refused


def test_the_last_resort_comes_after_all_others_wherever_it_stands(sub_reshape: ImportedModel) -> None:
    assert by_label(ask(sub_reshape, ORT, D0)) == {"sub": "ORT", "reshape": "D0"}


def test_whatever_a_trial_raises_is_an_answer(sub_reshape: ImportedModel) -> None:
    class Raises(FakeLowering):
        def trial(self, model: ImportedModel, node: str, device: TargetDevice) -> str | None:
            if model.graph.node_by_name[node].op_type == "Sub":
                raise LoweringError("no such thing")
            raise ZeroDivisionError("first line\nthe cause")

    result = ask(sub_reshape, D0, bench=lambda device: Raises(frozenset()))
    assert result.reason("sub", "D0") == "no such thing"
    assert result.reason("reshape", "D0") == "no code can be generated for this form of it"


def test_equal_nodes_are_asked_once_and_different_ones_each(tmp_path: Path) -> None:
    names = ["p", *(f"v{i}" for i in range(6))]
    nodes = [helper.make_node("LeakyRelu", [a], [b], name=b, alpha=0.5) for a, b in pairwise(names)]
    nodes.append(helper.make_node("LeakyRelu", ["v5"], ["w"], name="w", alpha=0.25))
    bench = Bench({})
    model = import_model(save(tmp_path, nodes, [2, 3]))
    ask(model, D0, bench=bench)
    assert len(model.graph.nodes) == 7
    assert len(bench.made["D0"].asked) == 2


@pytest.mark.parametrize("works", [True, False, None])
def test_many_different_nodes_are_tried_together_and_each_alone_only_if_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, works: bool | None
) -> None:
    """Without an answer (None) the model has more nodes than are tried together."""

    class Whole(FakeLowering):
        def trial_whole(self, model: ImportedModel, device: TargetDevice) -> bool:
            assert works is not None
            return works

    if works is None:
        monkeypatch.setattr(trial, "MOST_TOGETHER", 8)

    names = ["p", *(f"v{i}" for i in range(9))]
    nodes = [helper.make_node("LeakyRelu", [a], [b], name=b, alpha=i / 10) for i, (a, b) in enumerate(pairwise(names))]
    lowering = Whole(frozenset())
    result = ask(import_model(save(tmp_path, nodes, [2, 3])), D0, bench=lambda device: lowering)
    assert len(lowering.asked) == (0 if works else 9)
    assert len(result) == 9


def test_the_value_of_a_small_integer_constant_is_part_of_the_question(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Softmax", ["p"], ["q"], name="soft"),
        helper.make_node("Slice", ["q", "zero", "two", "axis"], ["a"], name="a"),
        helper.make_node("Slice", ["q", "one", "three", "axis"], ["b"], name="b"),
        helper.make_node("Add", ["a", "b"], ["c"], name="c"),
    ]
    numbers = {k: np.array([v], np.int64) for k, v in {"zero": 0, "one": 1, "two": 2, "three": 3, "axis": 1}.items()}
    bench = Bench({})
    model = import_model(save(tmp_path, nodes, [2, 3], **numbers))
    ask(model, D0, bench=bench)
    asked = [model.graph.node_by_name[n].op_type for n in bench.made["D0"].asked]
    assert asked.count("Slice") == 2


def test_an_input_read_twice_is_another_question_than_two_inputs(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Sin", ["p"], ["s"], name="s"),
        helper.make_node("Mul", ["p", "p"], ["a"], name="a"),
        helper.make_node("Mul", ["p", "s"], ["b"], name="b"),
        helper.make_node("Mul", ["a", "b"], ["c"], name="c"),
    ]
    bench = Bench({})
    ask(import_model(save(tmp_path, nodes, [2, 3])), D0, bench=bench)
    assert len(bench.made["D0"].asked) == 3


def test_an_answer_is_remembered_on_disk_for_its_target_only(sub_reshape: ImportedModel, tmp_path: Path) -> None:
    def asked(device: TargetDevice) -> int:
        bench = Bench(LACKS)
        store = Answers(tmp_path / "cache")
        result = query_model(sub_reshape, [device], lowering=bench, cache=store)
        assert labels(result, result.nowhere) == ["sub"]
        return len(bench.made[device.name].asked) if bench.made else 0

    assert asked(D0) == 2
    assert asked(D0) == 0
    assert asked(TargetDevice("D0", "cpu", target={"kind": "llvm", "mcpu": "other"})) == 2


@pytest.mark.parametrize(
    ("error", "kept"), [(ZeroDivisionError, 2), (ImportError, 0), (MemoryError, 0), (FileNotFoundError, 0)]
)
def test_what_a_trial_raises_for_reasons_of_its_process_is_not_remembered(
    sub_reshape: ImportedModel, tmp_path: Path, error: type[Exception], kept: int
) -> None:
    class Raises(FakeLowering):
        def trial(self, model: ImportedModel, node: str, device: TargetDevice) -> str | None:
            raise error("x")

    query_model(sub_reshape, [D0], lowering=lambda d: Raises(frozenset()), cache=Answers(tmp_path / "cache"))
    assert len(list((tmp_path / "cache").rglob("*.json"))) == kept


def test_a_remembered_reason_names_no_node_of_another_model(sub_reshape: ImportedModel, tmp_path: Path) -> None:
    class Names(FakeLowering):
        def trial(self, model: ImportedModel, node: str, device: TargetDevice) -> str | None:
            return f"node '{node}' does not lower"

    store = Answers(tmp_path / "cache")
    kept: list[Answer] = []
    query_model(sub_reshape, [D0], lowering=lambda d: Names(frozenset()), cache=store)
    for path in (tmp_path / "cache").rglob("*.json"):
        kept.append(Answer(json.loads(path.read_text())["reason"]))
    assert kept == [Answer("the node does not lower")] * 2


def test_a_result_is_a_mapping_that_the_user_corrects(sub_reshape: ImportedModel) -> None:
    plan = ask(sub_reshape, D0, D1, bench=Bench({}))
    assert by_label(plan) == {"sub": "D0", "reshape": "D0"}
    plan["sub"] = "d1"
    assert plan["sub"] == "D1"
    assert list(plan.changes().values()) == ["D1"]
    assert list(plan) == [n.name for n in plan.graph.nodes]
    del plan["reshape"]
    assert by_label(plan) == {"sub": "D1"}
    assert plan.affinity == dict(plan)
    assert plan.supports("reshape", "D0")


def test_a_correction_of_an_unknown_node_or_device_is_an_error(sub_reshape: ImportedModel) -> None:
    plan = ask(sub_reshape, D0, D1)
    with pytest.raises(AffinityPatternError, match="no node is named 'subb'"):
        plan["subb"] = "D0"
    with pytest.raises(UnknownDeviceError, match="'D2' was not queried"):
        plan["sub"] = "D2"
    with pytest.raises(KeyError):
        plan["subb"]


def test_the_json_has_every_node_with_every_reason(sub_reshape: ImportedModel) -> None:
    record = json.loads(json.dumps(ask(sub_reshape, D0, D1).to_json()))
    assert [d["supported"] for d in record["devices"]] == [1, 1]
    sub, reshape = record["nodes"]
    assert sub["original"] == ["sub"]
    assert sub["device"] == "D1"
    assert sub["refused"] == {"D0": {"rule": "lowering", "reason": "D0 has no converter for Sub"}}
    assert list(reshape["refused"]) == ["D1"]
    assert record["nowhere"] == []


def test_the_table_groups_by_operator_and_names_what_runs_nowhere(sub_reshape: ImportedModel) -> None:
    text = ask(sub_reshape, D0).to_text()
    lines = [line.split() for line in text.splitlines()]
    assert ["Reshape", "1", "all"] in lines
    assert ["Sub", "1", "none", *"D0: sub: D0 has no converter for Sub".split()] in lines
    assert ["all", "2", "1"] in lines
    assert "no device runs sub" in text
    assert "query again with CPU and ORT in `devices`" in text


@pytest.mark.parametrize("width", [60, 160])
def test_the_text_is_what_a_terminal_of_that_width_shows(sub_reshape: ImportedModel, width: int) -> None:
    reason = "a/rather/long/name/without/a/space/that/goes/on has no converter, and that takes more than a line to say"
    refusals = {"D0": {n.name: Refusal("lowering", reason) for n in sub_reshape.graph.nodes}, "D1": {}}
    for result in (
        ask(sub_reshape, D0, D1),
        QueryResult(sub_reshape.graph, (D0,), refusals, ["a note that is longer than sixty characters, to be wrapped"]),
    ):
        shown = Console(file=io.StringIO(), width=width, color_system=None, force_terminal=False)
        shown.print(query_table(result))
        assert isinstance(shown.file, io.StringIO)
        assert result.to_text(width) == shown.file.getvalue().replace("--devices", "`devices`")


def test_a_path_and_names_of_devices_are_understood(sub_reshape: ImportedModel, tmp_path: Path) -> None:
    result = query_model(tmp_path / "g.onnx", "CPU", lowering=Bench({}), cache=Answers(), shapes={"p": [2, 3]})
    assert [d.backend for d in result.devices] == ["cpu"]
    assert len(result) == 2


def test_progress_is_called_once_for_every_node(sub_reshape: ImportedModel) -> None:
    called: list[str] = []
    query_model(sub_reshape, [D0, D1], lowering=Bench({}), cache=Answers(), on_node=called.append)
    assert called == ["sub", "reshape"]


def test_the_rules_are_asked_once_for_each_node_and_the_signature_is_hashed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = [helper.make_node("Relu", [f"v{i}" if i else "p"], [f"v{i + 1}"]) for i in range(50)]
    path = save(tmp_path, nodes, [4])
    asked: list[str] = []
    hashed: list[TargetDevice] = []
    target_json = TargetDevice.target_json
    monkeypatch.setattr(TargetDevice, "target_json", lambda d: (hashed.append(d), target_json(d))[1])
    refused = Support._refused
    monkeypatch.setattr(Support, "_refused", lambda s, n, d: (asked.append(n.name), refused(s, n, d))[1])
    query_model(path, [D0], lowering=Bench({}), cache=Answers())
    assert len(asked) == len(set(asked)) == 50
    assert len(hashed) == 1


def test_the_machine_carries_refusals_work_and_links(sub_reshape: ImportedModel) -> None:
    result = ask(sub_reshape, D0, D1, ORT)
    found = build_machine(sub_reshape, result.devices, result.reasons())
    sub, reshape = (n.name for n in sub_reshape.graph.nodes)
    assert [d.name for d in found.devices] == ["D0", "D1", "ORT"]
    assert [d.last_resort for d in found.devices] == [False, False, True]
    assert found.refusal("D0", sub) == "D0 has no converter for Sub"
    assert found.refusal("D1", sub) is None
    assert found.work == {sub: 6.0, reshape: 0.0}
    assert found.link("D0", "D1").latency > 0
