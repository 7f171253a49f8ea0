"""A planted wrong kernel is found while compiling, by verify and by bisect, and its node is named."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto

from heterocc.artifacts.errors import LoweringError, WrongResultError
from heterocc.artifacts.reader import open_bundle
from heterocc.compiler import compile_model
from heterocc.compiler.checking import check as checking
from heterocc.compiler.checking.verify import verify_bundle
from heterocc.compiler.lower.backend import LoweredPartition, PartitionJob
from heterocc.runtime import load
from tests.compiler.onnx_build import model, value
from tests.compiler.onnx_build import node as made
from tests.compiler.small import chain, conv_net

PLANT = "HETEROCC_TEST_WRONG_KERNEL"


@pytest.mark.parametrize("node", ["conv2", "gate", "fc"])
def test_a_planted_wrong_kernel_goes_to_the_next_device_with_a_warning(
    node: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PLANT, node)
    report = compile_model(conv_net(tmp_path / "m.onnx"), tmp_path / "m.hcb", devices="CPU,ORT")
    assert [(m.node, m.source, m.target) for m in report.moved] == [(node, "CPU", "ORT")]
    assert any(f"'{node}' computes a wrong result on CPU and moves to ORT" in w for w in report.warnings)
    assert "elements differ" in report.moved[0].error
    assert verify_bundle(tmp_path / "m.hcb", tmp_path / "m.onnx").ok


@pytest.mark.parametrize("node", ["gathered", "codes"])
def test_a_wrong_kernel_of_sizes_that_only_the_run_knows_goes_to_the_next_device(
    node: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.integers(0, 256, (32, 2, 16)).astype(np.uint8),
        "s": rng.random((32, 2), np.float32),
        "t": rng.random((9, 64), np.float32),
    }
    large = {"domain": "com.microsoft", "K": 64, "N": 32, "bits": 4, "block_size": 32}
    proto = model(
        [made("Gather", "t i", "x", "gathered"), made("MatMulNBits", "x w s", "y", "codes", **large)],
        [value("i", ["rows", "columns"], TensorProto.INT64)],
        [value("y")],
        weights,
        domains=[("com.microsoft", 1)],
    )
    monkeypatch.setenv(PLANT, node)
    report = compile_model(proto, tmp_path / "m.hcb", devices="CPU,ORT", measure=False)
    assert [(m.node, m.source, m.target) for m in report.moved] == [(node, "CPU", "ORT")]
    assert any(f"'{node}' computes a wrong result on CPU and moves to ORT" in w for w in report.warnings)


def test_a_wrong_kernel_that_no_other_device_can_take_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PLANT, "gate")
    with pytest.raises(WrongResultError, match="gate") as caught:
        compile_model(conv_net(tmp_path / "m.onnx"), tmp_path / "m.hcb", devices="CPU")
    assert caught.value.code == "HC204" and caught.value.hint
    assert not (tmp_path / "m.hcb").exists()


def test_a_node_that_cannot_be_compiled_alone_is_not_the_wrong_one_for_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing:
        def lower(self, job: PartitionJob) -> LoweredPartition:
            raise LoweringError(f"{job.nodes[0]} cannot be compiled")

    monkeypatch.setattr(checking, "lowering_for", lambda _: Refusing())
    monkeypatch.setenv(PLANT, "gate")
    with pytest.raises(WrongResultError, match="elements differ") as caught:
        compile_model(conv_net(tmp_path / "m.onnx"), tmp_path / "m.hcb", devices="CPU")
    assert "cannot be compiled" not in str(caught.value)


@pytest.mark.parametrize("node", ["conv2", "gate", "fc"])
def test_verify_finds_what_an_unchecked_compile_let_through_and_bisect_names_it(
    node: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, bundle = conv_net(tmp_path / "m.onnx"), tmp_path / "m.hcb"
    monkeypatch.setenv(PLANT, node)
    report = compile_model(model, bundle, devices="CPU", check=False)
    monkeypatch.delenv(PLANT)
    assert not report.moved
    assert not verify_bundle(bundle, None).ok
    found = verify_bundle(bundle, model, bisect=True)
    assert not found.ok and found.culprit is not None
    assert node in found.culprit.nodes and len(found.culprit.nodes) <= 4  # the nodes that one kernel fuses
    assert found.culprit.partition == "p0" and found.culprit.device == "CPU"
    assert node in found.culprit.sentence()


def test_the_bundle_says_what_was_checked_and_what_was_not(tmp_path: Path) -> None:
    model = conv_net(tmp_path / "m.onnx")
    for check in (True, False):
        compile_model(model, tmp_path / "m.hcb", devices="CPU", check=check)
        with open_bundle(tmp_path / "m.hcb") as bundle:
            (variant,) = bundle.manifest.variants
            assert [p.checked for p in variant.partitions] == [check]
            assert bool(variant.notes) != check


def test_a_device_that_is_not_here_is_compiled_but_not_checked_and_said_so(tmp_path: Path) -> None:
    device = tmp_path / "arm.toml"
    device.write_text(
        'name = "ARM"\nbackend = "cpu"\n[target]\nkind = "llvm"\nmtriple = "aarch64-linux-gnu"\nmcpu = "cortex-a76"\n'
    )
    report = compile_model(conv_net(tmp_path / "m.onnx"), tmp_path / "m.hcb", devices="ARM", device_files=[device])
    assert any("ARM" in text and "not on this machine" in text for text in report.unchecked)
    with open_bundle(tmp_path / "m.hcb") as bundle:
        (variant,) = bundle.manifest.variants
        assert not any(p.checked for p in variant.partitions)
        assert variant.devices[0].arch == "aarch64"
        code = bytes(bundle.member(variant.partitions[0].code))
    assert code[:4] == b"\x7fELF" and int.from_bytes(code[18:20], "little") == 183


def test_the_same_input_gives_the_same_bytes_whatever_the_hash_seed_and_the_folder(tmp_path: Path) -> None:
    digests = set()
    script = (
        "import sys, hashlib; from heterocc.compiler import compile_model;"
        "compile_model(sys.argv[1], 'out.hcb', devices='CPU,ORT');"
        "print(hashlib.sha256(open('out.hcb','rb').read()).hexdigest())"
    )
    for seed in ("1", "2"):
        folder = tmp_path / f"folder{seed}"
        folder.mkdir()
        model = conv_net(folder / "m.onnx")
        done = subprocess.run(
            [sys.executable, "-c", script, str(model)],
            cwd=folder,
            env={**_environment(), "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(done.stdout.split()[-1])
    assert len(digests) == 1


def test_a_chain_of_one_node_partitions_is_right(tmp_path: Path) -> None:
    model = chain(tmp_path / "m.onnx", 12)
    pins = {f"n{i}": ("CPU", "ORT")[i % 2] for i in range(12)}
    report = compile_model(model, tmp_path / "m.hcb", devices="CPU,ORT", affinity=pins)
    assert len(report.plan.partitions) == 12
    assert verify_bundle(tmp_path / "m.hcb", model).ok
    with load(tmp_path / "m.hcb") as session:
        out = session.run({"x": np.zeros((4, 64), np.float32)})
    assert json.dumps(sorted(out)) == '["v11"]'


def _environment() -> dict[str, str]:
    import os

    return dict(os.environ)
