"""Requests whose masks, caches, places and tables of angles do not fit attention, which ONNX Runtime refuses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest

import heterocc.runtime
from heterocc.artifacts.errors import HeteroccError
from heterocc.compiler import compile_model
from tests.compiler.onnx_build import assert_close, model, node, noise, value
from tests.reference import reference_session

I32, I64 = onnx.TensorProto.INT32, onnx.TensorProto.INT64
MICROSOFT = {"domain": "com.microsoft"}
DOMAINS = [("com.microsoft", 1)]
CACHES = "result keys values"

Feed = dict[str, np.ndarray]


@contextmanager
def _like_onnx_runtime(proto: onnx.ModelProto, folder: Path) -> Iterator[_Both]:
    compile_model(proto, folder / "m.hcb", devices="CPU")
    with heterocc.runtime.load(folder / "m.hcb") as session:
        yield _Both(session, reference_session(proto))


class _Both:
    """A model in heterocc and in ONNX Runtime."""

    def __init__(self, session: heterocc.runtime.Session, reference: object) -> None:
        self.session = session
        self.reference = reference

    def agree(self, feed: Feed) -> None:
        assert_close(list(self.session.run(feed).values()), self.reference.run(None, feed))  # type: ignore[attr-defined]

    def refuse(self, feed: Feed, code: str, text: str) -> None:
        with pytest.raises(Exception, match="ONNXRuntimeError"):
            self.reference.run(None, feed)  # type: ignore[attr-defined]
        with pytest.raises(HeteroccError, match=text) as caught:
            self.session.run(feed)
        assert caught.value.code == code


def _grouped(past: int, new: int, total: int, *, batch: int = 1, angles: int = 12) -> Feed:
    """A request of two heads that share one of keys."""
    cache = {name: noise(batch, 1, past, 16) for name in ("past_key", "past_value")}
    tables = {name: noise(angles, 8) for name in ("cos", "sin")}
    places = np.tile(np.arange(total - new, total), (batch, 1))
    lengths = np.full(batch, total - 1, np.int32)
    new_ones = {"q": noise(batch, new, 32), "k": noise(batch, new, 16), "v": noise(batch, new, 16)}
    return {**new_ones, **cache, "lengths": lengths, "total": np.array(total, np.int32), **tables, "places": places}


def _grouped_model(total: int | None) -> onnx.ModelProto:
    feed = _grouped(5, 2, 7)
    dims = {name: [f"{name}_{axis}" for axis in range(array.ndim)] for name, array in feed.items()}
    kinds = {"lengths": I32, "total": I32, "places": I64}
    ends = [value(name, dims[name], kinds.get(name, onnx.TensorProto.FLOAT)) for name in feed]
    heads = {"num_heads": 2, "kv_num_heads": 1, "do_rotary": 1}
    attention = node("GroupQueryAttention", " ".join(feed), CACHES, **heads, **MICROSOFT)
    outputs = [value(name) for name in CACHES.split()]
    weights = {} if total is None else {"total": np.array(total, np.int32)}
    return model([attention], [e for e in ends if e.name not in weights], outputs, weights, domains=DOMAINS)


@pytest.mark.slow
def test_caches_places_and_angles_that_a_total_length_of_the_run_does_not_fit_are_refused(tmp_path: Path) -> None:
    with _like_onnx_runtime(_grouped_model(None), tmp_path) as both:
        for feed in (_grouped(5, 2, 7), _grouped(9, 2, 7, angles=7), _grouped(4, 3, 3, batch=2)):
            both.agree(feed)
        both.refuse(_grouped(5, 2, 7, angles=6), "HC117", "total_sequence_length exceeds dimension 0 of cos_cache")
        both.refuse(_grouped(5, 2, 8), "HC117", "total_sequence_length is neither")
        both.refuse(_grouped(5, 2, 7, batch=2), "HC117", "several new keys")
        for last in (0, 7, -1):
            both.refuse(_grouped(5, 2, 7) | {"lengths": np.array([last], np.int32)}, "HC117", "'lengths': the place")
        for place in (12, -1):
            both.refuse(_grouped(5, 2, 7) | {"places": np.array([[place, 6]])}, "HC117", "an index is out of range")


@pytest.mark.slow
def test_caches_and_angles_that_a_constant_total_length_does_not_fit_are_refused(tmp_path: Path) -> None:
    def asked(*sizes: int, **more: int) -> Feed:
        feed = _grouped(*sizes, **more)
        del feed["total"]
        return feed

    with _like_onnx_runtime(_grouped_model(7), tmp_path) as both:
        for feed in (asked(5, 2, 7), asked(9, 3, 7, angles=7), asked(6, 1, 7, batch=2)):
            both.agree(feed)
        both.refuse(asked(5, 2, 7, angles=6), "HC110", "dimension 'cos_0' of input 'cos' is 6: .* 7 or more")
        both.refuse(asked(5, 1, 7), "HC110", "the number of past and new keys")
        both.refuse(asked(5, 3, 7), "HC110", "adds to the past keys")
        both.refuse(asked(5, 2, 7, batch=2), "HC110", "several items")
        for last in (0, 7):
            both.refuse(asked(5, 2, 7) | {"lengths": np.array([last], np.int32)}, "HC117", "'lengths': the place")
        wide = asked(5, 2, 7) | {name: noise(12, 16) for name in ("cos", "sin")}
        both.refuse(wide, "HC110", "the size of a head")


def test_masks_of_one_dimension_have_ends_or_ends_and_starts_of_all_items(tmp_path: Path) -> None:
    nodes = [
        node("Attention", "x w b ends", "own", num_heads=2, **MICROSOFT),
        node("RotaryEmbedding", "own places cos sin", "z", num_heads=2, **MICROSOFT),
    ]
    ends = [
        *(value("x", ["n", "s", 8]), value("ends", ["e"], I32)),
        *(value("places", [1], I64), value("cos", ["t", 2]), value("sin", ["t", 2])),
    ]
    weights = {"w": noise(8, 24), "b": noise(24)}
    outputs = [value(name) for name in ("own", "z")]
    tables = {"places": np.array([0]), "cos": noise(3, 2), "sin": noise(3, 2)}

    def asked(*numbers: int, steps: int = 3) -> Feed:
        return {"x": noise(2, steps, 8), "ends": np.array(numbers, np.int32), **tables}

    with _like_onnx_runtime(model(nodes, ends, outputs, weights, domains=DOMAINS), tmp_path) as both:
        for numbers in ((3, 2), (9, 0), (3, 2, 0, 1), (3, 2, -1, 5), (3, 2, 0, 3, 0, 0, 0, 0)):
            both.agree(asked(*numbers))
        for numbers in ((), (3,)):  # once a division by zero, and numbers
            both.refuse(asked(*numbers), "HC110", "dimension 'e' of input 'ends' is")
        for numbers in ((3, 2, 1), (1, 2, 3, 4, 5)):
            both.refuse(asked(*numbers), "HC117", "a mask of one dimension")
        both.refuse(asked(-1, 2), "HC117", "negative")
        both.refuse(asked(3, 2, steps=4), "HC110", "dimension 't' of input 'cos' is 3")


@pytest.mark.slow
def test_masks_of_one_dimension_of_separate_keys_have_no_starts(tmp_path: Path) -> None:
    attention = node("MultiHeadAttention", "x x x - ends", "y", num_heads=2, **MICROSOFT)
    ends = [value("x", ["n", "s", 8]), value("ends", ["e"], I32)]

    def asked(*numbers: int) -> Feed:
        return {"x": noise(2, 3, 8), "ends": np.array(numbers, np.int32)}

    with _like_onnx_runtime(model([attention], ends, [value("y")], domains=DOMAINS), tmp_path) as both:
        for numbers in ((3, 2), (-1, 9), (3, 2, 0, 3, 0, 0, 0, 0)):
            both.agree(asked(*numbers))
        both.refuse(asked(1), "HC110", "dimension 'e' of input 'ends' is 1")
        for numbers in ((3, 2, 1), (3, 2, 0, 1)):
            both.refuse(asked(*numbers), "HC117", "a mask of one dimension")


def test_heads_of_which_a_part_is_turned_share_the_width(tmp_path: Path) -> None:
    tables = {name: noise(20, 2) for name in ("cos", "sin")}
    turned = node("RotaryEmbedding", "x places cos sin", "y", num_heads=3, rotary_embedding_dim=4, **MICROSOFT)
    ends = [value("x", ["batch", "steps", "width"]), value("places", ["batch", "steps"], I64)]
    proto = model([turned], ends, [value("y")], tables, domains=DOMAINS)
    places = np.zeros((1, 3), np.int64)
    with _like_onnx_runtime(proto, tmp_path) as both:
        both.agree({"x": noise(1, 3, 24), "places": places})
        both.refuse({"x": noise(1, 3, 25), "places": places}, "HC110", "width")
        both.refuse({"x": noise(1, 3, 6), "places": places}, "HC110", "width")


@pytest.mark.parametrize("devices", ["CPU,ORT", "ORT"])
def test_a_head_of_odd_size_is_not_left_unwritten(tmp_path: Path, devices: str) -> None:
    """ONNX Runtime's own kernel turns two halves, and leaves the last element as it was in memory."""
    tables = {name: noise(2, 3, 4) for name in ("cos", "sin")}
    turned = node("RotaryEmbedding", "x cos sin", "y")
    proto = model([turned], [value("x", ["batch", "heads", "steps", "size"])], [value("y")], tables, opset=23)
    compile_model(proto, tmp_path / "m.hcb", devices=devices, check=False)
    with heterocc.runtime.load(tmp_path / "m.hcb") as session, pytest.raises(HeteroccError):
        session.run({"x": noise(2, 4, 3, 9)})


