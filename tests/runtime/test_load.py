"""Arguments of `load`: paths, bytes, files, lists of devices, and restrictions by the caller."""

from __future__ import annotations

import io
import itertools
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import heterocc.runtime
from heterocc.artifacts.errors import (
    BundleError,
    BundleHashError,
    FileMissingError,
    HeteroccError,
    NativeCodeError,
    UnknownDeviceError,
    UsageError,
)
from heterocc.artifacts.manifest import Device, Partition, TensorSpec, Variant
from heterocc.artifacts.reader import open_bundle
from heterocc.runtime import load
from heterocc.runtime.select.matching import answers, match_variants
from tests.fresh_process import fresh
from tests.runtime import standin
from tests.runtime.standin import CPU, OPENCL, ORT, VULKAN
from tests.runtime.test_limits import negation

Write = Callable[..., Path]
X = np.arange(16, dtype=np.float32)


# ---- from what ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, io.BytesIO, "file", "unnamed file"])
def test_a_bundle_is_loaded_from_bytes_and_from_files(kind: Any, bundle_of: Write) -> None:
    path = bundle_of(standin.chain(2))
    data = path.read_bytes()
    if kind == "file":
        source: Any = path.open("rb")
    elif kind == "unnamed file":
        source = tempfile.TemporaryFile()  # noqa: SIM115
        source.write(data)
        source.seek(0)
    else:
        source = kind(data)
    path.rename(path.with_suffix(".away"))
    with load(source, verify="load") as session:
        if isinstance(source, bytearray):
            source[:] = bytes(len(source))  # ours is a copy
        np.testing.assert_array_equal(session.run({"x": X})["v1"], X + 2)
        assert session.bundle.path in ("<memory>", str(path)) and session.bundle.digest
    if hasattr(source, "close"):
        assert not source.closed
        source.close()


def test_bytes_that_are_no_bundle_are_an_error_that_does_not_print_them() -> None:
    for data in (b"", b"secret" * 1000, bytes(10_000)):
        with pytest.raises(BundleError) as caught:
            load(data)
        assert caught.value.where == "<memory>" and len(str(caught.value)) < 300 and "secret" not in str(caught.value)


@pytest.mark.parametrize("source", [42, None, ["m.hcb"], {"secret": 1}, io.StringIO("secret"), Path, object()])
def test_what_is_neither_path_nor_bytes_nor_file_is_a_usage_error_that_names_its_type(source: Any) -> None:
    with pytest.raises(UsageError) as caught:
        load(source)
    assert "secret" not in str(caught.value) and caught.value.hint
    assert ("str" if isinstance(source, io.StringIO) else type(source).__name__) in str(caught.value)


def test_a_path_that_is_not_there_is_still_a_missing_file() -> None:
    for path in ("nothing.hcb", Path("nothing.hcb"), "a\0b"):
        with pytest.raises(FileMissingError):
            load(path)


def test_the_runtime_exports_its_errors_and_its_version() -> None:
    assert issubclass(heterocc.runtime.errors.FeedError, heterocc.runtime.errors.HeteroccError)
    assert heterocc.runtime.errors.HeteroccError is HeteroccError
    program = (
        "import sys, heterocc.runtime as r\n"
        "assert r.__version__ and r.errors.BundleError\n"
        "from heterocc.runtime.errors import UsageError\n"
        "assert not hasattr(r, 'nothing')\n"
        "print([m for m in ('onnx', 'tvm', 'onnxruntime', 'heterocc.compiler') if m in sys.modules])"
    )
    assert fresh(program).strip() == "[]"


# ---- what a caller may forbid -------------------------------------------------------------------------------------


def test_without_native_code_a_bundle_that_stays_onnx_loads(bundle_of: Write) -> None:
    with load(bundle_of(negation()), allow_native=False) as session:
        np.testing.assert_array_equal(session.run({"x": X})["y"], -X)


