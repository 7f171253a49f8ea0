"""Floats in Vulkan code: kernels request that NaN is kept if the device can, and halves are rounded to nearest."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tvm import tirx
from tvm.script import tirx as T  # noqa: N812

from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.devices.file import read_device_file
from heterocc.compiler.lower.vulkan.kernel import Feature, Kernel
from heterocc.compiler.lower.vulkan.lowering import disassemble, kernels_of
from heterocc.compiler.lower.vulkan.target import limits_of, vulkan_target
from heterocc.runtime.native.vulkan_api import vulkan_unavailable_reason
from tests.compiler.lower.gpu_run import Graph, imported, node, whole
from tests.compiler.lower.vulkan_run import ROOMY, VALIDATOR, assert_valid, elementwise, first_device, lower, run
from tests.compiler.lower.vulkan_run import kernels_of as kernels_of_function

REASON = vulkan_unavailable_reason()
on_device = pytest.mark.skipif(REASON is not None, reason=f"no Vulkan device: {REASON}")
validated = pytest.mark.skipif(VALIDATOR is None, reason="spirv-val (Debian: spirv-tools) is not installed")

RNG = np.random.default_rng(11)
NAN = {16: Feature.NAN16, 32: Feature.NAN32, 64: Feature.NAN64}
KEEPS_NONE = dataclasses.replace(ROOMY, target={**ROOMY.target, **{f"supports_nan{bits}": False for bits in NAN}})
SPECIAL = np.array([np.nan, np.inf, -np.inf, -0.0, 0, 1, -1, 7], np.float32)


def kernels(graph: Graph, folder: Path, device: TargetDevice) -> list[Kernel]:
    job = whole(imported(graph, folder), device)
    return kernels_of(job, vulkan_target(device), limits_of(device))


def kept(kernel: Kernel) -> set[int]:
    """The widths of floats for which the code requests that NaN is kept."""
    text = disassemble(kernel.code)
    widths = {int(bits) for bits in re.findall(r"OpExecutionMode \d+ 4461 (\d+)", text)}
    assert ("OpCapability 4466" in text) == bool(widths)
    assert {bits for bits, feature in NAN.items() if feature in kernel.features} == widths
    return widths


def values(dtype: str) -> np.ndarray:
    return RNG.integers(1, 9, (4, 8)).astype(dtype)


@validated
@pytest.mark.parametrize(
    ("op_type", "dtype", "widths"),
    [
        ("Relu", "float32", {32}),
        ("Neg", "float16", {16}),
        ("Neg", "float64", {64}),
        ("Exp", "float16", {16, 32}),  # computed in float32
        ("Neg", "int32", set()),
        ("Transpose", "float32", set()),  # moves its operand bit by bit
    ],
)
def test_a_kernel_asks_for_nan_in_the_floats_that_it_computes_in(
    op_type: str, dtype: str, widths: set[int], tmp_path: Path
) -> None:
    graph = Graph({"x": values(dtype)}, [node(op_type, "x")])
    (able,) = kernels(graph, tmp_path, ROOMY)
    (unable,) = kernels(graph, tmp_path, KEEPS_NONE)
    assert (kept(able), kept(unable)) == (widths, set())
    assert_valid([able, unable])


@validated
def test_a_kernel_asks_for_nan_only_in_the_widths_that_the_device_keeps(tmp_path: Path) -> None:
    device = dataclasses.replace(ROOMY, target={**KEEPS_NONE.target, "supports_nan32": True})
    (kernel,) = kernels(Graph({"x": values("float16")}, [node("Exp", "x")]), tmp_path, device)
    assert kept(kernel) == {32}
    assert_valid([kernel])


def test_a_device_file_says_whether_the_device_keeps_nan(tmp_path: Path) -> None:
    graph = Graph({"x": values("float32")}, [node("Relu", "x")])
    described = tmp_path / "card.toml"
    for line, widths in (("", set()), ("supports_nan32 = false", set()), ("supports_nan32 = true", {32})):
        described.write_text(f'name = "CARD"\nbackend = "vulkan"\n[target]\nmax_num_threads = 128\n{line}\n')
        (kernel,) = kernels(graph, tmp_path, read_device_file(described))
        assert kept(kernel) == widths


@pytest.mark.vulkan
@on_device
def test_code_for_the_device_here_asks_for_nan_if_its_driver_says_that_it_can(tmp_path: Path) -> None:
    device = first_device()
    (kernel,) = kernels(Graph({"x": values("float32")}, [node("Relu", "x")]), tmp_path, device)
    assert kept(kernel) == ({32} if device.target["supports_nan32"] else set())


@pytest.mark.vulkan
@on_device
def test_nan_and_infinities_come_through_bounds(tmp_path: Path) -> None:
    """As docs/decisions/0007 has it: of two tensors, a NaN of either."""
    x, y = (grid.ravel().astype(np.float32) for grid in np.meshgrid(SPECIAL, SPECIAL))
    bounds = {"low": np.float32(-2), "high": np.float32(3)}
    nodes = [node("Relu", "x"), node("Clip", "x", "low", "high"), node("Max", "x", "y"), node("Min", "x", "y")]
    model, lowered = lower(Graph({"x": x, "y": y}, nodes, {k: np.array(v) for k, v in bounds.items()}), tmp_path)
    relu, clip, larger, smaller = run(model, lowered, {"x": x, "y": y})
    np.testing.assert_array_equal(relu, np.maximum(x, 0))
    np.testing.assert_array_equal(clip, np.clip(x, bounds["low"], bounds["high"]))
    np.testing.assert_array_equal(larger, np.maximum(x, y))
    np.testing.assert_array_equal(smaller, np.minimum(x, y))


def assert_stores_round(made: Sequence[Kernel]) -> int:
    """Check that every conversion to float16 for a buffer is rounded to nearest; returns the number of these.

    None of them is used by anything else, which SPIR-V demands.
    """
    found = 0
    for kernel in made:
        text = disassemble(kernel.code)
        half = re.search(r"%(\d+) = OpTypeFloat 16\n", text)
        if half is None:
            continue
        converted = set(re.findall(rf"%(\d+) = OpFConvert %{half[1]} ", text))
        buffers = set(re.findall(r"%(\d+) = OpTypePointer 12 ", text))
        places = {place for place, type_ in re.findall(r"%(\d+) = OpAccessChain %(\d+) ", text) if type_ in buffers}
        stored = {value for place, value in re.findall(r"OpStore (\d+) (\d+)\n", text) if place in places}
        rounded = set(re.findall(r"OpDecorate (\d+) 39 0\n", text))
        assert rounded == converted & stored
        elsewhere = (line.split()[4:] for line in text.splitlines() if line.startswith("%"))
        assert not rounded & {operand for operands in elsewhere for operand in operands}
        found += len(rounded)
    return found


@validated
@pytest.mark.parametrize("source", ["float32", "float64"])
def test_a_cast_to_half_is_stored_to_the_nearest(source: str, tmp_path: Path) -> None:
    made = kernels(Graph({"x": values(source)}, [node("Cast", "x", to=10)]), tmp_path, ROOMY)
    assert assert_stores_round(made) == 1
    assert_valid(made)


@validated
def test_a_half_that_is_also_used_otherwise_is_stored_from_a_conversion_of_its_own() -> None:
    @T.prim_func(s_tir=True)
    def both(a: T.Buffer((64,), "float32"), b: T.Buffer((64,), "float16"), c: T.Buffer((64,), "float32")) -> None:
        for i in T.thread_binding(64, "threadIdx.x"):
            with T.sblock("whole"):
                T.reads(a[i])
                T.writes(b[i], c[i])
                b[i] = T.Cast("float16", a[i])
                c[i] = T.Cast("float32", T.Cast("float16", a[i]))

    made = kernels_of_function(both, ROOMY)
    assert assert_stores_round(made) == 1
    assert_valid(made)
    text = disassemble(made[0].code)
    assert text.count("OpFConvert") == 3  # to float16 for b, and to float16 and back for c


@validated
def test_kernels_that_store_values_as_halves_store_them_to_the_nearest(tmp_path: Path) -> None:
    graph = Graph(
        {"x": RNG.random((1, 8, 9, 9), np.float32)},
        [
            node("Conv", "x", "w", outputs=["c"], pads=[1, 1, 1, 1]),
            node("Relu", "c", outputs=["r"]),
            node("MaxPool", "r", outputs=["m"], kernel_shape=[3, 3]),
            node("Softmax", "m", outputs=["s"], axis=1),
            node("MatMul", "s", "n"),
        ],
        {"w": RNG.random((16, 8, 3, 3), np.float32), "n": RNG.random((7, 5), np.float32)},
    )
    made = kernels(graph, tmp_path, dataclasses.replace(ROOMY, properties={"precision": "f16"}))
    assert assert_stores_round(made) >= 3
    assert_valid(made)


@pytest.mark.vulkan
@on_device
def test_floats_become_halves_as_numpy_rounds_them() -> None:
    """All halves, the middles between two and their neighbours, and values that overflow."""
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    middles = (halves[1:] + halves[:-1]) / 2
    near = [np.nextafter(middles, np.float32(end)) for end in (0, np.inf)]
    x = np.concatenate([halves, middles, *near, np.float32([65519, 65520, 1e9, 1e-9, np.inf, np.nan])])
    x = np.concatenate([x, -x])
    with np.errstate(over="ignore"):
        want = x.astype(np.float16)
    np.testing.assert_array_equal(elementwise(lambda v: tirx.Cast("float16", v), x), want)
