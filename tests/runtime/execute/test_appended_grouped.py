"""Keys and values of GroupQueryAttention, lengthened where they are, against numpy in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx.parser
import pytest

from heterocc.compiler import compile_model
from heterocc.runtime import Session, load

Array = np.ndarray[Any, Any]

TEXT = """
<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
net (float[b, s, 32] q, float[b, s, 16] k, float[b, s, 16] v, float[b, 2, p, 8] keys, float[b, 2, p, 8] values,
     int64[b, t] mask) => (float[b, s, 32] y, float[b, 2, t, 8] more_keys, float[b, 2, t, 8] more_values) {
  axes = Constant<value_ints: ints = [1]>()
  one = Constant<value_int: int = 1>()
  counts = ReduceSum<keepdims=0>(mask, axes)
  last = Sub(counts, one)
  lengths = Cast<to=6>(last)
  shape = Shape(mask)
  wide = Gather<axis=0>(shape, one)
  total = Cast<to=6>(wide)
  y, more_keys, more_values = com.microsoft.GroupQueryAttention<num_heads=4, kv_num_heads=2>
      (q, k, v, keys, values, lengths, total)
}
"""
STATE = {"keys": "more_keys", "values": "more_values"}
FLOAT32 = np.dtype(np.float32)
HALVES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("grouped") / "m.hcb"
    compile_model(onnx.parser.parse_model(TEXT), path, devices="CPU")
    return path


def attended(query: Array, keys: Array, values: Array, first: int) -> Array:
    """The result for one item; `first` keys precede that of the first query."""
    rows = query.shape[0]
    apart = query.astype(np.float64).reshape(rows, 4, 8)
    found = np.zeros((rows, 4, 8))
    for row in range(rows):
        for head in range(4):
            seen = slice(first + row + 1)
            scores = keys[head // 2, seen].astype(np.float64) @ apart[row, head] / np.sqrt(8)
            shares = np.exp(scores - scores.max())
            found[row, head] = shares / shares.sum() @ values[head // 2, seen]
    return found.reshape(rows, 32)


class Text:
    """A binding, beside the state that it should have."""

    def __init__(self, session: Session, batch: int, dtype: np.dtype[Any] = FLOAT32) -> None:
        self.binding = session.bind(state=STATE)
        self.rng = np.random.default_rng(batch)
        self.dtype = dtype
        self.state = {name: np.zeros((batch, 2, 0, 8), dtype) for name in STATE}
        self.first: dict[str, Array] = self.state
        self.batch = batch

    def add(self, new: int, short: int = 0) -> None:
        """Run on so many tokens, the second item of which begin `short` tokens before the end of its past."""
        sizes = {"q": 32, "k": 16, "v": 16}
        feed = {name: self.normal(self.batch, new, n) for name, n in sizes.items()}
        past = self.state["keys"].shape[2]
        total = past + new
        feed["mask"] = np.ones((self.batch, total), np.int64)
        starts = [past] * self.batch
        if short:
            feed["mask"][1, :short] = 0
            starts[1] -= short
        before = {name: np.array(array) for name, array in self.binding.state.items()} if not self.first else {}
        held = dict(self.binding.state) if not self.first else {}
        found = self.binding.run({**feed, **self.first})["y"]
        self.first = {}
        wanted = {}
        for name, given in (("keys", feed["k"]), ("values", feed["v"])):
            rows = np.zeros((self.batch, 2, total, 8), self.dtype)
            for item, start in enumerate(starts):
                rows[item, :, :start] = self.state[name][item, :, :start]
                rows[item, :, start : start + new] = given[item].reshape(new, 2, 8).swapaxes(0, 1)
            wanted[name] = rows
        self.state = wanted
        for item, start in enumerate(starts):
            right = attended(feed["q"][item], wanted["keys"][item], wanted["values"][item], start)
            rounding = 1e-5 if self.dtype == FLOAT32 else float(ml_dtypes.finfo(self.dtype).eps)
            np.testing.assert_allclose(found[item].astype(np.float32), right, rtol=1e-4, atol=rounding)
        for name in STATE:
            np.testing.assert_array_equal(self.binding.state[name], wanted[name])
        for name, array in held.items():
            np.testing.assert_array_equal(array, before[name])

    def normal(self, *shape: int) -> Array:
        """Drawn numbers of the text's type."""
        return self.rng.standard_normal(shape, np.float32).astype(self.dtype)

    def addresses(self) -> tuple[int, ...]:
        return tuple(array.ctypes.data for array in self.binding.state.values())


@pytest.mark.parametrize("batch", [1, 2])
def test_rows_are_written_after_the_earlier_ones(bundle: Path, batch: int) -> None:
    with load(bundle, threads=2) as session:
        text = Text(session, batch)
        places = []
        for new in (5, *[1] * 40):
            text.add(new)
            places.append(text.addresses())
        assert len(set(places)) <= 4  # memory for 5 tokens, then for 22, 46
        assert len(set(places[4:16])) == 1


def test_an_item_that_is_shorter_than_its_past_is_written_elsewhere(bundle: Path) -> None:
    with load(bundle, threads=1) as session:
        text = Text(session, 2)
        for new in (6, 1, 1):
            text.add(new)
        before = text.addresses()
        text.add(1, short=2)
        assert not set(before) & set(text.addresses())
        text.add(1)
        text.add(1)


def test_lengths_that_differ_are_right_without_a_binding(bundle: Path) -> None:
    with load(bundle, threads=1) as session:
        for short in (0, 3):
            text = Text(session, 2)
            text.state = text.first = {
                name: np.random.default_rng(1).standard_normal((2, 2, 7, 8)).astype(np.float32) for name in STATE
            }
            text.add(1, short)


def test_heads_that_share_keys_are_rows_of_one_kernel_for_one_token(bundle: Path) -> None:
    with load(bundle, threads=1) as session:
        text = Text(session, 1)
        for new in (40, 1, 2, 1):  # more keys than a vector has lanes, and fewer
            text.add(new)
        short = Text(session, 2)
        for new in (1, 1, 1):
            short.add(new)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_rows_of_16_bits_are_read_and_written_in_16_bits(tmp_path: Path, dtype: np.dtype[Any]) -> None:
    compile_model(onnx.parser.parse_model(TEXT.replace("float[", f"{dtype}[")), tmp_path / "m.hcb", devices="CPU")
    with load(tmp_path / "m.hcb", threads=1) as session:
        text = Text(session, 1, dtype)
        places = []
        for new in (40, 1, 2, *[1] * 20):  # more keys than a vector has lanes
            text.add(new)
            places.append(text.addresses())
        assert len(set(places)) <= 3  # memory for 40 tokens, then for 82
        short = Text(session, 2, dtype)
        for new in (3, 1, 1):
            short.add(new)
        short.add(1, short=2)