@pytest.mark.parametrize("devices", [None, "AUTO", "CPU"])
def test_without_native_code_a_compiled_bundle_is_refused_before_any_of_it_is_loaded(
    devices: str | None, bundle_of: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = bundle_of(standin.chain(1))
    monkeypatch.setattr("heterocc.runtime.execute.chain.load_library", None)
    with pytest.raises(NativeCodeError, match="allow_native=False") as caught:
        load(path, devices, allow_native=False)
    assert caught.value.code == "HC311" and caught.value.hint


def test_without_native_code_the_variant_that_stays_onnx_is_taken(bundle_of: Write) -> None:
    native = replace(standin.chain(1), values={"x": ("float32", (16,)), "y": ("float32", (16,))}, outputs=("y",))
    native = replace(native, parts=(replace(native.parts[0], outputs=("y",), ops=(
        standin.Op("add_w", "add", ("x", "w"), "y"),)),))  # fmt: skip
    path = bundle_of(native, negation())
    for devices in (None, "AUTO", "ORT"):
        with load(path, devices, allow_native=False) as session:
            assert session.devices == ("ORT",)
    assert any("native code" in note for note in load(path, allow_native=False).notes)
    with pytest.raises(NativeCodeError, match="the variant for CPU"):
        load(path, "CPU", allow_native=False)


def test_a_bundle_must_have_the_digest_that_is_expected(bundle_of: Write, tmp_path: Path) -> None:
    path = bundle_of(standin.chain(1))
    with open_bundle(path) as bundle:
        digest = bundle.digest
    load(path, expect_digest=digest.upper() + "\n").close()
    with pytest.raises(BundleHashError, match="digest is"):
        load(path, expect_digest="0" * 64)
    for wrong in ("", "0" * 63, "g" * 64, 1, b"0" * 64):
        with pytest.raises(UsageError, match="64 hexadecimal digits"):
            load(path, expect_digest=wrong)  # type: ignore[arg-type]


def test_a_wrong_digest_is_found_before_the_manifest_is_parsed(bundle_of: Write, tmp_path: Path) -> None:
    from tests.artifacts.bundle_forge import contents, pack, with_manifest

    path = bundle_of(standin.chain(1))
    pack(path, with_manifest(contents(path), b"[" * 1000))
    with pytest.raises(BundleHashError, match="digest is"):
        load(path, expect_digest="0" * 64)


# ---- which variant ------------------------------------------------------------------------------------------------


def variant(name: str, *devices: Device) -> Variant:
    value = TensorSpec(name="x", dtype="float32", shape=(1,))
    parts = tuple(
        Partition(name=f"p{i}", device=i, kind="tvm", code="c", inputs=(), outputs=(), nodes=())
        for i in range(len(devices))
    )
    return Variant(
        name=name, devices=devices, values=(value,), inputs=(0,), outputs=(0,), partitions=parts, plan="p", summary=""
    )


GPU = Device(name="GPU", backend="opencl")
SECOND = Device(name="OPENCL.1", backend="opencl", index=1)
CARD = Device(name="显卡", backend="cuda")

MATCHES: dict[str, tuple[tuple[Variant, ...], str, str, str | None]] = {
    "the labels": ((variant("main", GPU, CPU), variant("cpu", CPU)), "GPU,CPU", "main", None),
    "the labels in another case": ((variant("main", GPU, CPU), variant("cpu", CPU)), "gpu,Cpu", "main", None),
    "another order": ((variant("main", GPU, CPU), variant("cpu", CPU)), "CPU,GPU", "main", "order"),
    "this order before another": ((variant("a", GPU, CPU), variant("b", CPU, GPU)), "CPU,GPU", "b", None),
    "the name": ((variant("main", GPU, CPU), variant("cpu", CPU)), "main", "main", None),
    "a name in another case": ((variant("main", GPU, CPU), variant("cpu", CPU, ORT)), "Main", "main", None),
    "labels before names": ((variant("cpu", GPU), variant("main", CPU)), "CPU", "main", None),
    "the variant called cpu": ((variant("main", GPU, CPU, ORT), variant("cpu", CPU, ORT)), "CPU", "cpu", None),
    "the first GPU by its number": ((variant("main", GPU, CPU),), "GPU.0,CPU", "main", None),
    "the first GPU by its number, in another order": ((variant("main", GPU, CPU),), "cpu,gpu.0", "main", "order"),
    "a label with number 0": ((variant("main", Device(name="GPU.0", backend="cuda")),), "GPU", "main", None),
    "the back end of a GPU": ((variant("main", GPU, CPU), variant("cpu", CPU)), "OPENCL,CPU", "main", "matching"),
    "any GPU": ((variant("main", VULKAN, CPU), variant("cpu", CPU)), "GPU,CPU", "main", "matching"),
    "a label before a back end": ((variant("a", GPU), variant("b", OPENCL)), "OPENCL", "b", None),
    "a number": ((variant("a", OPENCL), variant("b", SECOND)), "OPENCL.1", "b", None),
    "two of one back end": ((variant("main", SECOND, OPENCL),), "OPENCL,OPENCL.1", "main", "order"),
    "GPU beside a back end": ((variant("main", SECOND, VULKAN),), "GPU,VULKAN", "main", "matching"),
    "a device of a file": ((variant("main", CARD, CPU),), "显卡,CPU", "main", None),
    "a device of a file by its back end": ((variant("main", CARD, CPU),), "CUDA,CPU", "main", "matching"),
    "ORT beside": ((variant("main", CPU, ORT),), "CPU", "main", "ONNX Runtime"),
    "ORT beside, in another order": ((variant("m", GPU, CPU, ORT), variant("c", CPU, ORT)), "CPU,GPU", "m", "Runtime"),
    "ORT alone": ((variant("main", ORT), variant("b", CPU, ORT)), "ORT", "main", None),
    "no node on the second": ((variant("main", GPU), variant("cpu", CPU)), "GPU,CPU", "main", "nothing was placed"),
    "all before some": ((variant("main", GPU), variant("b", GPU, CPU)), "GPU,CPU", "b", None),
}


@pytest.mark.parametrize("case", MATCHES)
def test_a_list_of_devices_means_a_variant(case: str) -> None:
    variants, devices, name, said = MATCHES[case]
    found, remark = match_variants(variants, devices.split(","))
    assert [v.name for v in found] == [name]
    assert (remark is None) if said is None else (remark is not None and said in remark)


@pytest.mark.parametrize("devices", ["NPU", "", "CPU,NPU", "GPU,CPU", "ORT", "GPU.1", "CPU.1", "CPU,CPU", "MAIN,CPU"])
def test_a_list_that_means_no_variant_finds_none(devices: str) -> None:
    found, _ = match_variants((variant("cpu", CPU, ORT), variant("b", CPU)), devices.split(","))
    assert [v.name for v in found] == (["b"] if devices in ("CPU,NPU", "CPU,CPU") else [])


def test_a_list_that_means_two_variants_is_an_error_that_lists_them(bundle_of: Write) -> None:
    found, _ = match_variants((variant("a", VULKAN, CPU), variant("b", OPENCL, CPU)), ["GPU", "CPU"])
    assert [v.name for v in found] == ["a", "b"]
    model = standin.chain(1)
    named = [replace(model, devices=(CPU.model_copy(update={"name": label}),)) for label in ("A", "B")]
    with pytest.raises(UnknownDeviceError, match="more than one variant") as caught:
        load(bundle_of(*named), "CPU")
    assert caught.value.hint == "name one: A; B (B#1)"


def test_every_variant_is_found_by_its_labels_and_by_its_name() -> None:
    devices = (CPU, ORT, GPU, VULKAN, SECOND, CARD)
    lists = [c for n in (1, 2, 3) for c in itertools.permutations(devices, n)]
    variants = tuple(variant(f"v{i}", *chosen) for i, chosen in enumerate(lists))
    for one in variants:
        for wanted in ([d.name for d in one.devices], [one.name]):
            assert match_variants(variants, wanted) == ((one,), None)


def test_the_note_names_what_differs_from_the_devices_asked_for(bundle_of: Write) -> None:
    both = replace(standin.chain(1), devices=(CPU, ORT))
    with load(bundle_of(both), "CPU") as session:
        assert any("CPU,ORT, for this variant needs ONNX Runtime" in note for note in session.notes)
        assert not any("as asked" in note for note in session.notes)
    with load(bundle_of(both), "ORT,CPU") as session:
        assert any("in the order that it was compiled for" in note for note in session.notes)


@pytest.mark.parametrize("devices", [42, ["CPU", 1], b"CPU", {"CPU": 1}, object()])
def test_devices_of_another_type_are_a_usage_error(devices: Any, bundle_of: Write) -> None:
    with pytest.raises(UsageError, match="devices must be a string such as"):
        load(bundle_of(standin.chain(1)), devices)


def test_auto_takes_the_first_gpu_by_its_number_too() -> None:
    assert all(answers(GPU, name) for name in ("gpu.0", "GPU", "opencl", "OPENCL.0")) and not answers(GPU, "OPENCL.1")
