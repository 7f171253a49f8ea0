"""`heterocc explain` of models and bundles, and the query whose changes are compiled."""

import json
from pathlib import Path

import onnx
import pytest
from typer.testing import CliRunner

from heterocc.artifacts.errors import BundleError, InputError, UnknownDeviceError
from heterocc.compiler import compile_model, explain_bundle, explain_model, partition_model, query_model
from heterocc.compiler.cli.main import app
from tests.compiler.small import conv_net
from tests.runtime.standin import Model, Op, Part, write_bundle

LIKE_A_GPU = """
name = "LIKE"
backend = "opencl"
refuses = ["Sigmoid"]
"""


def asked(tmp_path: Path) -> dict[str, object]:
    (tmp_path / "like.toml").write_text(LIKE_A_GPU)
    return {"devices": "LIKE,CPU", "device_files": tmp_path / "like.toml"}


def test_a_query_given_to_a_compile_pins_only_what_was_set(tmp_path: Path) -> None:
    model = conv_net(tmp_path / "m.onnx")
    options = asked(tmp_path)
    plain = partition_model(model, **options).plan
    plan = query_model(model, options["devices"], device_files=[options["device_files"]])
    assert partition_model(model, affinity=plan, **options).plan.partitions == plain.partitions
    assert plan["conv1"] == "LIKE"
    plan["conv1"] = "CPU"
    changed = partition_model(model, affinity=plan, **options).plan
    assert dict(changed.pins) == {"conv1": "CPU"}
    assert len(changed.partitions) <= len(plain.partitions) + 1
    plan["conv1"] = "LIKE"  # as the query had it: now the user's decision
    assert dict(partition_model(model, affinity=plan, **options).plan.pins) == {"conv1": "LIKE"}
    del plan["conv1"]
    assert plan.pins() == {}


def test_explain_of_a_model_gives_reasons_plans_and_costs(tmp_path: Path) -> None:
    found = explain_model(conv_net(tmp_path / "m.onnx"), policy="greedy", **asked(tmp_path))
    gate = found.named("gate")[0]
    assert (gate.device, gate.why) == ("CPU", "only") and "refusing Sigmoid" in gate.sentence
    assert [o.name for o in found.others] == ["greedy", "merge", "optimal", "LIKE alone", "CPU alone"]
    assert len(found.transfers) == 2 and "Sigmoid 'gate' cannot be on LIKE" in found.transfers[0].sentence


def test_the_command_prints_text_one_node_or_json(tmp_path: Path) -> None:
    model = conv_net(tmp_path / "m.onnx")
    (tmp_path / "like.toml").write_text(LIKE_A_GPU)
    arguments = ["explain", str(model), "-d", "LIKE,CPU", "--device-file", str(tmp_path / "like.toml")]

    def explain(*more: str) -> str:
        done = CliRunner().invoke(app, [*arguments, *more])
        assert done.exit_code == 0, done.output
        return done.stdout

    assert "m, policy merge: 8 nodes: " in explain() and "CPU alone" in explain("-q")
    assert explain("--node", "gate", "-q").startswith("Sigmoid 'gate': CPU, p")
    (node,) = json.loads(explain("--node", "gate", "--json"))["nodes"]
    assert node["others"][0]["reason"] == "device LIKE is described as refusing Sigmoid"
    done = CliRunner().invoke(app, [*arguments, "--node", "none"])
    assert done.exit_code == 1 and "'none' matches no node" in done.output


def test_a_bundle_explains_its_variants_like_the_model(tmp_path: Path) -> None:
    model, bundle = conv_net(tmp_path / "m.onnx"), tmp_path / "m.hcb"
    compile_model(model, bundle, devices="CPU", check=False)
    there, here = explain_bundle(bundle), explain_model(model, devices="CPU")
    assert there.to_json() == here.to_json()
    assert explain_bundle(bundle, "cpu").plan.partitions == here.plan.partitions
    with pytest.raises(UnknownDeviceError, match="no variant 'GPU'"):
        explain_bundle(bundle, "GPU")
    done = CliRunner().invoke(app, ["explain", str(bundle), "--policy", "optimal"])
    assert done.exit_code == 2 and "--policy has no effect on a bundle" in done.output


def test_a_bundle_without_a_record_is_an_error_that_says_so(tmp_path: Path) -> None:
    values = {"x": ("float32", (4,)), "y": ("float32", (4,))}
    part = Part(0, ("x",), ("y",), (Op("copy", "copy", ("x",), "y"),))
    bundle = write_bundle(tmp_path / "m.hcb", Model(values, ("x",), ("y",), (part,)))
    with pytest.raises(InputError, match="no record of the placement"):
        explain_bundle(bundle)


def test_a_malformed_record_is_a_bundle_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = tmp_path / "m.hcb"
    monkeypatch.setattr("heterocc.compiler.driver.write_record", lambda found: '{"format": 1, "plan": []}')
    compile_model(conv_net(tmp_path / "m.onnx"), bundle, devices="CPU", check=False)
    with pytest.raises(BundleError, match="record of the placement is malformed"):
        explain_bundle(bundle)


def test_a_report_is_written_by_explain_compile_and_bench(tmp_path: Path) -> None:
    model, bundle = conv_net(tmp_path / "m.onnx"), tmp_path / "m.hcb"

    def page(name: str, *arguments: str) -> str:
        done = CliRunner().invoke(app, [*arguments, "--report", str(tmp_path / name)])
        assert done.exit_code == 0, done.output
        return (tmp_path / name).read_text()

    assert "m: placement" in page("a.html", "explain", str(model), "-d", "CPU")
    assert '"measured":false' in page("b.html", "compile", str(model), "-o", str(bundle), "-d", "CPU", "--no-check")
    assert "CPU alone" in page("c.html", "explain", str(bundle))
    timed = page("d.html", "bench", str(bundle), "-n", "1", "--profile")
    assert '"measured":true' in timed and '"kernels":[{' in timed
    done = CliRunner().invoke(app, ["bench", str(bundle), "-n", "1", "--report", str(tmp_path / "e.html")])
    assert done.exit_code == 2 and "add --profile" in done.output
    done = CliRunner().invoke(app, ["explain", str(bundle), "--report", str(bundle)])
    assert done.exit_code == 1 and "HC111" in done.output


def test_an_annotated_model_has_device_partition_time_and_reason_of_every_node(tmp_path: Path) -> None:
    proto = onnx.load(conv_net(tmp_path / "m.onnx"))
    proto.graph.node[1].name = ""
    proto.graph.node[2].metadata_props.add(key="heterocc.device", value="from an earlier run")
    constant = onnx.helper.make_node("Identity", ["m"], ["m2"], name="copy")
    proto.graph.node.insert(7, constant)
    proto.graph.node[8].input[1] = "m2"
    onnx.save(proto, tmp_path / "m.onnx")
    out = tmp_path / "out" / "m.onnx"
    out.parent.mkdir()
    explain_model(tmp_path / "m.onnx", policy="greedy", annotate=out, **asked(tmp_path))
    nodes = onnx.load(out).graph.node
    found = {n.name or n.op_type: {e.key.removeprefix("heterocc."): e.value for e in n.metadata_props} for n in nodes}
    assert found["gate"]["device"] == "CPU" and "refusing Sigmoid" in found["gate"]["why"]
    assert found["Relu"]["device"] == "LIKE" and float(found["Relu"]["estimated_us"]) > 0
    assert found["conv2"]["device"] == "LIKE" and len(nodes[2].metadata_props) == 4
    assert found["copy"] == {"device": "none: folded or removed by the import"}
    onnx.checker.check_model(onnx.load(out))
