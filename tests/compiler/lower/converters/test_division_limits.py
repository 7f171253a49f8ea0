"""Divisions of integers by 0, and of the least integer by -1: an error that names the node, and two's complement.

Each list of devices is tried in a process of its own, which such a division would end.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from heterocc.runtime.native import opencl_unavailable_reason, vulkan_unavailable_reason

PROGRAM = """
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnx.parser

from heterocc.artifacts.errors import InputValueError
from heterocc.compiler import compile_model
from heterocc.runtime import load

TYPES = sys.argv[2].split(",")
FOLDER = Path(tempfile.mkdtemp())
KINDS = ("div", "mod", "fmod")


def quotient(kind, a, b):
    '''The result in Python's integers of any size, wrapped around.'''
    if kind == "div":
        found = abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    else:
        found = a % b if kind == "mod" else abs(a) % abs(b) * (-1 if a < 0 else 1)
    return found


def session_of(dtype, shape):
    inputs = ", ".join(f"{dtype}[{shape}] {name}" for name in ("x", *KINDS))
    outputs = ", ".join(f"{dtype}[{shape}] {kind}_y" for kind in KINDS)
    text = f'''<ir_version: 9, opset_import: ["" : 18]> agraph ({inputs}) => ({outputs}) {{
        [div] div_y = Div(x, div)
        [mod] mod_y = Mod(x, mod)
        [fmod] fmod_y = Mod<fmod = 1>(x, fmod)
    }}'''
    path = FOLDER / "m.hcb"
    compile_model(onnx.parser.parse_model(text), path, devices=sys.argv[1])
    return load(path)


def check(dtype, shape):
    limits = np.iinfo(dtype)
    least, sign = limits.min, -1 if limits.min else 1
    x = np.array([least, limits.max, 7, sign * 7, least], dtype)
    by = np.array([sign, 3, sign * 2, 2, sign * 1], dtype)
    with session_of(dtype, shape) as session:
        feed = {"x": x, **dict.fromkeys(KINDS, by)}
        for _ in range(2):
            found = session.run(feed)
            for kind in KINDS:
                exact = [quotient(kind, int(a), int(b)) for a, b in zip(x, by)]
                wrapped = (np.array([e & ((1 << 64) - 1) for e in exact], np.uint64)).astype(dtype)
                np.testing.assert_array_equal(found[f"{kind}_y"], wrapped, f"{kind} {dtype} {shape}")
        for kind in KINDS:
            zero = by.copy()
            zero[3] = 0
            for _ in range(2):
                try:
                    session.run({**feed, kind: zero})
                except InputValueError as error:
                    assert f"'{kind}'" in error.message, error
                else:
                    raise AssertionError(f"{kind} of {dtype} by 0 has a result")
        session.run(feed)


def check_constants():
    text = '''<ir_version: 9, opset_import: ["" : 18]> agraph (int64[2] x) => (int64[2] y)
        <int64[2] a = {-9223372036854775808, 7}, int64[2] b = {-1, 2}> { q = Div(a, b) y = Add(x, q) }'''
    compile_model(onnx.parser.parse_model(text), FOLDER / "c.hcb", devices=sys.argv[1])
    with load(FOLDER / "c.hcb") as session:
        assert session.run({"x": np.array([1, 1])})["y"].tolist() == [1 - 2**63, 4]


def check_body():
    text = '''<ir_version: 9, opset_import: ["" : 18]> agraph (int64 trips, int64[n] x, int64[1] by) => (int64[n] y) {
        y = Loop(trips, , x) <body = turn (int64 i, bool go, int64[n] a) => (bool on, int64[n] b) {
            on = Identity(go) q = Div(a, by) b = Identity(q) }>
    }'''
    compile_model(onnx.parser.parse_model(text), FOLDER / "b.hcb", devices=sys.argv[1])
    with load(FOLDER / "b.hcb") as session:
        feed = {"trips": np.array(1), "x": np.array([-(2**63), 4]), "by": np.array([-1])}
        assert session.run(feed)["y"].tolist() == [-(2**63), -4]


check_constants()
check_body()
for number, dtype in enumerate(TYPES):
    check(dtype, "n" if number % 2 and sys.argv[1] != "OPENCL,CPU" else "5")
"""

_FEW = "int32,int64,uint8"


@pytest.mark.parametrize(
    ("devices", "dtypes"),
    [
        pytest.param("CPU", "int8,uint8,int16,uint16,int32,uint32,int64,uint64", marks=pytest.mark.slow),
        ("CPU", _FEW),
        ("ORT", _FEW),
        pytest.param("CPU,ORT", _FEW, marks=pytest.mark.slow),
        pytest.param(
            "OPENCL,CPU",
            _FEW,
            marks=[pytest.mark.slow, pytest.mark.skipif(opencl_unavailable_reason() is not None, reason="no OpenCL")],
        ),
        pytest.param(
            "VULKAN,CPU",
            _FEW,
            marks=[pytest.mark.slow, pytest.mark.skipif(vulkan_unavailable_reason() is not None, reason="no Vulkan")],
        ),
    ],
)
def test_a_division_by_zero_names_its_node_and_the_least_integer_by_minus_one_wraps_around(
    devices: str, dtypes: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, devices, dtypes],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-3000:])
