"""Attention with any mask, cache and number of heads is that of ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.differential.operators import Array, Case, case, constant, draw, failures
from tests.few_examples import few

MICROSOFT = {"domain": "com.microsoft"}


def same(*cases: Case) -> None:
    with TemporaryDirectory() as folder:
        assert failures(cases, Path(folder)) == []


def mask_of(kind: str, batch: int, heads: int, rows: int, keys: int) -> Array | None:
    if kind == "none":
        return None
    shape = {"bool": (batch, 1, rows, keys), "float": (rows, keys), "heads": (batch, heads, rows, keys)}[kind]
    return draw(*shape, dtype=bool if kind == "bool" else np.float32, seed=9)


MASKS = st.sampled_from(["none", "bool", "float", "heads"])


@few(4, deadline=None)
@given(st.integers(1, 2), st.integers(1, 2), st.integers(1, 3), st.integers(1, 5), st.integers(0, 4), MASKS, st.data())
def test_attention_of_onnx_is_as_in_onnx_runtime(
    batch: int, key_heads: int, group: int, rows: int, past: int, kind: str, data: st.DataObject
) -> None:
    heads, new = key_heads * group, data.draw(st.integers(1, 5), label="keys")
    mask = mask_of(kind, batch, heads, rows, past + new)
    cache: list[Array] = []
    if past:
        cache = [draw(batch, key_heads, past, 8, seed=3), draw(batch, key_heads, past, 6, seed=4)]
    attrs: dict[str, Any] = {
        "is_causal": data.draw(st.integers(0, 1)),
        "softcap": data.draw(st.sampled_from([0.0, 2.0])),
    }
    if data.draw(st.booleans(), label="three dimensions"):
        given = [draw(batch, rows, heads * 8), draw(batch, new, key_heads * 8), draw(batch, new, key_heads * 6)]
        attrs |= {"q_num_heads": heads, "kv_num_heads": key_heads}
    else:
        given = [draw(batch, heads, rows, 8), draw(batch, key_heads, new, 8), draw(batch, key_heads, new, 6)]
    # Not 2: ONNX Runtime gives masked scores as the lowest number, ONNX as minus infinity.
    mode = data.draw(st.sampled_from([0, 1, 3]), label="output")
    attrs |= {"qk_matmul_output_mode": mode, "scale": data.draw(st.sampled_from([0.25, 1.0]))}
    same(case("Attention", *given, mask, *cache, outputs=4 if past else 1, opset=23, **attrs))


@few(3, deadline=None)
@given(st.integers(1, 4), st.integers(0, 1), st.lists(st.integers(1, 6), min_size=2, max_size=2))
def test_keys_beyond_a_sample_s_length_are_left_out(rows: int, causal: int, lengths: list[int]) -> None:
    given = [draw(2, 4, rows, 8), draw(2, 2, 6, 8, seed=1), draw(2, 2, 6, 6, seed=2), None, None, None]
    same(case("Attention", *given, np.array(lengths), is_causal=causal, opset=24))


@few(4, deadline=None)
@given(*[st.integers(1, 5)] * 2, *[st.integers(-1, 2)] * 2, st.integers(0, 1), st.sampled_from(["", "past", "lengths"]))
def test_windows_of_keys_are_as_in_onnx_runtime(
    rows: int, keys: int, left: int, right: int, causal: int, cache: str
) -> None:
    """Also of more queries than keys, whose last windows are empty."""
    given: list[Array | None] = [draw(2, 2, rows, 8), draw(2, 2, keys, 8, seed=1), draw(2, 2, keys, 6, seed=2)]
    if cache == "past":
        given += [None, draw(2, 2, 3, 8, seed=3), draw(2, 2, 3, 6, seed=4)]
    elif cache == "lengths":
        given += [None, None, None, np.array([keys, 1])]
    attrs = {"left_window_size": left, "right_window_size": right, "is_causal": causal}
    same(case("Attention", *given, outputs=3 if cache == "past" else 1, opset=25, **attrs))


@few(3, deadline=None)
@given(st.integers(1, 2), st.integers(1, 4), st.integers(0, 3), st.integers(0, 1), st.booleans(), st.booleans())
def test_multi_head_attention_is_as_in_onnx_runtime(
    batch: int, rows: int, past: int, causal: int, biased: bool, padded: bool
) -> None:
    keys = past + rows
    bias = constant(draw(48)) if biased else None
    padding = draw(batch, keys, dtype=np.int32, low=0, high=1) if padded else None
    if padding is not None:
        padding[:, 0] = 1
    cache = [draw(batch, 4, past, 4, seed=5), draw(batch, 4, past, 4, seed=6)] if past else []
    given = [draw(batch, rows, 16, seed=n) for n in range(3)]
    attrs = {"num_heads": 4, "unidirectional": causal, **MICROSOFT}
    same(
        case("MultiHeadAttention", *given, bias, padding, None, *cache, outputs=3 if past else 1, **attrs),
        case("Attention", given[0], constant(draw(16, 48)), constant(draw(48)), **attrs),
    )


@few(3, deadline=None)
@given(st.integers(0, 5), st.lists(st.integers(0, 5), min_size=2, max_size=2), st.booleans(), st.booleans(), st.data())
def test_group_query_attention_is_as_in_onnx_runtime(
    past: int, missing: list[int], packed: bool, turned: bool, data: st.DataObject
) -> None:
    """A step after a cache whose samples are of different lengths, or a prompt of three tokens without padding."""
    rows = 1 if past else 3
    lengths = np.array([max(0, past - m) if past else 2 for m in missing], np.int32)
    if packed:
        given: list[Array | None] = [draw(2, rows, 128), None, None]
    else:
        given = [draw(2, rows, 64), draw(2, rows, 32, seed=1), draw(2, rows, 32, seed=2)]
    cache = [draw(2, 2, past, 16, seed=3), draw(2, 2, past, 16, seed=4)]
    tables = [draw(16, 8, seed=7), draw(16, 8, seed=8)] if turned else []
    attrs = {"num_heads": 4, "kv_num_heads": 2, "do_rotary": int(turned), **MICROSOFT}
    attrs |= {"rotary_interleaved": data.draw(st.integers(0, 1)), "softcap": data.draw(st.sampled_from([0.0, 2.0]))}
    attrs |= {"local_window_size": data.draw(st.sampled_from([-1, 2])), "smooth_softmax": data.draw(st.integers(0, 1))}
    computed = data.draw(st.booleans(), label="the total is an input")
    total = np.array([past + rows], np.int32) if computed else constant(past + rows, np.int32)
    sinks = draw(4, seed=11) if data.draw(st.booleans(), label="each head has a sink") else None
    places = [*(tables or [None, None]), None, None, sinks]
    same(case("GroupQueryAttention", *given, *cache, lengths, total, *places, outputs=3, **attrs))


def test_caches_of_few_bits_are_as_in_onnx_runtime() -> None:
    """Rounded to the nearest, halves to even ones, also of infinity, by a scale of 0, and for no number."""
    cases = []
    for bits, kind, size, past in (
        (8, "TENSOR", 8, 0),
        (8, "CHANNEL", 32, 9),
        (4, "TENSOR", 32, 9),
        (4, "CHANNEL", 8, 0),
    ):
        rows = 1 if past else 3
        dtype, packed, low = (np.int8, size, -128) if bits == 8 else (np.uint8, size // 2, 0)
        cache = [draw(2, 2, past, packed, dtype=dtype, low=low, high=low + 255, seed=n) for n in (3, 4)]
        scales = [abs(draw(*(1,) if kind == "TENSOR" else (1, 2, 1, size), seed=n)) / bits for n in (5, 6)]
        if kind == "CHANNEL":
            scales[0].flat[-1] = 0
        new = [draw(2, rows, 2 * size, seed=n) for n in (7, 8)]
        new[0][:, :, :5] = [np.inf, -np.inf, 3e38, 1e-30, np.nan]
        new[1][:, :, :8] = np.arange(-3.5, 4.5, dtype=np.float32) * scales[1].flat[0]
        last, total = np.full(2, past + rows - 1, np.int32), constant(past + rows, np.int32)
        attrs: dict[str, Any] = {f"{side}_quant_type": f"PER_{kind}" for side in "kv"}
        attrs |= {"num_heads": 4, "kv_num_heads": 2, "kv_cache_bit_width": bits, **MICROSOFT}
        given = [draw(2, rows, 4 * size), *new, *cache, last, total, *[None] * 5, *scales]
        cases.append(case("GroupQueryAttention", *given, outputs=3, local_window_size=-1 if past else 2, **attrs))
    same(*cases)


@few(4, deadline=None)
@given(st.integers(1, 3), st.integers(1, 4), st.sampled_from([2, 4, 8]), st.integers(0, 1), st.booleans())
def test_rotary_embedding_is_as_in_onnx_runtime(
    heads: int, steps: int, half: int, interleaved: int, whole: bool
) -> None:
    size = 2 * half if whole else 2 * half + 4
    attrs: dict[str, Any] = {"interleaved": interleaved}
    if not whole:
        attrs |= {"num_heads": heads, "rotary_embedding_dim": 2 * half}
    places = draw(2, steps, dtype=np.int64, low=0, high=9)
    tables = draw(10, half), draw(10, half, seed=4)
    same(case("RotaryEmbedding", draw(2, steps, heads * size), places, *tables, **MICROSOFT, **attrs))
