"""AUTO at load time, and the next variant if one fails to load."""

from __future__ import annotations

import gc
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi

from heterocc.artifacts.errors import BundleHashError, IncompatibleBundleError, UnknownDeviceError
from heterocc.artifacts.manifest import Device
from heterocc.artifacts.reader import open_bundle
from heterocc.runtime import Session, load
from heterocc.runtime.machine.devices import device_here
from heterocc.runtime.machine.found import FoundDevice, found_cpu
from heterocc.runtime.machine.ranking import rank
from heterocc.runtime.native import opencl_unavailable_reason, vulkan_unavailable_reason
from heterocc.runtime.native.vulkan_api import statistics, trim
from heterocc.runtime.select import select
from heterocc.runtime.select.request import parse_request
from heterocc.runtime.select.select import select_variants
from tests.fresh_process import STRICT
from tests.runtime import standin
from tests.runtime.standin import Model

Write = Callable[..., Path]
X = np.arange(16, dtype=np.float32)
NO_OPENCL, NO_VULKAN = opencl_unavailable_reason(), vulkan_unavailable_reason()
opencl = [pytest.mark.opencl, pytest.mark.skipif(NO_OPENCL is not None, reason=f"no OpenCL here: {NO_OPENCL}")]
vulkan = [pytest.mark.vulkan, pytest.mark.skipif(NO_VULKAN is not None, reason=f"no Vulkan here: {NO_VULKAN}")]


def variant(letter: str, *, name: str | None = None, index: int = 0) -> Model:
    """x + 1 on one device; `v`, `g` and `c` as in standin.chain."""
    made = standin.chain(1, device=letter)
    return replace(made, devices=(replace_device(made.devices[0], name=name, index=index),))


def replace_device(device: Device, *, name: str | None, index: int) -> Device:
    return device.model_copy(update={"name": name or device.name, "index": index})


def record(label: str, unit: Any, *, software: bool = False, dtypes: set[str] | None = None) -> FoundDevice:
    made = replace(found_cpu(), label=label, description=f"a {label}", unit=unit, software=software)
    return made if dtypes is None else replace(made, dtypes=frozenset(dtypes))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Cards that are not here: what a manifest's device runs on, by its label; all of them can be used."""

    def equip(**records: FoundDevice) -> None:
        monkeypatch.setattr(select, "driver_reason", lambda device: None)
        monkeypatch.setattr(select, "device_here", lambda device: records.get(device.name) or device_here(device))

    return equip


def order(path: Path, devices: str) -> list[str]:
    with open_bundle(path) as bundle:
        return [v.devices[0].name for v in select_variants(bundle.manifest, parse_request(devices), str(path)).variants]


# ---- which one ----------------------------------------------------------------------------------------------------


def test_auto_takes_discrete_then_integrated_then_cpu_then_software(
    bundle_of: Write, machine: Callable[..., None]
) -> None:
    machine(
        POCL=record("POCL", "cpu", software=True),
        DIE=record("DIE", "integrated"),
        CARD=record("CARD", "discrete"),
    )
    path = bundle_of(variant("g", name="POCL"), variant("c"), variant("g", name="DIE"), variant("g", name="CARD"))
    assert order(path, "AUTO") == ["CARD", "DIE", "CPU", "POCL"]
    assert order(path, "auto:cpu,pocl") == ["CPU", "POCL"]
    assert order(path, "AUTO:DIE") == ["DIE"]


def test_auto_prefers_a_device_that_computes_the_variants_precision(
    bundle_of: Write, machine: Callable[..., None]
) -> None:
    machine(CARD=record("CARD", "discrete", dtypes={"float32", "float16"}))
    double = standin.chain(1, device="c", dtype="float64")
    on_card = replace(double, devices=(Device(name="CARD", backend="opencl"),), parts=(code(double),))
    assert order(bundle_of(on_card, double), "AUTO") == ["CPU", "CARD"]
    half = Device(name="CARD", backend="opencl", properties={"precision": "f16"})
    on_card = replace(on_card, devices=(half,))
    assert order(bundle_of(on_card, double), "AUTO") == ["CARD", "CPU"]


def code(model: Model) -> Any:
    return replace(model.parts[0], code=standin.compile_part(model, model.parts[0]))


def test_of_equal_devices_auto_takes_the_one_that_is_listed_or_compiled_first(
    bundle_of: Write, machine: Callable[..., None]
) -> None:
    machine(A=record("A", "discrete"), B=record("B", "discrete"))
    path = bundle_of(variant("g", name="A"), variant("g", name="B"), variant("c"))
    assert order(path, "AUTO") == ["A", "B", "CPU"]
    assert order(path, "AUTO:B,A") == ["B", "A"]
    assert order(path, "AUTO:GPU,CPU") == ["A", "B", "CPU"]


