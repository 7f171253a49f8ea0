"""What the values of inputs lead to is an error of the input (HC117), however a session is run, and it can go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

from heterocc.artifacts.errors import InputError, InputValueError
from heterocc.compiler import compile_model
from heterocc.runtime import load

TEXT = """
<ir_version: 9, opset_import: ["" : 18]>
agraph (float[{rows},2] x, int64[1] i) => (float[1,2] y) {{ [pick] y = Gather(x, i) }}
"""
X = np.arange(8, dtype=np.float32).reshape(4, 2)
RIGHT = {"x": X, "i": np.array([3])}
WRONG = {"x": X, "i": np.array([9])}


@pytest.fixture(params=["CPU fixed", "CPU dynamic", "ORT fixed", "ORT dynamic"])
def session(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    devices, sizes = request.param.split()
    model = onnx.parser.parse_model(TEXT.format(rows="4" if sizes == "fixed" else "n"))
    compile_model(model, tmp_path / "m.hcb", devices=devices)
    with load(tmp_path / "m.hcb") as opened:
        yield opened


def _run_binding(session: Any, feed: dict[str, Any]) -> None:
    binding = session.bind()
    for name, array in feed.items():
        binding.inputs[name][...] = array
    binding.run()


@pytest.mark.parametrize(
    "run",
    [
        lambda session, feed: session.run(feed),
        lambda session, feed: session.run(["y"], feed),
        lambda session, feed: session.run(feed, out={"y": np.empty((1, 2), np.float32)}),
        lambda session, feed: session.run_async(feed).result(),
    ],
    ids=["run", "list", "out", "async"],
)
def test_an_index_out_of_range_is_an_error_of_the_input_that_names_the_node(session: Any, run: Any) -> None:
    for _ in range(2):  # the second run is native code's
        with pytest.raises(InputValueError, match="Gather 'pick'"):
            run(session, WRONG)
        run(session, RIGHT)
    np.testing.assert_array_equal(session.run(RIGHT)["y"], X[3:4])


@pytest.mark.parametrize("session", ["CPU fixed", "ORT fixed"], indirect=True)
def test_a_binding_with_an_index_out_of_range_raises_an_error_of_the_input(session: Any) -> None:
    with pytest.raises(InputValueError, match="Gather 'pick'"):
        _run_binding(session, WRONG)
    _run_binding(session, RIGHT)


def _opened(tmp_path: Path, text: str, devices: str) -> Any:
    compile_model(onnx.parser.parse_model(text), tmp_path / "m.hcb", devices=devices)
    return load(tmp_path / "m.hcb")


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_region_that_is_not_finite_is_an_error_and_reads_nothing_beside_the_map(tmp_path: Path, value: float) -> None:
    text = """<ir_version: 8, opset_import: ["" : 16]>
    g (float[a,c,h,w] x, float[n,4] r, int64[n] b) => (float[n,c,2,2] y) {
      y = RoiAlign <output_height=2, output_width=2, sampling_ratio=2> (x, r, b) }"""
    x, b = np.ones((1, 2, 6, 6), np.float32), np.zeros(1, np.int64)
    with _opened(tmp_path, text, "CPU") as session:
        assert session.run({"x": x, "r": np.array([[0, 0, 4, 4]], np.float32), "b": b})["y"].min() == 1
        with pytest.raises(InputValueError, match="RoiAlign"):
            session.run({"x": x, "r": np.array([[0, 0, value, 4]], np.float32), "b": b})


@pytest.mark.parametrize("devices", ["CPU", "CPU,ORT", "ORT"])
def test_sizes_are_checked_with_which_onnx_runtime_would_end_the_process(tmp_path: Path, devices: str) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
    g (float[a,3,4] x, float[b,3,4] z, float[4] s) => (float[a,3,4] y) {
      y = com.microsoft.SkipSimplifiedLayerNormalization (x, z, s) }"""
    x, s = np.ones((2, 3, 4), np.float32), np.ones(4, np.float32)
    with _opened(tmp_path, text, devices) as session:
        np.testing.assert_allclose(session.run({"x": x, "z": x, "s": s})["y"], x, rtol=1e-4)
        with pytest.raises(InputError):
            session.run({"x": x, "z": x[:0], "s": s})


