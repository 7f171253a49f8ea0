from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fresh_process import fresh
from tests.runtime import standin

LATER = (
    "asyncio",
    "concurrent.futures",
    "dataclasses",
    "heterocc.runtime.native.vulkan_api",
    "heterocc.runtime.profile.profile",
    "numpy.typing",
    "onnxruntime",
    "pydantic",
    "tvm_ffi",
)


def test_importing_the_runtime_leaves_what_only_some_programs_need_for_later() -> None:
    program = f"import json, sys, heterocc.runtime; print(json.dumps([m for m in {LATER!r} if m in sys.modules]))"
    assert json.loads(fresh(program)) == []


def test_the_names_that_are_imported_later_are_there() -> None:
    program = """
import heterocc.runtime as runtime
from heterocc.runtime import native
assert all(getattr(runtime, name) for name in (*runtime.__all__, "__version__"))
assert all(getattr(native, name) for name in native.__all__)
for module in (runtime, native):
    try:
        module.nothing
    except AttributeError as error:
        print(error)
"""
    assert fresh(program).splitlines() == [
        "module 'heterocc.runtime' has no attribute 'nothing'",
        "module 'heterocc.runtime.native' has no attribute 'nothing'",
    ]


def test_a_load_leaves_what_only_compiling_programs_need_for_later(tmp_path: Path) -> None:
    standin.write_bundle(tmp_path / "m.hcb", standin.chain(1))
    program = f"""
import sys
from heterocc.runtime import load
load({str(tmp_path / "m.hcb")!r}, threads=2).close()
later = ("importlib.metadata", "logging", "subprocess", "tempfile", "difflib", "shlex")
print([m for m in later if m in sys.modules], "StrEnum" in vars(sys.modules["tvm_ffi.dataclasses.enum"]))
"""
    assert fresh(program).split() == ["[]", "False"]


def test_a_part_of_tvm_ffi_that_a_load_put_off_may_be_the_first_thing_used_of_it(tmp_path: Path) -> None:
    standin.write_bundle(tmp_path / "m.hcb", standin.chain(1))
    for first in ("tvm_ffi.method(lambda: 0)", "tvm_ffi.dataclasses.enum.StrEnum", "tvm_ffi.cpp.nvrtc.nvrtc_compile"):
        program = f"""
from heterocc.runtime import load
load({str(tmp_path / "m.hcb")!r}).close()
import tvm_ffi.cpp.nvrtc, tvm_ffi.dataclasses.enum
print({first} is not None)
"""
        assert fresh(program).split() == ["True"]


@pytest.mark.parametrize("threads", [1, 8])
def test_parts_of_tvm_ffi_that_a_load_put_off_are_whole_when_they_are_used(threads: int, tmp_path: Path) -> None:
    standin.write_bundle(tmp_path / "m.hcb", standin.chain(1))
    program = f"""
import sys, threading
from heterocc.runtime import load
session = load({str(tmp_path / "m.hcb")!r}, threads=2)
import tvm_ffi
seen = []
def use(): seen.append((tvm_ffi.libinfo.find_libtvm_ffi(), tvm_ffi.cpp.load_inline.__name__, tvm_ffi.dataclasses.field))
workers = [threading.Thread(target=use) for _ in range({threads})]
[w.start() for w in workers]; [w.join() for w in workers]
from tvm_ffi.cpp.extension import load_inline
((library, name, field),) = set(seen)
assert field is sys.modules["tvm_ffi.dataclasses.field"].field and tvm_ffi.method(use).__ffi_method__
mapped = {{line.split()[-1] for line in open("/proc/self/maps") if "libtvm_ffi.so" in line}}
print(len(seen), name, mapped == {{library}}, load_inline is tvm_ffi.cpp.load_inline, "subprocess" in sys.modules)
"""
    assert fresh(program).split() == [str(threads), "load_inline", "True", "True", "True"]


def test_typing_extensions_is_whole_after_a_load_that_put_it_off(tmp_path: Path) -> None:
    standin.write_bundle(tmp_path / "m.hcb", standin.chain(1))
    program = f"""
import sys
from heterocc.runtime import load
load({str(tmp_path / "m.hcb")!r}).close()
before = len(vars(sys.modules["typing_extensions"]))
from typing_extensions import *
from typing_extensions import get_annotations
import typing_extensions
class Point: x: int
print(before < 20, TypedDict is typing_extensions.TypedDict, get_annotations(Point))
"""
    assert fresh(program).strip() == "True True {'x': <class 'int'>}"


def test_the_cpu_plug_in_finds_the_library_of_tvm_ffi_wherever_that_package_lies() -> None:
    program = """
import sys
from heterocc.runtime.native import cpu_api
before = "tvm_ffi" in sys.modules
cpu_api.workers()
print(before, "tvm_ffi" in sys.modules)
"""
    assert fresh(program).split() == ["False", "True"]


def test_a_process_that_runs_a_bundle_opens_files_of_numpy_and_tvm_ffi_alone(tmp_path: Path) -> None:
    """Of all that is installed here: modules, data and libraries. tvm_ffi takes ml_dtypes if it is there."""
    standin.write_bundle(tmp_path / "m.hcb", standin.chain(1))
    program = f"""
import os, sys, sysconfig
opened = set()
sys.addaudithook(lambda event, values: opened.add(os.fsdecode(values[0]))
                 if event in ("open", "ctypes.dlopen") and isinstance(values[0], (str, bytes)) else None)
import numpy as np
from heterocc.runtime import load
with load({str(tmp_path / "m.hcb")!r}) as session:
    session.run({{i.name: np.zeros(i.shape, i.dtype) for i in session.inputs}})
    opened |= {{line.split()[-1] for line in open("/proc/self/maps")}}
site = sysconfig.get_path("purelib") + "/"
print(*sorted(path.removeprefix(site) for path in opened if path.startswith(site)), sep="\\n")
"""
    opened = [Path(line) for line in fresh(program).splitlines()]
    packages = {path.parts[0] for path in opened} - {"numpy.libs", "ml_dtypes", "heterocc"}
    assert packages == {"numpy", "tvm_ffi", "tvm"}
    assert {path.parts[:2] for path in opened if path.parts[0] == "tvm"} == {("tvm", "lib")}
