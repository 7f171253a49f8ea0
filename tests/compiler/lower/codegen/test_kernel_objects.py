"""Kernels as objects of their own, kept on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from heterocc.compiler.lower.backend import PartitionJob
from heterocc.compiler.lower.codegen import kernel_objects, link
from heterocc.compiler.lower.cpu.lowering import CpuLowering
from tests.compiler.lower.lowered import assert_same, execute, job, model, run_ort

node = helper.make_node
X = np.linspace(-2, 2, 60, dtype=np.float32).reshape(3, 20)
W = np.linspace(-1, 1, 100, dtype=np.float32).reshape(20, 5)
NODES = [
    node("MatMul", ["x", "w"], ["m"], name="product"),
    node("Relu", ["m"], ["r"], name="relu"),
    node("Softmax", ["r"], ["y"], name="softmax"),
]


def code(nodes: list[object] = NODES, outputs: tuple[str, ...] = ("y",)) -> bytes:
    return CpuLowering().lower(job(model(nodes, {"x": X}, list(outputs), {"w": W}))).code


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HETEROCC_CACHE", str(tmp_path))
    return tmp_path


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the kernels that LLVM compiles, as they are lowered."""
    names: list[str] = []
    lowered = kernel_objects._lowered

    def recorded(name: str, *rest: object) -> object:
        names.append(name)
        return lowered(name, *rest)

    monkeypatch.setattr(kernel_objects, "_lowered", recorded)
    return names


def stored(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.is_file() and len(path.name) == 64]


def test_a_warm_cache_gives_the_bytes_of_a_cold_one_and_of_none(
    cache: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cold = code()
    made = len(compiled)
    assert made == len(stored(cache)) > 0
    assert code() == cold
    assert len(compiled) == made
    monkeypatch.setenv("HETEROCC_CACHE", "off")
    assert code() == cold
    assert len(compiled) == 2 * made


def test_kernels_that_differ_in_the_text_of_a_check_are_compiled_once_and_fail_with_their_own(
    cache: Path, compiled: list[str]
) -> None:
    table, places = np.arange(12, dtype=np.float32).reshape(3, 4), np.array([2, -3], np.int64)
    feeds = {"first": places, "second": places, "one whose name takes more memory than others": places}

    def work(count: int) -> PartitionJob:
        names = [*feeds][:count]
        nodes = [node("Gather", ["table", name], [f"y{n}"], name=name) for n, name in enumerate(names)]
        return job(model(nodes, {n: feeds[n] for n in names}, [f"y{n}" for n in range(count)], {"table": table}))

    CpuLowering().lower(work(1))
    made = len(compiled)
    CpuLowering().lower(work(2))
    assert len(compiled) == made
    every = work(3)
    lowered = CpuLowering().lower(every)
    for name in feeds:
        with pytest.raises(Exception, match=f"Gather '{name}': an index is out of range"):
            execute(every, lowered, feeds | {name: np.array([0, 3], np.int64)})
    for result in execute(every, lowered, feeds).values():
        np.testing.assert_array_equal(result, table[places])


def test_a_damaged_object_is_compiled_again_to_the_same_bytes(cache: Path, compiled: list[str]) -> None:
    cold = code()
    made = len(compiled)
    for path in stored(cache):
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    assert code() == cold
    assert len(compiled) == 2 * made


def test_a_changed_compiler_compiles_again(cache: Path, compiled: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code()
    made = len(compiled)
    monkeypatch.setattr(kernel_objects, "toolchain_digest", lambda: "another")
    code()
    assert len(compiled) == 2 * made


def test_a_kernel_of_another_network_under_other_names_is_found(cache: Path, compiled: list[str]) -> None:
    code()
    made = len(compiled)
    other = [
        node("Sigmoid", ["x"], ["s"], name="before"),
        node("MatMul", ["s", "w"], ["m2"], name="else"),
        node("Relu", ["m2"], ["r2"], name="where"),
    ]
    code(other, ("r2",))
    assert len(compiled) == made + 1  # the Sigmoid


def test_equal_kernels_have_one_object_and_numbers_that_differ_have_two(cache: Path, compiled: list[str]) -> None:
    near = np.float32(0.1), np.nextafter(np.float32(0.1), np.float32(1))
    constants = {f"c{i}": np.array(value, np.float32) for i, value in enumerate((*near, near[0]))}
    nodes = [node("Mul", ["x", f"c{i}"], [f"y{i}"], name=f"mul{i}") for i in range(3)]
    made = model(nodes, {"x": X}, ["y0", "y1", "y2"], constants)
    work = job(made)
    lowered = CpuLowering().lower(work)
    assert len(compiled) == 2
    assert_same(execute(work, lowered, {"x": X}), run_ort(made, {"x": X}))


def test_a_linker_that_defines_no_aliases_gives_code_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    zig = link._zig(link._plain_triple(None))
    if zig is None:
        pytest.skip("ziglang is not installed")
    monkeypatch.setattr(link, "find_linker", lambda *_: zig)
    made = model(NODES, {"x": X}, ["y"], {"w": W})
    work = job(made)
    assert_same(execute(work, CpuLowering().lower(work), {"x": X}), run_ort(made, {"x": X}))
