from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from heterocc.runtime.native import OpenCLDevice, load_tvm_runtime, opencl_devices, tvm_libraries
from tests.fresh_process import fresh

REPORT = """
import json, sys
from heterocc.artifacts.errors import HeteroccError
from heterocc.runtime import native
try:
    native.load_opencl()
    code = None
except HeteroccError as error:
    code = [error.code, error.hint]
print(json.dumps({"code": code, "reason": native.opencl_unavailable_reason(), "tvm": "tvm" in sys.modules}))
"""


@pytest.mark.opencl
def test_the_devices_are_described_and_hardware_comes_first() -> None:
    devices = opencl_devices()
    assert devices
    assert all(isinstance(d, OpenCLDevice) and d.name and d.memory > 0 and d.max_group > 0 for d in devices)
    assert [d.software for d in devices] == sorted(d.software for d in devices)
    assert all(d.fp16 == ("cl_khr_fp16" in d.extensions) for d in devices)


@pytest.mark.opencl
def test_a_fresh_process_gets_opencl_without_importing_tvm() -> None:
    assert json.loads(fresh(REPORT)) == {"code": None, "reason": None, "tvm": False}


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"OCL_ICD_VENDORS": "/nonexistent"}, "no driver is installed|libOpenCL.so.1 cannot be opened"),
        ({"HETEROCC_OPENCL_FAULT": "no-driver"}, "cannot be opened"),
    ],
)
def test_a_missing_driver_is_an_error_with_a_hint(environment: dict[str, str], words: str) -> None:
    if not _built():
        pytest.skip("the plug-in was not built")
    report = json.loads(fresh(REPORT, **environment))
    assert report["code"][0] == "HC403"
    assert "driver" in report["code"][1]
    assert any(w in report["reason"] for w in words.split("|"))


def test_import_tvm_works_without_a_driver_and_without_the_plug_in() -> None:
    program = """
from heterocc.artifacts.frozen import replaced
from heterocc.runtime.native import opencl_api
opencl_api.PLUGIN = replaced(opencl_api.PLUGIN, library="libnot_there.so")
import tvm
print(opencl_api.opencl_unavailable_reason())
"""
    assert "the OpenCL plug-in is not there" in fresh(program, HETEROCC_OPENCL_FAULT="no-driver")


def test_import_tvm_registers_opencl_and_loading_again_changes_nothing() -> None:
    program = """
import tvm, tvm_ffi
from tvm_ffi.registry import list_global_func_names
from heterocc.runtime.native import load_tvm_runtime, register
before = sorted(list_global_func_names())
load_tvm_runtime(); register(); register()
print(before == sorted(list_global_func_names()))
"""
    assert fresh(program).strip() == "True"


def test_import_tvm_works_after_the_runtime_was_loaded_alone() -> None:
    program = """
from heterocc.runtime.native import load_tvm_runtime
load_tvm_runtime()
import tvm
from tvm import relax
print(tvm.cpu(0).exist)
"""
    assert fresh(program).strip() == "True"


def test_an_opencl_back_end_of_the_users_tvm_is_left_alone() -> None:
    if not _built():
        pytest.skip("the plug-in was not built")
    program = """
import tvm_ffi
from heterocc.runtime.native import load_tvm_runtime, register
load_tvm_runtime()
tvm_ffi.register_global_func("device_api.opencl", lambda: 42)
register()
get = tvm_ffi.get_global_func
print(get("device_api.opencl")(), get("heterocc.opencl.view", allow_missing=True), get("heterocc.opencl.foreign")())
"""
    assert fresh(program).split() == ["42", "None", "True"]


def test_another_series_of_tvm_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from heterocc.artifacts.errors import NativePluginError

    monkeypatch.setattr(tvm_libraries, "package_version", lambda: "0.28.1")
    monkeypatch.setitem(sys.modules, "tvm", ModuleType("tvm"))
    with pytest.raises(NativePluginError, match=r"apache-tvm 0\.28\.1 is installed"):
        load_tvm_runtime()


def test_apache_tvm_of_another_series_that_is_not_imported_leaves_our_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tvm_libraries, "package_version", lambda: "0.28.1")
    found = tvm_libraries.tvm_libraries()
    assert found.owner == "heterocc-runtime" and found.find("libtvm_runtime.so").is_file()


@pytest.mark.opencl
def test_exported_code_runs_in_a_process_that_never_imports_tvm(tmp_path: Path) -> None:
    library = tmp_path / "exp.so"
    program = f"""
import tvm
from tvm import te
from tvm.target import Target
x = te.placeholder((64, 33), "float32", "x")
y = te.compute((64, 33), lambda i, j: te.exp(x[i, j]) + 1.0, "y")
s = tvm.s_tir.Schedule(te.create_prim_func([x, y]).with_attr("global_symbol", "exp"))
i, j = s.get_loops("y")
outer, inner = s.split(s.fuse(i, j), [None, 32])
s.bind(outer, "blockIdx.x"); s.bind(inner, "threadIdx.x")
built = tvm.tirx.build(tvm.IRModule({{"exp": s.mod["main"]}}), Target({{"kind": "opencl", "host": "llvm"}}))
built.export_library({str(library)!r})
check = tvm.runtime.load_module({str(library)!r})
print(sorted(m.kind for m in check.imports))
"""
    assert fresh(program).strip() == "['opencl']"
    run = f"""
import sys
import numpy as np, tvm_ffi
from tests.runtime.native.opencl_sample import to_device, to_host, empty
from heterocc.runtime.native.opencl_api import build_kernels, load_opencl
load_opencl()
library = tvm_ffi.get_global_func("ffi.Module.load_from_file.so")({str(library)!r}, "so")
x = np.random.default_rng(0).random((64, 33), "float32")
y = empty((64, 33))
print(build_kernels(library, 0))
library.get_function("exp")(to_device(x), y)
print(np.abs(to_host(y) - (np.exp(x) + 1)).max())
print([m for m in ("tvm", "onnx", "heterocc.compiler") if m in sys.modules])
"""
    built, error, modules = fresh(run).splitlines()
    assert built == "1"
    assert float(error) < 1e-6
    assert modules == "[]"


def _built() -> bool:
    from heterocc.runtime.native import opencl_api

    return any((folder / opencl_api.PLUGIN.library).is_file() for folder in opencl_api.PLUGIN.folders())