def test_a_bias_for_all_tokens_fits_keys_of_the_run(tmp_path: Path) -> None:
    """The number of keys is known from a mask: past and new ones, or the past ones if they have room for all."""
    kinds = {"lengths": I32, "mask": I64}
    dims = {"q": ["b", "s", 64], "k": ["b", "s", 32], "v": ["b", "s", 32], "past_key": ["b", 2, "p", 16]}
    dims |= {"past_value": ["b", 2, "p", 16], "lengths": ["b"], "mask": ["b", "total"], "bias": ["b", 1, "s", "total"]}
    proto = model(
        [
            node("Shape", "mask", "shape", start=1),
            node("Cast", "shape", "total", to=I32),
            node(
                "GroupQueryAttention",
                "q k v past_key past_value lengths total - - - bias",
                CACHES,
                num_heads=4,
                kv_num_heads=2,
                **MICROSOFT,
            ),
        ],
        [value(name, shape, kinds.get(name, onnx.TensorProto.FLOAT)) for name, shape in dims.items()],
        [value(name) for name in CACHES.split()],
        domains=DOMAINS,
    )
    with _like_onnx_runtime(proto, tmp_path) as both:
        for batch, new, past, room in ((1, 1, 5, 5), (1, 4, 0, 0), (2, 1, 9, 9), (1, 1, 4, 8)):
            total = past + new
            sizes = {"b": batch, "s": new, "p": room, "total": total}
            feed = {name: noise(*(sizes.get(d, d) for d in shape)) for name, shape in dims.items()}  # type: ignore[call-overload]
            feed |= {"lengths": np.full(batch, total - 1, np.int32), "mask": np.ones((batch, total), np.int64)}
            both.agree(feed)


