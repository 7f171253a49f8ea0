"""Kernels that converters request: the first k and ranges of bytes; against float64.

Arguments end at pages without access. All kernels of a test are one module, compiled for each vector width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
import tvm
from onnx import helper

from heterocc.compiler.lower.cpu.alignment import at_any_address
from heterocc.compiler.lower.cpu.generate.isa import isa_of
from heterocc.compiler.lower.cpu.maths.pipeline import PIPELINE
from heterocc.compiler.lower.cpu.schedule import kernel_code
from heterocc.compiler.lower.pipeline import kernel_module
from heterocc.compiler.lower.relax.kernels import kernel_calls
from heterocc.compiler.lower.written import REQUEST
from heterocc.runtime.execute.memory import host_tensor
from tests.compiler.lower.cpu.generate.generated import runnable, target_of
from tests.compiler.lower.lowered import job, model
from tests.guard_pages import guarded


class Operators:
    """A model of many nodes, each with inputs and expected results of its own."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: dict[str, np.ndarray] = {}
        self.constants: dict[str, np.ndarray] = {}
        self.expected: dict[str, tuple[np.ndarray, float]] = {}

    def add(
        self,
        kind: str,
        given: Sequence[np.ndarray],
        results: Sequence[np.ndarray],
        *lists: Any,
        error: float = 0.0,
        **attributes: Any,
    ) -> None:
        number = len(self.nodes)
        names = [f"x{number}_{place}" for place in range(len(given))]
        self.inputs |= dict(zip(names, given, strict=True))
        fixed = {f"c{number}_{place}": np.array(value, np.int64) for place, value in enumerate(lists)}
        self.constants |= fixed
        made = [f"y{number}_{place}" for place in range(len(results))]
        self.expected |= {name: (array, error) for name, array in zip(made, results, strict=True)}
        self.nodes.append(helper.make_node(kind, [*names, *fixed], made, **attributes))

    def check(self, cpu: str) -> None:
        target = target_of(cpu)
        made = model(self.nodes, self.inputs, list(self.expected), self.constants, opset=20)
        module = kernel_module(job(made), target)
        kernels = {g.name_hint: f for g, f in module.mod.functions_items() if REQUEST in (f.attrs or {})}
        code = {name: at_any_address(kernel_code(f, (), isa_of(target))[0]) for name, f in kernels.items()}
        with target:
            named = {name: f.with_attr("global_symbol", name) for name, f in code.items()}
            built = tvm.tirx.build(tvm.IRModule(named), target, pipeline=PIPELINE)
        numbers = [int(info.nodes[-1][1:]) for info in module.kernels]
        ran = set()
        for (_, symbol, _), number in zip(kernel_calls(module), numbers, strict=True):
            if symbol not in kernels:
                continue
            names = [n for n in self.inputs if n.startswith(f"x{number}_")]
            results = [n for n in self.expected if n.startswith(f"y{number}_")]
            # Other kernels of the operator compute the first ones.
            count = len(kernels[symbol].params) - len(names)
            right = {n: self.expected[n] for n in results[len(results) - count :]}
            arrays = [self.inputs[n] for n in names] + [np.full(a.shape, 85, a.dtype) for a, _ in right.values()]
            shapes = [[int(n) for n in param.shape] for param in kernels[symbol].params]
            lent = [guarded(a.reshape(shape)) for a, shape in zip(arrays, shapes, strict=True)]
            built[symbol](*map(host_tensor, lent))
            for result, (array, error) in zip(lent[len(names) :], right.values(), strict=True):
                found = result.reshape(array.shape)
                np.testing.assert_allclose(found, array, rtol=0, atol=error, err_msg=str(self.nodes[number]))
            ran.add(number)
        assert len(ran) == len(self.nodes), "some operators are not kernels on request"


def first(x: np.ndarray, axis: int, k: int, largest: bool) -> list[np.ndarray]:
    """Values and places of the first k in order, the first of equals first."""
    order = np.argsort(-x.astype(np.float64) if largest else x.astype(np.float64), axis, kind="stable")
    places = np.take(order, np.arange(k), axis)
    return [np.take_along_axis(x, places, axis), places]


@pytest.mark.parametrize("cpu", runnable())
def test_the_first_k_are_those_of_a_stable_sort(cpu: str) -> None:
    rng = np.random.default_rng(0)
    made = Operators()
    cases: Sequence[tuple[tuple[int, ...], int, int, type]] = (
        ((5, 333), 1, 7, np.float32),
        ((1, 700), 1, 690, np.float32),
        ((3, 170, 5), 1, 20, np.float32),
        ((9,), 0, 9, np.int32),
        ((97, 3), 0, 1, np.int32),
        ((2, 40, 37), 1, 3, np.float32),
        ((30, 8), 0, 4, np.int32),
        ((3, 16), 0, 3, np.float32),
    )
    for number, (shape, axis, k, dtype) in enumerate(cases):
        x = (rng.integers(-20, 21, shape) / 4).astype(dtype)
        if dtype == np.float32:
            x[x == 0], x.flat[-1], x.flat[0] = -0.0, np.inf, -np.inf
        made.add("TopK", [x], first(x, axis, k, number % 3 > 0), [k], axis=axis, largest=int(number % 3 > 0))
    made.check(cpu)


@pytest.mark.parametrize("cpu", runnable()[-1:])
def test_nan_is_larger_than_all_numbers_and_zero_equals_minus_zero(cpu: str) -> None:
    made = Operators()
    x = np.array([0.0, np.nan, -0.0, np.inf, -np.nan, -5, np.nan], np.float32)
    for k, largest, places in ((4, 1, [1, 4, 6, 3]), (5, 0, [5, 0, 2, 3, 1])):
        made.add("TopK", [x], [x[places], np.array(places)], [k], axis=0, largest=largest)
        wide, found = np.tile(x[:, None], 16), np.tile(np.array(places)[:, None], 16)
        made.add("TopK", [wide], [np.take_along_axis(wide, found, 0), found], [k], axis=0, largest=largest)
    made.check(cpu)


@pytest.mark.parametrize("cpu", runnable())
def test_ranges_of_bytes_agree(cpu: str) -> None:
    rng = np.random.default_rng(3)
    made = Operators()
    sizes = ((1,), (5, 7), (3, 8200), (2, 1 << 16))
    for shape, low, high in zip(sizes, (0, -3, 1, -0.5), (0, 5, 2, -0.25), strict=True):
        x = rng.uniform(low, high, shape).astype(np.float32)
        ends = np.minimum(x.min(), np.float32(0)), np.maximum(x.max(), np.float32(0))
        scale = (ends[1] - ends[0]) / np.float32(255) or np.float32(1)
        zero = np.rint(-ends[0] / scale)
        quantised = np.clip(np.rint(x / scale) + zero, 0, 255).astype(np.uint8)
        made.add("DynamicQuantizeLinear", [x], [quantised, np.array(scale), np.array(zero, np.uint8)])
    made.check(cpu)
