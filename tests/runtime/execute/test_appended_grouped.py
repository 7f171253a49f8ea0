"""Keys and values of GroupQueryAttention, lengthened where they are, against numpy in float64."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx.parser
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from heterocc.compiler import compile_model, verify_bundle
from heterocc.runtime import Session, load
from tests.few_examples import few
from tests.runtime.execute.lengths import LENGTHS

Array = np.ndarray[Any, Any]

TEXT = (
    """
<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
net (FLOAT[b, s, ALL] q, FLOAT[b, s, OWN] k, FLOAT[b, s, OWN] v, FLOAT[b, HEADS, p, SIZE] keys,
     FLOAT[b, HEADS, p, SIZE] values, int64[b, t] mask)
    => (FLOAT[b, s, ALL] y, FLOAT[b, HEADS, t, SIZE] more_keys, FLOAT[b, HEADS, t, SIZE] more_values) {"""
    + LENGTHS
    + """  y, more_keys, more_values = com.microsoft.GroupQueryAttention
      <num_heads=QUERIES, kv_num_heads=HEADS, local_window_size=WINDOW>(q, k, v, keys, values, lengths, total)
}
"""
)
STATE = {"keys": "more_keys", "values": "more_values"}
FLOAT32 = np.dtype(np.float32)
HALVES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


@dataclass(frozen=True)
class Form:
    """So many queries of each of `heads` heads of keys, their size, the window (-1: none), and the type of all.

    `cache` is the type of the state, if it is another.
    """

    heads: int = 2
    queries: int = 2
    size: int = 8
    window: int = -1
    dtype: np.dtype[Any] = FLOAT32
    cache: np.dtype[Any] | None = None

    def model(self) -> onnx.ModelProto:
        """One GroupQueryAttention whose lengths come from a mask."""
        every = self.heads * self.queries
        numbers = {"ALL": every * self.size, "OWN": self.heads * self.size, "QUERIES": every}
        numbers |= {"HEADS": self.heads, "SIZE": self.size, "WINDOW": self.window}
        text = TEXT.replace("FLOAT", {"float32": "float"}.get(self.dtype.name, self.dtype.name))
        for name, number in numbers.items():
            text = text.replace(name, str(number))
        return onnx.parser.parse_model(text)

    def attended(self, query: Array, keys: Array, values: Array, first: int) -> Array:
        """The result for one item; `first` keys precede that of the first query."""
        rows = query.shape[0]
        apart = query.astype(np.float64).reshape(rows, -1, self.size)
        found = np.zeros_like(apart)
        for row, head in np.ndindex(found.shape[:2]):
            stop, own = first + row + 1, head // self.queries
            seen = slice(max(0, stop - self.window) if self.window > 0 else 0, stop)
            scores = keys[own, seen].astype(np.float64) @ apart[row, head] / np.sqrt(self.size)
            shares = np.exp(scores - scores.max())
            found[row, head] = shares / shares.sum() @ values[own, seen].astype(np.float64)
        return found.reshape(rows, -1)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("grouped") / "m.hcb"
    compile_model(Form().model(), path, devices="CPU")
    return path


class Text:
    """A binding, beside the state that it should have."""

    def __init__(self, session: Session, batch: int, form: Form | None = None) -> None:
        self.binding = session.bind(state=STATE)
        self.rng = np.random.default_rng(batch)
        self.form = form or Form()
        self.state = {name: self.empty(batch, 0) for name in STATE}
        self.first: dict[str, Array] = self.state
        self.batch = batch

    def add(self, new: int, short: int = 0) -> None:
        """Run on so many tokens, the second item of which begin `short` tokens before the end of its past."""
        own = self.form.heads * self.form.size
        sizes = {"q": own * self.form.queries, "k": own, "v": own}
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
        for name, added in (("keys", feed["k"]), ("values", feed["v"])):
            rows = self.empty(self.batch, total)
            for item, start in enumerate(starts):
                rows[item, :, :start] = self.state[name][item, :, :start]
                rows[item, :, start : start + new] = added[item].reshape(new, -1, self.form.size).swapaxes(0, 1)
            wanted[name] = rows
        self.state = wanted
        for item, start in enumerate(starts):
            right = self.form.attended(feed["q"][item], wanted["keys"][item], wanted["values"][item], start)
            dtype = self.form.cache or self.form.dtype
            rounding = 1e-5 if dtype == FLOAT32 else float(ml_dtypes.finfo(dtype).eps)
            np.testing.assert_allclose(found[item].astype(np.float32), right, rtol=1e-4, atol=rounding)
        for name in STATE:
            np.testing.assert_array_equal(self.binding.state[name], wanted[name])
        for name, array in held.items():
            np.testing.assert_array_equal(array, before[name])

    def normal(self, *shape: int) -> Array:
        """Drawn numbers of the text's type."""
        return self.rng.standard_normal(shape, np.float32).astype(self.form.dtype)

    def empty(self, batch: int, rows: int) -> Array:
        """Zeros for so many rows of keys or values."""
        return np.zeros((batch, self.form.heads, rows, self.form.size), self.form.cache or self.form.dtype)

    def addresses(self) -> tuple[int, ...]:
        return tuple(array.ctypes.data for array in self.binding.state.values())