def test_a_draw_from_no_classes_is_refused(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[n,c] x) => (int32[n,4] y) { y = Multinomial <sample_size=4> (x) }"""
    with _opened(tmp_path, text, "CPU") as session:
        assert session.run({"x": np.ones((2, 5), np.float32)})["y"].shape == (2, 4)
        with pytest.raises(InputError):
            session.run({"x": np.ones((2, 0), np.float32)})


def test_a_transposed_convolution_with_more_at_its_end_needs_elements(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[n,1,h,w] x, float[1,2,3,3] k) => (float[n,2,i,j] y) {
      y = ConvTranspose <strides=[3, 2], output_padding=[1, 1]> (x, k) }"""
    k = np.ones((1, 2, 3, 3), np.float32)
    with _opened(tmp_path, text, "CPU") as session:
        assert session.run({"x": np.ones((1, 1, 3, 3), np.float32), "k": k})["y"].shape == (1, 2, 10, 8)
        with pytest.raises(InputError):
            session.run({"x": np.ones((1, 1, 0, 3), np.float32), "k": k})


def test_a_negative_index_of_max_unpool_does_not_count_from_the_end(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1,1,h,w] x, int64[1,1,h,w] i) => (float[1,1,a,b] y) {
      y = MaxUnpool <kernel_shape=[2, 2], strides=[2, 2]> (x, i) }"""
    x, i = np.ones((1, 1, 2, 2), np.float32), np.array([0, 2, 8, 10]).reshape(1, 1, 2, 2)
    with _opened(tmp_path, text, "CPU") as session:
        assert session.run({"x": x, "i": i})["y"].sum() == 4
        with pytest.raises(InputValueError, match="MaxUnpool"):
            session.run({"x": x, "i": i - 2})


def test_pooling_of_a_map_without_elements_is_refused_though_its_padding_has_room_for_a_window(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 18]>
    g (float[n,3,h,w] x) => (float[n,3,a,b] y) {
      y = LpPool <kernel_shape=[3, 3], pads=[2, 2, 2, 2]> (x) }"""
    with _opened(tmp_path, text, "CPU") as session:
        assert session.run({"x": np.ones((1, 3, 4, 4), np.float32)})["y"].shape == (1, 3, 6, 6)
        with pytest.raises(InputError):
            session.run({"x": np.ones((1, 3, 4, 0), np.float32)})


STATE = """<ir_version: 8, opset_import: ["" : 17]>
g (float[s] start, float[n,2] x) => (float[m] last, float[k,l] all) {
  last, all = Scan <num_scan_inputs = 1, body = b (float[p] state, float[2] row) => (float[q] next, float[r] out) {
    next = Add (state, row)
    out = Identity (next) }> (start, x) }"""
EMPTY = """<ir_version: 8, opset_import: ["" : 17]>
g (int64[n] sizes) => (float[a,b] y) { y = ConstantOfShape (sizes) }"""


@pytest.mark.parametrize(
    ("text", "right", "wrong", "says"),
    [
        (STATE, {"start": np.zeros(2, np.float32), "x": X}, {"start": np.zeros(1, np.float32), "x": X}, "Scan"),
        (EMPTY, {"sizes": np.array([2, 3])}, {"sizes": np.array([1 << 62, 0])}, "cannot be an array: array is too big"),
        (EMPTY, {"sizes": np.array([2, 3])}, {"sizes": np.ones(100, np.int64)}, "cannot be an array: number of dim"),
    ],
    ids=["the state of a body", "sizes beside a 0", "many dimensions"],
)
def test_what_onnx_runtime_says_without_naming_a_node_is_an_error_of_the_input(
    tmp_path: Path, text: str, right: dict[str, Any], wrong: dict[str, Any], says: str
) -> None:
    model = onnx.parser.parse_model(text)
    for end in model.graph.output:
        end.type.tensor_type.ClearField("shape")  # of any rank
    compile_model(model, tmp_path / "m.hcb", devices="ORT")
    with load(tmp_path / "m.hcb") as session:
        for _ in range(2):
            session.run(right)
            with pytest.raises(InputValueError, match=says):
                session.run(wrong)


def test_grouped_attention_of_no_items_does_not_end_the_process_in_onnx_runtime(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
    g (float[b,1,16] q, float[b,1,8] k, float[b,1,8] v, float[b,1,5,8] pk, float[b,1,5,8] pv, int32[b] n, int32 total)
      => (float[b,1,16] y, float[b,1,t,8] nk, float[b,1,t,8] nv) {
      y, nk, nv = com.microsoft.GroupQueryAttention <num_heads=2, kv_num_heads=1> (q, k, v, pk, pv, n, total) }"""
    shapes = {"q": (1, 16), "k": (1, 8), "v": (1, 8), "pk": (1, 5, 8), "pv": (1, 5, 8)}

    def feed(items: int) -> dict[str, Any]:
        values = {name: np.ones((items, *shape), np.float32) for name, shape in shapes.items()}
        return {**values, "n": np.full(items, 5, np.int32), "total": np.array(6, np.int32)}

    with _opened(tmp_path, text, "ORT") as session:
        assert session.run(feed(2))["y"].shape == (2, 1, 16)
        with pytest.raises(InputError):
            session.run(feed(0))
