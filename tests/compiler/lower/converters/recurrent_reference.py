"""Recurrent layers in float64, as ONNX defines them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Array = np.ndarray
Function = Callable[[Array], Array]


def sigmoid(x: Array) -> Array:
    """The logistic function."""
    return 1 / (1 + np.exp(-x))


FUNCTIONS: Mapping[str, Function] = {
    "Sigmoid": sigmoid,
    "Tanh": np.tanh,
    "Relu": lambda x: np.maximum(x, 0),
    "Softsign": lambda x: x / (1 + np.abs(x)),
    "HardSigmoid": lambda x: np.clip(0.2 * x + 0.5, 0, 1),
}
DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}


def outputs_of(kind: str, given: Mapping[str, Array | None], attributes: Mapping[str, Any]) -> list[Array]:
    """The outputs of a layer of layout 0 or 1, for inputs by the names that ONNX has."""
    layout = attributes.get("layout", 0)
    data = {name: None if value is None else value.astype(np.float64) for name, value in given.items()}
    if layout:
        for name in ("X", "initial_h", "initial_c"):
            value = data.get(name)
            data[name] = None if value is None else value.swapaxes(0, 1)
    x, direction = data["X"], attributes.get("direction", "forward")
    assert x is not None
    ways = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}[direction]
    names = attributes.get("activations") or DEFAULTS[kind] * len(ways)
    each = len(names) // len(ways)
    found = [
        _direction(kind, data, number, back, [FUNCTIONS[n] for n in names[number * each :][:each]], attributes)
        for number, back in enumerate(ways)
    ]
    outputs = [np.stack([f[0] for f in found], 1), *(np.stack(f, 0) for f in zip(*(f[1:] for f in found), strict=True))]
    return [outputs[0].transpose(2, 0, 1, 3), *(o.swapaxes(0, 1) for o in outputs[1:])] if layout else outputs


def _direction(
    kind: str, given: Mapping[str, Array | None], number: int, back: bool, functions: list[Function], attributes: Any
) -> list[Array]:
    x, hidden = given["X"], attributes["hidden_size"]
    assert x is not None
    steps, batch = x.shape[:2]
    w, r = (given[name][number] for name in ("W", "R"))  # type: ignore[index]
    bias = given.get("B")
    outer, inner = np.zeros((2, len(w))) if bias is None else np.split(bias[number], 2)
    lengths = given.get("sequence_lens")
    ends = np.full(batch, steps) if lengths is None else lengths.astype(int)
    states = [given.get(name) for name in ("initial_h", "initial_c")[: 1 + (kind == "LSTM")]]
    state = [np.zeros((batch, hidden)) if s is None else s[number].copy() for s in states]
    outputs = np.zeros((steps, batch, hidden))
    peephole = given.get("P")
    clip = attributes.get("clip", np.inf)
    for row in range(batch):
        own = [s[row] if ends[row] else np.zeros_like(s[row]) for s in state]
        order = range(int(ends[row]))
        for step in reversed(order) if back else order:
            given_x = w @ x[step, row] + outer
            own = _cell(
                kind,
                given_x,
                own,
                r,
                inner,
                functions,
                clip,
                attributes,
                None if peephole is None else peephole[number],
            )
            outputs[step, row] = own[0]
        for whole, last in zip(state, own, strict=True):
            whole[row] = last
    return [outputs, *state]


def _cell(
    kind: str,
    x: Array,
    state: list[Array],
    r: Array,
    bias: Array,
    functions: list[Function],
    clip: float,
    attributes: Mapping[str, Any],
    peephole: Array | None,
) -> list[Array]:
    h = state[0]

    def clipped(value: Array) -> Array:
        return np.clip(value, -clip, clip)

    if kind == "RNN":
        return [functions[0](clipped(x + r @ h + bias))]
    if kind == "GRU":
        f, g = functions
        (xz, xr, xh), (rz, rr, rh), (bz, br, bh) = (np.split(v, 3) for v in (x, r, bias))
        update, reset = f(clipped(xz + rz @ h + bz)), f(clipped(xr + rr @ h + br))
        linear = attributes.get("linear_before_reset", 0)
        fresh = g(clipped(xh + (reset * (rh @ h + bh) if linear else rh @ (reset * h) + bh)))
        return [(1 - update) * fresh + update * h]
    f, g, last = functions
    i, o, forget, c = np.split(x + r @ h + bias, 4)
    cell = state[1]
    pi, po, pf = np.zeros((3, len(h))) if peephole is None else np.split(peephole, 3)
    enters = f(clipped(i + pi * cell))
    keeps = 1 - enters if attributes.get("input_forget", 0) else f(clipped(forget + pf * cell))
    cell = keeps * cell + enters * g(clipped(c))
    return [f(clipped(o + po * cell)) * last(cell), cell]