@pytest.mark.parametrize("batch", [pytest.param(1, marks=pytest.mark.slow), 2])
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


@pytest.mark.parametrize(
    "form", [Form(size=32, dtype=HALVES[1]), Form(queries=1, size=64, cache=HALVES[0])], ids=["model", "caches"]
)
def test_rows_of_16_bits_are_read_and_written_in_16_bits(tmp_path: Path, form: Form) -> None:
    properties = [] if form.cache is None else [f"CPU.kv_precision={form.cache.name}"]
    model, bundle = tmp_path / "m.onnx", tmp_path / "m.hcb"
    onnx.save(form.model(), model)
    notes = compile_model(model, bundle, devices="CPU", properties=properties).notes
    if form.cache is not None:
        assert notes[0] == f"2 inputs of keys and values, and the outputs that lengthen them, are {form.cache.name}"
        assert notes[1].startswith(f"largest errors by keys and values in {form.cache.name}: 'y'")
        assert verify_bundle(bundle, model).ok
    with load(tmp_path / "m.hcb", threads=1) as session:
        text = Text(session, 1, form)
        places = []
        for new in (40, 1, 2, *[1] * 20):  # more keys than a vector has lanes
            text.add(new)
            places.append(text.addresses())
        assert len(set(places)) <= 3  # memory for 40 tokens, then for 82
        short = Text(session, 2, form)
        for new in (3, 1, 1):
            short.add(new)
        short.add(1, short=2)


@pytest.mark.slow
@few(20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.builds(
        Form,
        heads=st.integers(1, 3),
        queries=st.integers(1, 9),
        size=st.sampled_from([1, 6, 8, 16, 24, 64, 80]),
        window=st.sampled_from([-1, -1, 1, 5, 33]),
        dtype=st.sampled_from([FLOAT32, *HALVES]),
    ),
    st.sampled_from(["native", "x86-64-v3", "skylake-avx512", "x86-64"]),
    st.integers(1, 2),
    st.lists(st.integers(1, 70), min_size=1, max_size=3),
)
def test_drawn_texts_equal_float64(tmp_path: Path, form: Form, core: str, batch: int, more: list[int]) -> None:
    properties = [] if core == "native" else [f"CPU.mcpu={core}"]
    compile_model(
        form.model(), tmp_path / "m.hcb", devices="CPU", properties=properties, cpu_variant=False, check=False
    )
    with load(tmp_path / "m.hcb", threads=1) as session:
        text = Text(session, batch, form)
        for number, new in enumerate((*more, 1, 1)):
            text.add(new if batch == 1 or number == 0 else 1)
        if batch > 1:
            text.add(1, short=1)


@pytest.mark.slow
def test_rows_that_a_model_rounds_itself_are_read_before_the_rounding(tmp_path: Path) -> None:
    model = Form().model()
    for value in (*model.graph.input, *model.graph.output):
        if value.name in (*STATE, *STATE.values()):
            value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    for name in STATE:
        model.graph.node.insert(0, onnx.helper.make_node("Cast", [name], [f"{name}_wide"], to=1))
    attention = model.graph.node[-1]
    attention.input[3:5] = ["keys_wide", "values_wide"]
    attention.output[1:3] = ["wide_keys", "wide_values"]
    for name in STATE:
        model.graph.node.append(onnx.helper.make_node("Cast", [f"wide_{name}"], [f"more_{name}"], to=10))
    compile_model(model, tmp_path / "m.hcb", devices="CPU", check=False)
    rng = np.random.default_rng(0)
    feed = {name: rng.standard_normal((1, 40, n), np.float32) for name, n in {"q": 32, "k": 16, "v": 16}.items()}
    with load(tmp_path / "m.hcb", threads=1) as session:
        past = {name: rng.standard_normal((1, 2, 3, 8)).astype(np.float16) for name in STATE}
        found = session.run({**feed, **past, "mask": np.ones((1, 43), np.int64)})
    keys, values = (
        np.concatenate([past[name][0], feed[name[0]][0].reshape(40, 2, 8).swapaxes(0, 1)], 1) for name in STATE
    )
    np.testing.assert_allclose(found["y"][0], Form().attended(feed["q"][0], keys, values, 3), rtol=1e-4, atol=1e-5)