def test_onnx_runtime_alone_is_the_last_that_auto_takes(bundle_of: Write, machine: Callable[..., None]) -> None:
    machine(POCL=record("POCL", "cpu", software=True), ORT=record("ORT", "cpu"))
    part = standin.Part(0, ("x",), ("v0",), onnx=b"not read")
    path = bundle_of(replace(variant("c"), devices=(standin.ORT,), parts=(part,)), variant("g", name="POCL"))
    assert order(path, "AUTO") == ["POCL", "ORT"]


def test_a_device_is_ranked_alike_when_compiling_and_when_loading() -> None:
    from heterocc.compiler.devices.device import TargetDevice as Compiled
    from heterocc.compiler.devices.names import resolve_devices
    from heterocc.compiler.devices.present import Accelerators

    units = ("discrete", "integrated", "cpu", "other")
    cards = [
        Compiled(f"OPENCL.{i}", "opencl", i, unit=unit, software=software)  # type: ignore[arg-type]
        for i, (unit, software) in enumerate((u, s) for u in units for s in (False, True))
    ]
    for one in cards:
        for other in cards:
            if one is other:
                continue
            here = Accelerators(tuple(sorted(cards, key=lambda d: d.index)))
            ((chosen, *_), _) = resolve_devices(f"AUTO:{one.name},{other.name}", present=here)
            ranks = [rank(computes=True, present=True, unit=d.unit, software=d.software) for d in (one, other)]
            assert chosen.name == (one.name if ranks[0] <= ranks[1] else other.name)


@pytest.mark.parametrize("text", ["AUTO:TPU", "AUTO:,", "AUTO:CPU,", "AUTO:CPU,,GPU"])
def test_a_name_that_is_no_device_is_an_error(text: str, bundle_of: Write) -> None:
    with pytest.raises(UnknownDeviceError, match="AUTO"):
        load(bundle_of(variant("c")), text)


def test_devices_that_the_bundle_has_not_may_be_listed_but_not_alone(bundle_of: Write) -> None:
    path = bundle_of(variant("c"))
    with load(path, "AUTO:CUDA,CPU") as session:
        assert session.devices == ("CPU",)
    with pytest.raises(UnknownDeviceError, match="no variant for CUDA,VULKAN") as caught:
        load(path, "AUTO:CUDA,VULKAN")
    assert caught.value.hint == "it has variants for: CPU"


def test_what_cannot_run_is_passed_over_with_a_note(bundle_of: Write, caplog: pytest.LogCaptureFixture) -> None:
    path = bundle_of(variant("g", name="GPU.7", index=77), variant("c"))
    with caplog.at_level(logging.WARNING), load(path, ["AUTO"]) as session:
        assert session.devices == ("CPU",)
        assert "the variant for GPU.7 cannot run here" in session.notes[0]
        assert session.notes[1].startswith("AUTO chose CPU (") and session.notes[1].endswith(", CPU)")
    assert caplog.text == ""
    with pytest.raises(IncompatibleBundleError, match="none of those variants can run here"):
        load(path, "AUTO:GPU")


@pytest.mark.parametrize("device", [pytest.param("VULKAN", marks=vulkan), pytest.param("OPENCL", marks=opencl)])
def test_a_software_device_is_behind_the_cpu_and_alone_still_taken(bundle_of: Write, device: str) -> None:
    path = bundle_of(variant(device[0].lower().replace("o", "g")), variant("c"))
    with load(path, "AUTO") as session:
        assert session.devices == ("CPU",)
    for text in ("AUTO:GPU", f"AUTO:{device}"):
        with load(path, text) as session:
            assert session.devices == (device,)
            assert session.notes[0].startswith(f"AUTO chose {device} (")
            np.testing.assert_array_equal(session.run({"x": X})["v0"], X + 1)


def test_labels_are_found_whatever_their_case(bundle_of: Write) -> None:
    with load(bundle_of(variant("c")), "cpu") as session:
        assert session.devices == ("CPU",)


# ---- the next one -------------------------------------------------------------------------------------------------

