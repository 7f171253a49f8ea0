"""Sizes and axes that a run computes and no result can have: an error that names the node, where ONNX Runtime raises.

Each list of devices is tried in a process of its own, which a size that wraps around would end.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from heterocc.runtime.native import opencl_unavailable_reason, vulkan_unavailable_reason

PROGRAM = """
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx.parser
import onnxruntime

from heterocc.artifacts.errors import InputValueError
from heterocc.compiler import compile_model
from heterocc.runtime import load

TEXT = '''<ir_version: 9, opset_import: ["" : 18]>
agraph (float[n,m] x, int64[2] tile, int64[2] fill, int64[2] expand, int64[4] pad, int64 first, int64 last, int64 step,
        float real_last, float real_step, int64[q] places, int64 hot, int64[1] axis, int64[1] stride,
        int64[1] unsqueeze, float[k,1] thin, int64[1] squeeze, int64[1] sum, int64 running, int64[2] split,
        int64[1] top,
        float[1,1,h,w] image, int64[4] resize, float[4] scale, int64[2] reshape, float[t,u] nothing, int64[3] empty)
    => (float[a1,a2] tile_y, float[b1,b2] fill_y, float[c1,c2] expand_y, float[d1,d2] pad_y, int64[e1] step_y,
        float[f1] real_y, float[g1,g2] hot_y, float[h1,h2] stride_y, float[i1,i2,i3] unsqueeze_y, float[j1] squeeze_y,
        float[k1,k2] sum_y, float[l1,l2] running_y, float[m1,m2] split_y, float[n1,n2] split_z, float[o1,o2] top_y,
        int64[p1,p2] top_z, float[q1,q2,q3,q4] resize_y, float[r1,r2,r3,r4] scale_y, float[s1,s2] reshape_y,
        float[t1,t2,t3] empty_y)
    <float[1,1] one = {1}, int64[1] begin = {0}, int64[1] end = {2}, float real_first = {0}, float[2] values = {0, 1}>
{
    [tile] tile_y = Tile(x, tile)
    [fill] fill_y = ConstantOfShape(fill)
    [expand] expand_y = Expand(one, expand)
    [pad] pad_y = Pad(x, pad)
    [step] step_y = Range(first, last, step)
    [real] real_y = Range(real_first, real_last, real_step)
    [hot] hot_y = OneHot(places, hot, values)
    [stride] stride_y = Slice(x, begin, end, axis, stride)
    [unsqueeze] unsqueeze_y = Unsqueeze(x, unsqueeze)
    [squeeze] squeeze_y = Squeeze(thin, squeeze)
    [sum] sum_y = ReduceSum(x, sum)
    [running] running_y = CumSum(x, running)
    [split] split_y, split_z = Split<axis = 1>(x, split)
    [top] top_y, top_z = TopK(x, top)
    [resize] resize_y = Resize(image, , , resize)
    [scale] scale_y = Resize(image, , scale)
    [reshape] reshape_y = Reshape(x, reshape)
    [empty] empty_y = Reshape(nothing, empty)
}'''

RIGHT = {
    "tile": [2, 1], "fill": [2, 3], "expand": [2, 3], "pad": [1, 0, 0, -1], "first": 0, "last": 7, "step": 2,
    "places": [0, 1], "hot": 3, "axis": [1], "stride": [1], "unsqueeze": [-1], "squeeze": [1], "sum": [0],
    "running": -1,
    "split": [1, 2], "top": [2], "resize": [1, 1, 4, 4], "reshape": [-1, 2], "empty": [0, 3, 2],
}
REAL = {"x": np.arange(6).reshape(2, 3), "real_last": 3, "real_step": 0.5, "thin": np.zeros((4, 1)),
        "nothing": np.zeros((0, 3)), "image": np.zeros((1, 1, 2, 2)), "scale": [1, 1, 2, 2]}
FEED = {**{name: np.array(v) for name, v in RIGHT.items()},
        **{name: np.array(v, np.float32) for name, v in REAL.items()}}

LEAST, MOST = -(2**63), 2**63 - 1
WRONG = [
    ("tile", "tile", [[-1, 1], [2**31, 2**31], [2**62, 2**62], [MOST, 1]]),
    ("fill", "fill", [[-1, 3], [-1, -1], [2**32, 2**32], [2**62, 8], [LEAST, 1]]),
    ("expand", "expand", [[-2, 3], [2**32, 2**32]]),
    ("pad", "pad", [[-9, 0, 0, 0], [2**61, 0, 0, 0], [2**62, 0, 2**62, 0], [2**32, 2**32, 0, 0]]),
    ("step", "step", [0]),
    ("last", "step", [2**62, MOST]),
    ("real_step", "real", [0, np.nan]),
    ("real_last", "real", [np.inf, np.nan]),
    ("hot", "hot", [0, -1, 2**62]),
    ("stride", "stride", [[0]]),
    ("axis", "stride", [[2], [-3]]),
    ("unsqueeze", "unsqueeze", [[3], [-4]]),
    ("squeeze", "squeeze", [[0], [2], [-3]]),
    ("sum", "sum", [[2], [-3]]),
    ("running", "running", [2, -3]),
    ("split", "split", [[2, 2], [4, -1], [MOST, 4]]),
    ("top", "top", [[-1], [4]]),
    ("resize", "resize", [[1, 1, -1, 4], [1, 1, 2**32, 2**32]]),
    ("scale", "scale", [[1, 1, 0, 2], [1, 1, -1, 2], [1, 1, np.nan, 2], [1, 1, 1e10, 1e10]]),
    ("reshape", "reshape", [[-1, -1], [-2, 3], [-1, 4], [2**32, 2**32]]),
    ("empty", "empty", [[0, -1, 1], [-1, -1, 1], [0, 3, -1], [2, 3, 0]]),
]

