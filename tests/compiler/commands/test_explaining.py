"""`heterocc explain` of models and bundles, and the query whose changes are compiled."""

import json
import re
from pathlib import Path

import onnx
import pytest
from typer.testing import CliRunner

from heterocc.artifacts.errors import BundleError, InputError, UnknownDeviceError
from heterocc.compiler import compile_model, explain_bundle, explain_model, partition_model, query_model
from heterocc.compiler.cli.main import app
from heterocc.compiler.commands import explaining
from heterocc.compiler.commands.explaining import measured_run
from heterocc.runtime.profile.profile import Clock, Profile, ProfileEvent, ProfileRecord
from tests.compiler.small import conv_net
from tests.passes.explain.test_report import data_of
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
    monkeypatch.setattr("heterocc.compiler.pipeline.packed.write_record", lambda found: '{"format": 1, "plan": []}')
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
    data = data_of(page("b.html", "compile", str(model), "-o", str(bundle), "-d", "CPU", "--no-check"))
    assert data["measured"] is None and data["nodes"][0]["op"] == "Conv"
    assert ["pads", "[1, 1, 1, 1]"] in data["attributes"][data["nodes"][0]["attributes"]]
    weight = data["values"][data["nodes"][0]["in"][1]]
    assert weight[4] == 1 and float(weight[5]) < float(weight[6])
    assert "CPU alone" in page("c.html", "explain", str(bundle))
    data = data_of(page("d.html", "bench", str(bundle), "-n", "1", "--profile"))
    measured = data["measured"]
    assert data["attributes"][data["nodes"][0]["attributes"]] and measured["tracks"] == ["CPU, thread 1"]
    assert sum(n["measured"] or 0 for n in data["nodes"]) == pytest.approx(
        sum(k["us"] for k in measured["kernels"] if k["nodes"]), rel=1e-3
    )
    steps = [(measured["kernels" if kernel else "steps"][place], start, us) for kernel, place, _, start, us in
             measured["moments"]]  # fmt: skip
    assert steps[0][0]["name"] == "p0" and len(steps) == 1 + len(measured["kernels"])
    assert all(start >= 0 and start + us <= steps[0][2] + 0.001 for _, start, us in steps)
    done = CliRunner().invoke(app, ["bench", str(bundle), "-n", "1", "--report", str(tmp_path / "e.html")])
    assert done.exit_code == 2 and "add --profile" in done.output
    done = CliRunner().invoke(app, ["explain", str(bundle), "--report", str(bundle)])
    assert done.exit_code == 1 and "HC111" in done.output
    other = str(tmp_path / "d.html")
    for number, arguments in enumerate(
        (
            ["explain", str(model), "-d", "CPU"],
            ["explain", str(bundle)],
            ["bench", str(bundle), "-n", "1", "--profile"],
            ["compile", str(model), "-o", str(bundle), "-d", "CPU", "--no-check"],
        )
    ):
        beside = re.search('id="beside">(.*?)</script>', page(f"both-{number}.html", *arguments, "--compare", other))
        assert beside is not None and json.loads(beside[1]) == {"name": "d.html", "report": data}
        done = CliRunner().invoke(app, [*arguments, "--compare", other])
        assert done.exit_code == 2 and "add --report" in done.output
    same = ["compile", str(model), "-o", other, "--report", str(tmp_path / "f.html"), "--compare", other]
    assert "HC111" in CliRunner().invoke(app, same).output and data_of(Path(other).read_text()) == data


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


def profile_of(*events: tuple[str, int, int, int], clock: Clock = "host") -> Profile:
    """A profile of a partition `p` with a kernel `k`, from their names, begins, ends and threads."""
    records = {
        "p": ProfileRecord("partition", "p0", "EXECUTED", "", 1.0, 1.0, "GPU tvm", "GPU", "p0"),
        "k": ProfileRecord("kernel", "a + b", "EXECUTED", "", 0.5, 0.1, "GPU a_and_1", "GPU", "p0", ("a", "b"), 2.0,
                           clock),
        "n": ProfileRecord("node", "c", "NOT_RUN", "", 0.0, 0.0, "", "GPU", "p0", ("c",)),
    }  # fmt: skip
    moments = tuple(ProfileEvent(records[name], begin, end, thread) for name, begin, end, thread in events)
    return Profile(tuple(records.values()), 3, ("a note",), moments)


def test_a_report_has_the_run_of_median_length_and_what_other_threads_did_meanwhile() -> None:
    runs = [("p", 0, 90, 7), ("k", 10, 20, 7), ("p", 100, 400, 7), ("k", 110, 120, 7), ("p", 130, 200, 8),
            ("p", 1000, 1100, 7), ("k", 1015, 1025, 7), ("p", 1300, 1400, 7)]  # fmt: skip
    found = measured_run(profile_of(*runs))
    assert [(s.kind, s.kernel, s.calls) for s in found.steps] == [("partition", "tvm", 0.0), ("kernel", "a_and_1", 2.0)]
    assert found.runs == 3 and found.note == "a note" and found.seconds == 1e-3
    assert [(m.step, round(m.begin * 1e9), m.track) for m in found.moments] == [
        (0, 0, "GPU, thread 1"),
        (1, 15, "GPU, thread 1"),
    ]
    assert measured_run(profile_of(*runs[2:5])).moments[2].track == "GPU, thread 2"
    assert measured_run(profile_of(*runs[:2], clock="device")).moments[1].track == "GPU, its own clock"
    assert measured_run(profile_of()).moments == ()


def test_a_run_of_too_many_steps_is_cut_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explaining, "MOST_MOMENTS", 2)
    found = measured_run(profile_of(("p", 0, 90, 7), ("k", 10, 20, 7), ("k", 30, 40, 7)))
    assert len(found.moments) == 2 and found.note == "a note; the timeline has the first 2 of 3 steps of the run"