LOADED = """
import gc, json, logging, sys
logging.basicConfig(level=logging.WARNING, format="%(message)s")
import numpy as np
from heterocc.artifacts.errors import HeteroccError
from heterocc.runtime import load
from heterocc.runtime.execute import chain
path, devices, discrete = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3] == "discrete"
if discrete:
    chain.shared_spaces = lambda variant: frozenset()  # memory of the device's own, as a card has it
try:
    with load(path, devices) as session:
        y = session.run({"x": np.arange(16, dtype=np.float32)})["v0"]
        assert (y == np.arange(16) + 1).all()
        report = {"devices": session.devices, "notes": session.notes}
except HeteroccError as error:
    report = {"error": type(error).__name__, "message": error.message, "hint": error.hint}
print(json.dumps(report))
"""


def loaded(path: Path, devices: str | None, *, discrete: bool = True, **environment: str) -> tuple[dict[str, Any], str]:
    """The result of loading and running in a fresh process, and its log."""
    command = [sys.executable, *STRICT, "-c", LOADED, str(path), json.dumps(devices)]
    done = subprocess.run(
        [*command, "discrete" if discrete else ""],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.mark.parametrize(
    ("letter", "environment", "words"),
    [
        pytest.param("v", {"HETEROCC_VULKAN_FAULT": "alloc:1"}, "HC404", marks=vulkan, id="vulkan memory"),
        pytest.param("v", {"HETEROCC_VULKAN_FAULT": "build:1"}, "HC401", marks=vulkan, id="vulkan kernel"),
        pytest.param("v", {"HETEROCC_VULKAN_FAULT": "discrete,lost:1"}, "HC409", marks=vulkan, id="vulkan device lost"),
        pytest.param("g", {"HETEROCC_OPENCL_FAULT": "alloc:1"}, "HC404", marks=opencl, id="opencl memory"),
        pytest.param("g", {"HETEROCC_OPENCL_FAULT": "build:1"}, "HC401", marks=opencl, id="opencl kernel"),
    ],
)
def test_if_loading_fails_the_next_variant_runs_with_notes(
    letter: str, environment: dict[str, str], words: str, bundle_of: Write
) -> None:
    failing = variant(letter)
    report, log = loaded(bundle_of(variant(letter, name="FAR", index=99), failing, variant("c")), None, **environment)
    assert report["devices"] == ["CPU"]
    far, failed, chosen = report["notes"]
    assert "FAR cannot run here" in far
    assert failed.startswith(f"the variant for {failing.devices[0].name} cannot be loaded: ") and words in failed
    assert chosen == "runs on CPU instead"
    assert all(note in log for note in (far, failed, chosen))


@pytest.mark.vulkan
@pytest.mark.skipif(NO_VULKAN is not None, reason=f"no Vulkan here: {NO_VULKAN}")
def test_auto_falls_back_in_its_own_order(bundle_of: Write) -> None:
    path = bundle_of(variant("v", name="ONE"), variant("v", name="TWO"), variant("c"))
    report, log = loaded(path, "AUTO:ONE,TWO", HETEROCC_VULKAN_FAULT="build:1")
    assert report["devices"] == ["TWO"]
    assert report["notes"][0].startswith("the variant for ONE cannot be loaded: ")
    assert report["notes"][1].startswith("AUTO chose TWO (") and report["notes"][1].endswith(") instead")
    assert "cannot be loaded" in log


@pytest.mark.vulkan
@pytest.mark.skipif(NO_VULKAN is not None, reason=f"no Vulkan here: {NO_VULKAN}")
def test_a_named_variant_never_falls_back(bundle_of: Write) -> None:
    path = bundle_of(variant("v"), variant("c"))
    report, _ = loaded(path, "VULKAN", HETEROCC_VULKAN_FAULT="build:1")
    assert report["error"] == "DeviceError" and "loading partition 'p0'" in report["message"]


@pytest.mark.vulkan
@pytest.mark.skipif(NO_VULKAN is not None, reason=f"no Vulkan here: {NO_VULKAN}")
def test_if_all_fail_one_error_lists_each_variant_with_its_reason(bundle_of: Write) -> None:
    path = bundle_of(variant("v", name="ONE"), variant("g", name="FAR", index=99), variant("v", name="TWO"))
    report, _ = loaded(path, None, HETEROCC_VULKAN_FAULT="alloc:1,build:1")
    assert report["error"] == "DeviceError" and report["message"] == "no variant of the bundle can be loaded here"
    reasons = report["hint"].split(" | ")
    assert [r.split(" ")[3] for r in reasons] == ["FAR", "ONE", "TWO"]
    assert "HC404" in reasons[1] and "HC401" in reasons[2]


@pytest.mark.parametrize("devices", [None, "AUTO"])
@pytest.mark.parametrize(
    ("letter", "environment"),
    [
        ("v", {"VK_ICD_FILENAMES": "/nonexistent.json", "VK_DRIVER_FILES": "/nonexistent.json"}),
        ("g", {"OCL_ICD_VENDORS": "/nonexistent"}),
    ],
    ids=["vulkan", "opencl"],
)
def test_without_a_driver_the_variant_is_passed_over(
    letter: str, environment: dict[str, str], devices: str | None, bundle_of: Write
) -> None:
    if (NO_VULKAN if letter == "v" else NO_OPENCL) is not None:
        pytest.skip("the driver is missing here already, and the code cannot be compiled")
    report, log = loaded(bundle_of(variant(letter), variant("c")), devices, discrete=False, **environment)
    assert report["devices"] == ["CPU"]
    assert "cannot be used" in report["notes"][0] and "cannot run here" in report["notes"][0]
    assert ("cannot run here" in log) == (devices is None)


@pytest.mark.vulkan
@pytest.mark.skipif(NO_VULKAN is not None, reason=f"no Vulkan here: {NO_VULKAN}")
@pytest.mark.parametrize("size", [1 << 8, 1 << 20], ids=["a part of a block", "a block of its own"])
def test_what_a_failed_variant_held_is_freed(size: int, bundle_of: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("heterocc.runtime.execute.chain.shared_spaces", lambda _: frozenset())
    path = bundle_of(standin.chain(1, shape=(size,), device="v"), standin.chain(1, shape=(size,)))
    fault = tvm_ffi.get_global_func("heterocc.vulkan.fault")
    gc.collect()
    trim()
    before = statistics()
    gc.disable()
    try:
        fault("alloc:2+")
        with load(path) as session:
            assert session.devices == ("CPU",)
            after = statistics()
    finally:
        gc.enable()
        fault("")
    assert after.used <= before.used and after.held <= before.held


@pytest.mark.vulkan
@pytest.mark.skipif(NO_VULKAN is not None, reason=f"no Vulkan here: {NO_VULKAN}")
def test_the_variant_runs_from_ordinary_memory_if_none_can_be_pinned(
    bundle_of: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heterocc.runtime.execute.chain.shared_spaces", lambda _: frozenset())
    path = bundle_of(standin.chain(1, device="v"), standin.chain(1))
    fault = tvm_ffi.get_global_func("heterocc.vulkan.fault")
    trim()
    fault("alloc:2")  # the first is the device's own memory
    try:
        with load(path) as session:
            assert fault("") == ""  # it was met
            assert session.devices == ("VULKAN",)
            x = np.arange(16, dtype=np.float32)
            assert np.array_equal(session.run({"x": x})["v0"], x + 1)
    finally:
        fault("")


def test_a_damaged_bundle_is_no_reason_to_try_the_next_variant(bundle_of: Write) -> None:
    other = standin.chain(1)
    (part,) = other.parts
    other = replace(other, parts=(replace(part, ops=(replace(part.ops[0], symbol="another"),)),))
    path = bundle_of(variant("c", name="A"), other)
    with open_bundle(path) as bundle:
        first, second = (bytes(bundle.member(v.partitions[0].code)) for v in bundle.manifest.variants)
    data = bytearray(path.read_bytes())
    assert first != second
    data[data.index(first)] ^= 1
    path.write_bytes(bytes(data))
    for devices in (None, "AUTO"):
        with pytest.raises(BundleHashError):
            load(path, devices)
    with load(path, "CPU") as session:
        np.testing.assert_array_equal(session.run({"x": X})["v0"], X + 1)


@pytest.mark.vulkan
@pytest.mark.skipif(NO_VULKAN is not None, reason=f"no Vulkan here: {NO_VULKAN}")
def test_sessions_on_the_device_run_on_while_others_fail_to_load(bundle_of: Write) -> None:
    path = bundle_of(variant("v"), variant("c"))
    fault = tvm_ffi.get_global_func("heterocc.vulkan.fault")
    stop = threading.Event()

    def run(session: Session) -> int:
        rounds = 0
        while not stop.is_set():
            np.testing.assert_array_equal(session.run({"x": X + rounds})["v0"], X + rounds + 1)
            rounds += 1
        return rounds

    with load(path, "VULKAN", threads=1) as session, ThreadPoolExecutor(4) as pool:
        callers = [pool.submit(run, session) for _ in range(4)]
        try:
            for _ in range(20):
                fault("build:1")
                with load(path, threads=1) as other:
                    assert other.devices == ("CPU",)
        finally:
            stop.set()
            fault("")
        assert all(caller.result() > 0 for caller in callers)
