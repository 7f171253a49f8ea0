"""The import of TVM in a fresh process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fresh_process import fresh

SCRIPT = """
import os, sys
from heterocc.compiler.lower.tvm_fixes.start import import_tvm
before = dict(os.environ)
import_tvm(sys.argv[1])
import_tvm(sys.argv[1])
from tvm.backend.loader import is_loaded
from tvm_ffi import core, get_global_func
from tvm.runtime.disco.session import DRef
names = ("cuda", "metal", "opencl", "vulkan")
print(*(name for name in names if is_loaded(name)), dict(os.environ) == before)
sorts = get_global_func("tvm.contrib.sort.argsort", allow_missing=True)
print(sorts is not None, hasattr(DRef, "__tvm_ffi_type_info__"))
from tvm import ir, relax, tirx
one = tirx.IntImm("int32", 1)
kinds = (tirx.IntImm, ir.Expr, tirx.Var, relax.Expr)
print(*(isinstance(one, kind) == issubclass(type(one), kind) for kind in kinds), isinstance(one, tirx.Var))
print("tvm.s_tir.dlight.gpu" in sys.modules, "tvm.s_tir.meta_schedule.database" in sys.modules)
from tvm.s_tir.dlight.analysis import normalize_prim_func
from tvm.s_tir import dlight, meta_schedule
print(callable(normalize_prim_func), dlight.gpu.Matmul.__name__, meta_schedule.database.Database.__name__)
"""

PARTS = ("False False", "True Matmul Database")
"""Parts that are imported when they are used."""


@pytest.mark.parametrize(
    ("backend", "automatic", "loaded"),
    [
        ("cpu", None, ""),
        ("opencl", None, "opencl "),
        ("cuda", None, "cuda "),
        ("cpu", "1", "cuda metal opencl vulkan "),
    ],
)
def test_only_the_back_end_in_use_is_loaded(backend: str, automatic: str | None, loaded: str) -> None:
    env = {**os.environ, **({} if automatic is None else {"TVM_DEVICE_BACKEND_AUTOLOAD": automatic})}
    done = subprocess.run([sys.executable, "-c", SCRIPT, backend], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{loaded}True", "True True", "True True True True False", *PARTS], done.stderr


ANY_ORDER = """
import sys
from heterocc.compiler.lower.tvm_fixes.start import import_tvm
import_tvm("opencl")
from tvm.s_tir.dlight.analysis import normalize_prim_func  # as our own modules do, before anything uses the package
from tvm.s_tir import dlight, meta_schedule
rule, database = dlight.gpu.Fallback, meta_schedule.database.Database
loaded = [tuple(name.rpartition(".")[::2]) for name in sys.modules if name.startswith("tvm.")]
print([f"{package}.{child}" for package, child in loaded if not hasattr(sys.modules[package], child)])
print(len(loaded) > 150, callable(dlight.base.transform._apply_rules))
"""


def test_every_module_of_tvm_is_an_attribute_of_its_package_in_any_order_of_imports() -> None:
    done = subprocess.run([sys.executable, "-c", ANY_ORDER], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "True True"], done.stderr


SORTS = """
from heterocc.compiler import compile_model
from tests.compiler.onnx_build import I64, model, node, value
import numpy as np
sums = model([node("CumSum", "x axis", "y")], [value("x", [3, 4]), value("axis", [], 6)], [value("y")])
best = model([node("TopK", "x k", "y places")], [value("x", ["n", 4])], [value("y")], {"k": np.array([2])}, opset=13)
for proto in (sums, best):
    for devices in ("OPENCL,CPU", "CPU"):
        print(*sorted(set(compile_model(proto, "m.hcb", devices=devices).plan.device_of.values())))
"""


@pytest.mark.opencl
def test_running_sums_and_sorts_compile_beside_a_gpu_and_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = fresh(SORTS, HETEROCC_CACHE="off").splitlines()
    assert len(found) == 4 and all(line.split()[0] == "CPU" for line in found)