def test_a_bias_whose_length_only_the_run_knows_has_the_keys_of_the_run(tmp_path: Path) -> None:
    # As onnxruntime-genai's builder writes float16: a mask of `total` keys is added to one of past and new keys.
    nodes = [
        node("Add", "seen later", "bias"),
        node("MultiHeadAttention", "q k v - - bias past_k past_v", CACHES, num_heads=2, **MICROSOFT),
    ]
    past = {name: value(name, [1, 2, "past", 8]) for name in ("past_k", "past_v")}
    new = [value(name, [1, "new", 16]) for name in "qkv"]
    masks = [value("seen", [1, 1, "new", "total"]), value("later", [1, 1, "new", "joined"])]
    proto = model(nodes, [*new, *past.values(), *masks], [value(name) for name in CACHES.split()], domains=DOMAINS)

    def request(new: int, past: int, total: int, joined: int) -> Feed:
        feed = {"q": noise(1, new, 16), "k": noise(1, new, 16), "v": noise(1, new, 16)}
        feed |= {name: noise(1, 2, past, 8) for name in ("past_k", "past_v")}
        return {**feed, "seen": noise(1, 1, new, total), "later": noise(1, 1, new, joined)}

    with _like_onnx_runtime(proto, tmp_path) as both:
        for sizes in [(5, 0, 5, 5), (1, 5, 6, 6), (3, 4, 1, 7), (3, 4, 7, 1)]:
            both.agree(request(*sizes))
        both.refuse(request(3, 4, 1, 1), "HC117", "dimension 3 of input 5")
        both.refuse(request(3, 4, 6, 6), "HC117", "dimension 3 of input 5")
