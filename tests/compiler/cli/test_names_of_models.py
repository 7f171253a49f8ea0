"""Names in every script, and names that are hardly names, from the model's file through every command."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from heterocc.artifacts.container import name_is_safe
from heterocc.artifacts.reader import open_bundle
from heterocc.artifacts.text.names import file_name
from heterocc.compiler import compile_model
from heterocc.compiler.importer.pipeline import import_model
from heterocc.runtime import load
from tests.compiler.cli.test_commands import heterocc

ODD = (
    "café",
    "cafe\u0301",  # the same to a reader, another name
    "模型",
    "مرحبا",
    "\u202eabc",
    "🙂\u200d🔥",
    "a/b",
    "a_b",
    "a\\b",
    "a\nb\r\x0b\u2028c",
    "\x01\x1b[31mred",
    "é" * 300,
    "q\"uo'te",
    "[bold]x[/bold]",
    "%s{0}",
    "a # b  # pinned",
    " x ",
    "..",
    "CON",
    "p0 CPU: 1 node",
)


def odd_model(path: Path, ends: tuple[str, str] = ("模型/入力", "🙂 é\n")) -> Path:
    """y = relu(x @ w) + 1 + 1 …, an addition for each odd name; the input has a named dimension."""
    given, result = ends
    dims: list[int | str] = ["größe\u0301 大小", 4]
    nodes = [helper.make_node("MatMul", [given, "重み"], ["0"], name="مرحبا/node")]
    for number, name in enumerate(ODD):
        last = number == len(ODD) - 1
        nodes.append(helper.make_node("Add", [str(number), "один"], [result if last else str(number + 1)], name=name))
    constants = [
        numpy_helper.from_array(np.eye(4, dtype=np.float32), "重み"),
        numpy_helper.from_array(np.ones(1, np.float32), "один"),
    ]
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, dims) for n in ends]
    graph = helper.make_graph(nodes, "граф\n", info[:1], info[1:], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), os.fspath(path))
    return path


def run_all(model: Path, bundle: Path, *options: str) -> None:
    """Compile, inspect and run as a user does; every command must succeed."""
    folder = bundle.parent
    shape = ("--shape", "模型/入力=2,4")
    for command in (
        ("compile", *options, *shape, "-o", bundle, "--dump-dir", folder / "dump", "--", model),
        ("inspect", "--plan", "--members", "--kernels", bundle),
        ("inspect", "--json", bundle),
        ("run", bundle),
        ("verify", "--", bundle, model),
        ("check", bundle),
    ):
        done = heterocc(*command)
        assert done.exit_code == 0, (command[0], done.output)
    with open_bundle(bundle) as opened:
        assert all(name_is_safe(name) for name in opened.member_names)
    with load(bundle) as session:
        assert [i.name for i in session.inputs] == ["模型/入力"] and [o.name for o in session.outputs] == ["🙂 é\n"]
        x = np.arange(8, dtype=np.float32).reshape(2, 4)
        np.testing.assert_array_equal(session.run({"模型/入力": x})["🙂 é\n"], x + len(ODD))


def test_a_model_whose_names_are_odd_goes_through_every_command(tmp_path: Path) -> None:
    run_all(odd_model(tmp_path / "模型 é🙂.onnx"), tmp_path / "模型.hcb", "-d", "CPU")
    names = {p.name for p in (tmp_path / "dump").iterdir()}
    assert "00-greedy.plan" in names and all(n.isascii() for n in names)
    with open_bundle(tmp_path / "模型.hcb") as opened:
        assert opened.manifest.model.name == "模型 é🙂"
        assert set(ODD) <= {n for v in opened.manifest.variants for p in v.partitions for n in p.nodes}


def test_a_placement_of_odd_names_is_written_and_read_back(tmp_path: Path) -> None:
    model, place = odd_model(tmp_path / "м.onnx"), tmp_path / "配置.toml"
    options = ("-d", "CPU,ORT", "--shape", "模型/入力=2,4")
    done = heterocc("partition", *options, "--write-affinity", place, "--dot", tmp_path / "граф.dot", model)
    assert done.exit_code == 0, done.output
    place.write_text(place.read_text(encoding="utf-8").replace('"CPU"', '"ORT"'), encoding="utf-8")
    done = heterocc("partition", *options, "--affinity", place, model)
    assert done.exit_code == 0, done.output
    assert f"ORT {len(ODD) + 1} (1 partition)" in done.output


def test_a_device_of_a_file_may_have_a_name_of_any_script(tmp_path: Path) -> None:
    text = 'name = "显卡"\nbackend = "cpu"\ntarget = { mcpu = "x86-64-v2" }\n'
    (tmp_path / "显卡.toml").write_text(text, encoding="utf-8")
    run_all(odd_model(tmp_path / "м.onnx"), tmp_path / "m.hcb", "-d", "CPU", "--variant", "显卡", "--device-file",
            str(tmp_path / "显卡.toml"))  # fmt: skip
    with open_bundle(tmp_path / "m.hcb") as opened:
        assert [v.name for v in opened.manifest.variants] == ["main", "显卡"]


@pytest.mark.parametrize("stem", [b"caf\xe9 \xff", "é".encode() * 120, b"a\nb", b"-x", b"--json", b"[b]"])
def test_a_model_file_may_have_any_name_that_a_file_system_takes(stem: bytes, tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(stem + b".onnx")
    model = import_model(odd_model(path), shapes={"模型/入力": (2, 4)})
    model.name.encode()
    assert name_is_safe(f"graphs/hetero_affinity_{file_name(model.name)}.dot")


def test_a_name_that_no_bundle_may_have_is_an_error_of_the_model(tmp_path: Path) -> None:
    path = odd_model(tmp_path / "m.onnx", ("x" * 4097, "y"))
    done = heterocc("compile", "-d", "CPU", "--shape", f"{'x' * 4097}=2,4", "-o", tmp_path / "m.hcb", path)
    assert done.exit_code == 1 and "HC103" in done.output and "4097 characters" in done.output


def test_names_of_files_are_ascii_short_and_never_the_same() -> None:
    names = (*ODD, *(file_name(n) for n in ODD), "a", "A", "x" * 101, "x" * 102, "", ".", "-", "\ud800", "main")
    made = [file_name(n) for n in dict.fromkeys(names)]
    assert len(set(made)) == len(made)
    for name in made:
        assert name_is_safe(name) and len(name) <= 100 and not name.startswith("-") and name == name.strip(".")
    assert file_name("squeezenet1.0-12_v2") == "squeezenet1.0-12_v2"
    # What looks like a made name is made anew, so that no honest name can meet it.
    assert file_name(file_name("café")) != file_name("café")


@pytest.mark.parametrize(
    "device", [pytest.param(d, marks=getattr(pytest.mark, d.lower())) for d in ("OPENCL", "VULKAN")]
)
def test_kernels_of_nodes_with_odd_names_run_on_a_gpu(device: str, tmp_path: Path) -> None:
    """Each node is a separate kernel; keywords of C and names that differ only in case are among them."""
    names = [*ODD, "kernel", "global", "float", "main", "A/B", "a.b", "7"]
    nodes = [
        helper.make_node("LogSoftmax", [names[i - 1] if i else "in put"], [name], name=name)
        for i, name in enumerate(names)
    ]
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 5]) for n in ("in put", names[-1])]
    graph = helper.make_graph(nodes, "граф\n", info[:1], info[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    report = compile_model(model, tmp_path / "m.hcb", devices=device, cpu_variant=False)
    assert not report.unchecked and not report.moved
    x = np.random.default_rng(0).standard_normal((2, 5)).astype(np.float32)
    with load(tmp_path / "m.hcb") as session:
        found = session.run({"in put": x})[names[-1]]
    expected = x - np.log(np.exp(x).sum(axis=1, keepdims=True))  # its own LogSoftmax
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