model = onnx.parser.parse_model(TEXT)
onnxruntime.set_default_logger_severity(4)
reference = onnxruntime.InferenceSession(model.SerializeToString())
path = Path(tempfile.mkdtemp(), "m.hcb")
compile_model(model, path, devices=sys.argv[1])
wanted = dict(zip([o.name for o in reference.get_outputs()], reference.run(None, FEED)))
with load(path) as session:
    for given, node, values in WRONG:
        for value in values:
            feed = {**FEED, given: np.array(value, FEED[given].dtype)}
            try:
                reference.run(None, feed)
            except Exception:
                pass
            else:
                raise AssertionError(f"ONNX Runtime computes {given} = {value}")
            try:
                session.run(feed)
            except InputValueError as error:
                assert f"'{node}'" in error.message, (given, value, error)
            else:
                raise AssertionError(f"{given} = {value} has a result")
        for name, found in session.run(FEED).items():
            np.testing.assert_allclose(found, wanted[name], rtol=1e-6, err_msg=name)
"""

LIMITED = r'''
import tempfile
from pathlib import Path

import numpy as np
import onnx.parser

from heterocc.artifacts.errors import InputValueError
from heterocc.compiler import compile_model
from heterocc.runtime import load

path = Path(tempfile.mkdtemp(), "m.hcb")
for text in (
    "agraph (float[n,1] x, float[1,m] y) => (float[n,m] z) { [large] z = Mul(x, y) }",
    "agraph (float[n,1] x, float[1,m] y) => (float[n,m] z) { s = Shape(x) t = Shape(y) u = Mul(s, t) "
    "v = Cast<to = 1>(u) w = Cast<to = 7>(v) [large] z = ConstantOfShape(w) }",
):
    compile_model(onnx.parser.parse_model('<ir_version: 9, opset_import: ["" : 18]> ' + text), path, devices="CPU")
    with load(path) as session:
        for size in (4, 5000, 4):
            feed = {"x": np.zeros((size, 1), np.float32), "y": np.zeros((1, size), np.float32)}
            if size == 4:
                assert session.run(feed)["z"].shape == (4, 4)
                continue
            try:
                session.run(feed)
            except InputValueError as error:
                assert "100000000 bytes" in error.message and f"the limit is {64 << 20}" in error.message, error
            else:
                raise AssertionError("a result of 100 MB in 64 MiB")

# Sizes are multiplied without looking: 2**21 three times, and 4 bytes, are 0.
text = """agraph (float[n] x, bool t) => (float[a,b,c] z)
    <int64[3] first = {-1, 1, 1}, int64[3] second = {1, -1, 1}, int64[3] third = {1, 1, -1}>
{
    w = If(t) <then_branch = yes () => (float[n] p) { p = Abs(x) }, else_branch = no () => (float[n] q) { q = Neg(x) }>
    a = Reshape(w, first)
    b = Reshape(x, second)
    c = Reshape(x, third)
    d = Mul(a, b)
    z = Mul(d, c)
}"""
compile_model(onnx.parser.parse_model('<ir_version: 9, opset_import: ["" : 18]> ' + text), path, devices="CPU")
with load(path) as session:
    for size in (3, 2**21, 3):
        feed = {"x": np.ones(size, np.float32), "t": np.array(True)}
        if size == 3:
            assert session.run(feed)["z"].shape == (3, 3, 3)
            continue
        try:
            session.run(feed)
        except InputValueError as error:
            assert "exceeds the memory that was computed for it" in error.message, error
        else:
            raise AssertionError("a result of 2**65 bytes")
'''


def _run(program: str, *arguments: str, **variables: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, **variables},
    )
    assert done.returncode == 0, (done.returncode, done.stderr[-3000:])


@pytest.mark.parametrize(
    "devices",
    [
        "CPU",
        pytest.param("CPU,ORT", marks=pytest.mark.slow),
        pytest.param(
            "OPENCL,CPU",
            marks=[pytest.mark.slow, pytest.mark.skipif(opencl_unavailable_reason() is not None, reason="no OpenCL")],
        ),
        pytest.param(
            "VULKAN,CPU",
            marks=[pytest.mark.slow, pytest.mark.skipif(vulkan_unavailable_reason() is not None, reason="no Vulkan")],
        ),
    ],
)
def test_a_size_or_an_axis_that_cannot_be_is_an_error_that_names_the_node(devices: str) -> None:
    _run(PROGRAM, devices)


def test_a_result_larger_than_the_limit_is_an_error_before_memory_is_asked_for() -> None:
    _run(LIMITED, HETEROCC_MEMORY_MB="64")
