"""Quantised keys and values of GroupQueryAttention, lengthened where they are, against numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx.parser

from heterocc.compiler import compile_model
from heterocc.runtime import load
from tests.runtime.execute.lengths import LENGTHS

TEXT = (
    """
<ir_version: 10, opset_import: ["" : 17, "com.microsoft" : 1]>
net (float[1, s, 64] q, float[1, s, 32] k, float[1, s, 32] v, int8[1, 2, p, 16] keys, int8[1, 2, p, 16] values,
     float[1, 2, 1, 16] key_scale, float[1, 2, 1, 16] value_scale, int64[1, t] mask)
    => (float[1, s, 64] y, int8[1, 2, t, 16] more_keys, int8[1, 2, t, 16] more_values) {"""
    + LENGTHS
    + """  y, more_keys, more_values = com.microsoft.GroupQueryAttention
      <num_heads=4, kv_num_heads=2, k_quant_type="PER_CHANNEL", v_quant_type="PER_CHANNEL", kv_cache_bit_width=8>
      (q, k, v, keys, values, lengths, total, , , , , , key_scale, value_scale)
}
"""
)
STATE = {"keys": "more_keys", "values": "more_values"}


def test_integers_of_caches_are_read_and_written_where_they_are(tmp_path: Path) -> None:
    compile_model(onnx.parser.parse_model(TEXT), tmp_path / "m.hcb", devices="CPU")
    rng = np.random.default_rng(0)
    scales = {f"{name}_scale": rng.random((1, 2, 1, 16), np.float32) / 20 + 0.01 for name in ("key", "value")}
    wanted = {name: np.zeros((1, 2, 0, 16), np.int8) for name in STATE}
    feed = {**wanted, **scales}
    places = []
    with load(tmp_path / "m.hcb", threads=1) as session:
        binding = session.bind(state=STATE)
        for new in (40, 1, 2, *[1] * 9):  # more keys than a vector has lanes
            widths = {"q": 64, "k": 32, "v": 32}
            tokens = {name: rng.standard_normal((1, new, n), np.float32) for name, n in widths.items()}
            first = wanted["keys"].shape[2]
            found = binding.run({**feed, **tokens, "mask": np.ones((1, first + new), np.int64)})["y"]
            feed = scales
            exact = []
            for name, part in (("keys", "k"), ("values", "v")):
                scale = scales[f"{name[:-1]}_scale"]
                rows = np.rint(tokens[part].reshape(1, new, 2, 16).swapaxes(1, 2) * (np.float32(1) / scale))
                wanted[name] = np.concatenate([wanted[name], np.clip(rows, -128, 127).astype(np.int8)], 2)
                np.testing.assert_array_equal(binding.state[name], wanted[name])
                exact.append(np.repeat(wanted[name] * scale.astype(np.float64), 2, 1))
            scores = tokens["q"].reshape(1, new, 4, 16).swapaxes(1, 2) @ exact[0].swapaxes(2, 3) / 4
            later = np.arange(first + new) > first + np.arange(new)[:, None]
            shares = np.exp(np.where(later, -np.inf, scores))
            right = (shares / shares.sum(-1, keepdims=True) @ exact[1]).swapaxes(1, 2).reshape(1, new, 64)
            np.testing.assert_allclose(found, right, rtol=1e-4, atol=1e-5)
            places.append(binding.state["keys"].ctypes.data)
    assert len(set(places)) <= 2  # memory for 40 tokens, then for 82
