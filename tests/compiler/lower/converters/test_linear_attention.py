"""Layers with a state in place of past keys equal a float64 reference and ONNX Runtime, in one run and step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from heterocc.artifacts.errors import InputError
from heterocc.compiler import compile_model
from heterocc.runtime import load
from tests.few_examples import few
from tests.reference import reference_session

Array = np.ndarray[Any, Any]
Shape = Sequence[int | str]

STEPS = (1, 2, 7, 33)


def _model(
    op_type: str,
    inputs: dict[str, Shape | None],
    outputs: dict[str, Shape],
    weights: dict[str, Array],
    **attributes: Any,
) -> onnx.ModelProto:
    """One node; inputs without a shape are absent, those of `weights` are constants."""
    names = [name if shape is not None else "" for name, shape in inputs.items()]
    node = helper.make_node(op_type, names, list(outputs), domain="com.microsoft", **attributes)

    def described(values: dict[str, Shape | None]) -> list[onnx.ValueInfoProto]:
        kind = TensorProto.FLOAT
        known = ((n, s) for n, s in values.items() if s is not None and n not in weights)
        return [helper.make_tensor_value_info(name, kind, shape) for name, shape in known]

    constants = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph([node], "layer", described(inputs), described(dict(outputs)), constants)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@dataclass(frozen=True)
class Recurrence:
    """A LinearAttention of drawn inputs. Heads are those of queries, keys and values."""

    rule: str = "gated_delta"
    heads: tuple[int, int, int] = (2, 2, 4)
    size: int = 8
    columns: int = 16
    by_row: bool = False
    one_rate: bool = False
    past: bool = True
    scale: float = 0.0

    def model(self) -> onnx.ModelProto:
        """The node."""
        (queries, keys, values), size, columns = self.heads, self.size, self.columns
        decay = values * size if self.by_row else values
        state = ["batch", values, size, columns]
        inputs: dict[str, Shape | None] = {
            "query": ["batch", "steps", queries * size],
            "key": ["batch", "steps", keys * size],
            "value": ["batch", "steps", values * columns],
            "past": state if self.past else None,
            "decay": ["batch", "steps", decay] if "gated" in self.rule else None,
            "rate": ["batch", "steps", 1 if self.one_rate else values] if "delta" in self.rule else None,
        }
        outputs: dict[str, Shape] = {"y": ["batch", "steps", max(queries, values) * columns], "state": state}
        return _model(
            "LinearAttention",
            inputs,
            outputs,
            {},
            update_rule=self.rule,
            q_num_heads=queries,
            kv_num_heads=values,
            scale=self.scale,
        )

    def feed(self, batch: int, steps: int) -> dict[str, Array]:
        """Inputs, the keys of length 1."""
        numbers, sizes = np.random.default_rng(steps), {"batch": batch, "steps": steps}
        shapes = {i.name: i.type.tensor_type.shape.dim for i in self.model().graph.input}
        given = {
            name: numbers.uniform(-1, 1, [sizes.get(d.dim_param, d.dim_value) for d in dims])
            for name, dims in shapes.items()
        }
        heads = given["key"].reshape(batch, steps, -1, self.size)
        given["key"] = (heads / np.linalg.norm(heads, axis=-1, keepdims=True)).reshape(batch, steps, -1)
        return {
            n: (-(a**2) if n == "decay" else a**2 if n == "rate" else a).astype(np.float32) for n, a in given.items()
        }

    def result(self, feed: dict[str, Array]) -> tuple[Array, Array]:
        """The result and the state in float64, step by step as ONNX Runtime's documentation has it."""
        batch, steps, _ = feed["query"].shape
        queries, keys, values = self.heads
        wide = {n: a.astype(np.float64) for n, a in feed.items()}
        query, key = (wide[n].reshape(batch, steps, h, self.size) for n, h in (("query", queries), ("key", keys)))
        value = wide["value"].reshape(batch, steps, values, self.columns)
        state = wide.get("past", np.zeros((batch, values, self.size, self.columns))).copy()
        total = np.zeros((batch, steps, max(queries, values), self.columns))
        scale = self.scale or 1 / np.sqrt(self.size)
        for item, step, head in np.ndindex(batch, steps, values):
            own, one = state[item, head], key[item, step, head * keys // values]
            if "decay" in wide:
                decay = np.exp(wide["decay"][item, step].reshape(values, -1)[head])
                own *= decay[:, None]
            change = value[item, step, head]
            if "rate" in wide:
                rate = wide["rate"][item, step]
                change = rate[head if len(rate) > 1 else 0] * (change - one @ own)
            own += np.outer(one, change)
            group = max(1, queries // values)
            for number in range(group):
                source = head * group + number if queries >= values else head * queries // values
                total[item, step, head * group + number] = scale * query[item, step, source] @ own
        return total.reshape(batch, steps, -1), state


QUICK = [
    Recurrence(),
    Recurrence("gated", (4, 2, 2), 6, 10, by_row=True, past=False, scale=0.5),
]
EVERY = [
    Recurrence("delta", (4, 4, 4), 16, 64, one_rate=True),
    *(
        Recurrence(rule, heads, by_row=by_row)
        for rule in ("linear", "gated", "delta", "gated_delta")
        for heads in ((1, 1, 1), (6, 1, 2), (1, 1, 3))
        for by_row in (False, True)
    ),
]


def _compare(recurrence: Recurrence, path: Path, core: str = "native", *, check: bool) -> None:
    model, properties = recurrence.model(), [] if core == "native" else [f"CPU.mcpu={core}"]
    compile_model(
        model, path / "m.hcb", devices="CPU", properties=properties, cpu_variant=False, check=check, measure=False
    )
    reference = reference_session(model)
    with load(path / "m.hcb") as session:
        for steps in STEPS:
            feed = recurrence.feed(1 + steps % 2, steps)
            got, known = session.run(feed), reference.run(["y", "state"], feed)
            for name, wanted, other in zip(("y", "state"), recurrence.result(feed), known, strict=True):
                np.testing.assert_allclose(got[name], wanted, rtol=0, atol=3e-6 * np.abs(wanted).max())
                np.testing.assert_allclose(got[name], other, rtol=0, atol=3e-6 * np.abs(wanted).max())


@pytest.mark.parametrize("recurrence", QUICK, ids=str)
def test_linear_attention_equals_its_reference_and_is_checked(recurrence: Recurrence, tmp_path: Path) -> None:
    _compare(recurrence, tmp_path, check=True)


@pytest.mark.slow
@pytest.mark.parametrize("core", ["native", "x86-64-v3", "skylake-avx512", "x86-64"])
@pytest.mark.parametrize("recurrence", [*QUICK, *EVERY], ids=str)
def test_every_rule_is_right_on_each_instruction_set(recurrence: Recurrence, core: str, tmp_path: Path) -> None:
    _compare(recurrence, tmp_path, core, check=False)


@st.composite
def recurrences(draw: st.DrawFn) -> Recurrence:
    """Recurrences of small sizes; either queries or values have the most heads."""
    keys = draw(st.integers(1, 3))
    values = keys * draw(st.integers(1, 3))
    queries = values * draw(st.integers(1, 3)) if draw(st.booleans()) else keys
    return Recurrence(
        draw(st.sampled_from(["linear", "gated", "delta", "gated_delta"])),
        (queries, keys, values),
        draw(st.integers(1, 33)),
        draw(st.integers(1, 70)),
        by_row=draw(st.booleans()),
        one_rate=draw(st.booleans()),
        past=draw(st.booleans()),
        scale=draw(st.sampled_from([0.0, 0.5])),
    )


@pytest.mark.slow
@few(24, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(recurrence=recurrences(), core=st.sampled_from(["native", "x86-64-v3", "skylake-avx512", "x86-64"]))
def test_drawn_recurrences_equal_their_reference(recurrence: Recurrence, core: str, tmp_path: Path) -> None:
    _compare(recurrence, tmp_path, core, check=False)


def test_a_prompt_and_its_steps_have_the_same_state(tmp_path: Path) -> None:
    recurrence = Recurrence()
    compile_model(recurrence.model(), tmp_path / "m.hcb", devices="CPU", cpu_variant=False, check=False, measure=False)
    feed = recurrence.feed(1, 5)
    with load(tmp_path / "m.hcb") as session:
        whole, past = session.run(feed), feed["past"]
        for step in range(5):
            part = {n: a[:, step : step + 1] for n, a in feed.items() if n != "past"}
            one = session.run({**part, "past": past})
            past = np.array(one["state"])
            np.testing.assert_allclose(one["y"][:, 0], whole["y"][:, step], rtol=0, atol=1e-6)
    np.testing.assert_allclose(past, whole["state"], rtol=0, atol=1e-6)


def test_a_gate_of_fewer_steps_is_an_error(tmp_path: Path) -> None:
    """ONNX Runtime reads beside it."""
    recurrence = Recurrence()
    model = recurrence.model()
    for shape in model.graph.input[4].type.tensor_type.shape.dim[1:2]:
        shape.dim_param = "others"
    feed = recurrence.feed(1, 5)
    for devices in ("CPU", "ORT"):
        compile_model(model, tmp_path / "m.hcb", devices=devices, cpu_variant=False, check=False, measure=False)
        with load(tmp_path / "m.hcb") as session, pytest.raises(InputError):
            session.run({**feed, "decay": feed["decay"][:, :4]})


CONVOLUTIONS: list[tuple[dict[str, Any], bool, bool]] = [
    ({"activation": "silu"}, True, True),
    ({"dilation": 2}, False, True),
    ({"channels_last": 1, "activation": "swish"}, True, False),
]


@pytest.mark.parametrize(("attributes", "bias", "past"), CONVOLUTIONS, ids=[str(a) for a, *_ in CONVOLUTIONS])
def test_a_convolution_keeps_its_last_steps(attributes: dict[str, Any], bias: bool, past: bool, tmp_path: Path) -> None:
    _compare_convolution(attributes, bias, past, (6, 4), tmp_path)


@pytest.mark.slow
@few(16, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    st.fixed_dictionaries(
        {"dilation": st.integers(1, 3)},
        optional={"activation": st.sampled_from(["silu", "swish"]), "channels_last": st.just(1)},
    ),
    st.booleans(),
    st.booleans(),
    st.tuples(st.integers(1, 40), st.integers(2, 6)),
)
def test_drawn_convolutions_equal_onnx_runtime(
    tmp_path: Path, attributes: dict[str, Any], bias: bool, past: bool, sizes: tuple[int, int]
) -> None:
    _compare_convolution(attributes, bias, past, sizes, tmp_path)


def _compare_convolution(
    attributes: dict[str, Any], bias: bool, past: bool, sizes: tuple[int, int], tmp_path: Path
) -> None:
    """Compare one of so many channels and taps with ONNX Runtime, its result and its state."""
    numbers, (channels, taps) = np.random.default_rng(0), sizes
    weights = {"w": numbers.standard_normal((channels, 1, taps)).astype(np.float32)}
    if bias:
        weights["b"] = numbers.standard_normal(channels).astype(np.float32)
    kept, last = (taps - 1) * attributes.get("dilation", 1), "channels_last" in attributes

    def shape(steps: int | str) -> Shape:
        return ["batch", steps, channels] if last else ["batch", channels, steps]

    inputs = {"x": shape("steps"), "w": [], "b": [] if bias else None, "past": shape(kept) if past else None}
    model = _model("CausalConvWithState", inputs, {"y": shape("steps"), "state": shape(kept)}, weights, **attributes)
    compile_model(model, tmp_path / "m.hcb", devices="CPU", cpu_variant=False, measure=False)
    reference = reference_session(model)
    with load(tmp_path / "m.hcb") as session:
        for steps in STEPS:
            made = {"x": [2, steps, channels], "past": [2, kept, channels]}
            feed = {n: numbers.standard_normal(s).astype(np.float32) for n, s in made.items() if n == "x" or past}
            feed = feed if last else {n: np.ascontiguousarray(a.transpose(0, 2, 1)) for n, a in feed.items()}
            got, known = session.run(feed), reference.run(["y", "state"], feed)
            for name, wanted in zip(("y", "state"), known, strict=True):
                np.testing.assert_allclose(got[name], wanted, rtol=0, atol=2e-6 * np.abs(wanted).max())


GATES: list[tuple[str, dict[str, Shape], list[str], dict[str, Any]]] = [
    ("LinearAttentionGate", {"a": [2, "steps", 4], "b": [4], "c": [4], "d": [2, "steps", 4]}, ["y", "z"], {}),
    ("GatedRMSNorm", {"x": [2, "steps", 12], "s": [4], "g": [2, "steps", 12]}, ["y"], {}),
    ("GatedAdd", {"x": [2, "steps", 12], "z": [2, "steps", 12], "g": [2, "steps", 1]}, ["y"], {}),
    ("GatedRMSNorm", {"x": [2, "steps", 6], "s": [6], "g": [2, "steps", 6]}, ["y"], {"activation": "sigmoid"}),
]


@pytest.mark.parametrize(("op_type", "inputs", "outputs", "attributes"), GATES, ids=[f"{n}-{a}" for n, *_, a in GATES])
def test_gates_of_linear_attention_are_those_of_onnx_runtime(
    op_type: str, inputs: dict[str, Shape], outputs: list[str], attributes: dict[str, Any], tmp_path: Path
) -> None:
    first = next(iter(inputs.values()))
    model = _model(op_type, dict(inputs), dict.fromkeys(outputs, first), {}, **attributes)
    compile_model(model, tmp_path / "m.hcb", devices="CPU", cpu_variant=False, measure=False)
    numbers = np.random.default_rng(0)
    feed = {
        n: numbers.uniform(-9, 9, [3 if d == "steps" else d for d in s]).astype(np.float32) for n, s in inputs.items()
    }
    known = reference_session(model).run(outputs, feed)
    with load(tmp_path / "m.hcb") as session:
        got = session.run(feed)
        for name, wanted in zip(outputs, known, strict=True):
            np.testing.assert_allclose(got[name], wanted, rtol=0, atol=1e-6 * np.abs(wanted).max())
