"""Rows of windowed caches that ONNX Runtime does not write."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from heterocc.artifacts.errors import HeteroccError
from heterocc.compiler import compile_model
from heterocc.runtime import load
from tests.compiler.onnx_build import model, node, noise, save, value
from tests.reference import reference_session

WINDOW = 4


@pytest.mark.parametrize(
    ("devices", "dtype"),
    [
        ("ORT", TensorProto.FLOAT16),
        ("CPU", TensorProto.FLOAT),
        pytest.param("CPU", TensorProto.FLOAT16, marks=pytest.mark.slow),
    ],
)
def test_rows_without_keys_are_zero_and_others_are_onnx_runtimes(tmp_path: Path, dtype: int, devices: str) -> None:
    """Requests of several lengths of the past, below and beyond the cache and its window."""
    heads = {"num_heads": 2, "kv_num_heads": 1, "local_window_size": WINDOW, "sliding_window_cache": 1}
    close = {"rtol": 0, "atol": 0 if devices == "ORT" else 1e-6 if dtype == TensorProto.FLOAT else 2e-3}
    made = node("GroupQueryAttention", "q k v pk pv n t", "y ok ov", "attend", domain="com.microsoft", **heads)
    inputs = [
        value("q", ["b", "s", 32], dtype),
        *(value(name, ["b", "s", 16], dtype) for name in "kv"),
        *(value(name, ["b", 1, "rows", 16], dtype) for name in ("pk", "pv")),
        *(value(name, shape, TensorProto.INT32) for name, shape in (("n", ["b"]), ("t", []))),
    ]
    proto = model([made], inputs, [value(n, None, dtype) for n in ("y", "ok", "ov")], domains=[("com.microsoft", 1)])
    compile_model(save(tmp_path, proto), tmp_path / "m.hcb", devices=devices)
    session = reference_session(proto)

    def feed(tokens: int, rows: int, new: int) -> dict[str, np.ndarray]:
        sizes = {
            "q": (1, new, 32),
            "k": (1, new, 16),
            "v": (1, new, 16),
            "pk": (1, 1, rows, 16),
            "pv": (1, 1, rows, 16),
        }
        arrays = {
            name: noise(*shape).astype(np.float16 if dtype == TensorProto.FLOAT16 else np.float32)
            for name, shape in sizes.items()
        }
        return {**arrays, "n": np.array([tokens - 1], np.int32), "t": np.array(tokens, np.int32)}

    with load(tmp_path / "m.hcb") as bundle:
        for tokens, rows, new in (
            (2, 8, 1),
            (5, 4, 1),
            (8, 8, 1),
            (9, 8, 1),
            (20, 8, 1),
            (10, 8, 2),
            (300, 224, 1),
            (6, 8, 6),
        ):
            given = feed(tokens, rows, new)
            found, expected = bundle.run(given), dict(zip(("y", "ok", "ov"), session.run(None, given), strict=True))
            np.testing.assert_allclose(found["y"], expected["y"], **close)
            dropped = rows - WINDOW + 1
            kept = tokens if tokens <= rows else tokens - dropped * -(-(tokens - rows) // dropped)
            for name in ("ok", "ov"):
                np.testing.assert_array_equal(found[name][:, :, :kept], expected[name][:, :, :kept])
                assert found[name][:, :, :kept].all() and not found[name][:, :, kept:].any()
        with pytest.raises(HeteroccError, match=r"at least local_window_size|'rows' .* 4 or more"):
            bundle.run(feed(3, 2, 1))


@pytest.mark.parametrize(
    ("op_type", "devices"),
    [("GroupQueryAttention", "ORT"), ("MultiHeadAttention", "ORT"), ("MultiHeadAttention", "CPU")],
)
def test_attention_reads_the_past_where_nobody_wants_its_caches(tmp_path: Path, op_type: str, devices: str) -> None:
    """ONNX Runtime joins past and new keys in the outputs, and without these reads beyond the new ones."""
    feed = {name: noise(2, 1, 16) for name in "qkv"} | {name: noise(2, 1, 5, 16) for name in ("pk", "pv")}
    lengths, heads = {"n": np.array([5, 5], np.int32), "t": np.array(6, np.int32)}, {"num_heads": 1}
    names = "q k v pk pv n t"
    if op_type == "MultiHeadAttention":
        names, lengths = "q k v    pk pv", {}
    else:
        heads["kv_num_heads"] = 1

    def attend(*outputs: str) -> onnx.ModelProto:
        made = helper.make_node(op_type, names.split(" "), outputs, "attend", domain="com.microsoft", **heads)
        ends = [value(name, list(array.shape)) for name, array in feed.items()]
        return model([made], ends, [value(name, None) for name in outputs], lengths, domains=[("com.microsoft", 1)])

    compile_model(attend("y"), tmp_path / "m.hcb", devices=devices)
    (wanted, *_) = reference_session(attend("y", "keys", "values")).run(None, feed)
    with load(tmp_path / "m.hcb") as bundle:
        np.testing.assert_allclose(bundle.run(feed)["y"], wanted, atol=1e-5)
