"""Inputs read and results written in the caller's arrays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from heterocc.compiler import compile_model
from heterocc.runtime import load

SHAPE = (70, 131)
LARGE = SHAPE[0] * SHAPE[1] * 4


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """y = max(a - b, 0), z = y turned around times a matrix: large values that CPU code alone touches."""
    weight = np.random.default_rng(0).standard_normal((SHAPE[0], 64), np.float32)
    nodes = [
        helper.make_node("Sub", ["a", "b"], ["d"]),
        helper.make_node("Relu", ["d"], ["y"]),
        helper.make_node("Transpose", ["y"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["t", "w"], ["z"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, SHAPE) for n in ("a", "b")],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("y", "z")],
        [numpy_helper.from_array(weight, "w")],
    )
    path = tmp_path_factory.mktemp("direct") / "m.hcb"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    compile_model(model, path, devices="CPU")
    return path


def expected(a: np.ndarray, b: np.ndarray) -> dict[str, np.ndarray]:
    weight = np.random.default_rng(0).standard_normal((SHAPE[0], 64), np.float32)
    y = np.maximum(a - b, 0)
    return {"y": y, "z": y.T @ weight}


def assert_right(found: dict[str, np.ndarray], a: np.ndarray, b: np.ndarray) -> None:
    for name, right in expected(a, b).items():
        np.testing.assert_allclose(found[name], right, rtol=1e-4, atol=1e-4)


def at_offset(offset: int, seed: int) -> np.ndarray:
    """Numbers that start `offset` bytes behind a multiple of 64."""
    raw = np.empty(LARGE + 192, np.uint8)
    start = -raw.ctypes.data % 64 + offset
    array = raw[start : start + LARGE].view(np.float32).reshape(SHAPE)
    array[...] = np.random.default_rng(seed).standard_normal(SHAPE)
    return array


@pytest.mark.parametrize("offset", [0, 4, 16, 32, 60])
def test_arrays_at_any_address_are_read_and_written(bundle: Path, offset: int) -> None:
    with load(bundle) as session:
        for seed in range(3):
            a, b, y = at_offset(offset, seed), at_offset(64 - offset, seed + 7), at_offset(offset, 0)
            found = session.run({"a": a, "b": b}, out={"y": y})
            assert found["y"] is y
            assert_right(found, a, b)


def test_arrays_of_any_layout_in_turn_give_the_right_results(bundle: Path) -> None:
    random = np.random.default_rng(3)
    plain = random.standard_normal(SHAPE).astype(np.float32)
    forms = [
        plain,
        np.asfortranarray(plain),
        np.repeat(plain, 2, 1)[:, ::2],
        plain[::-1],
        np.frombuffer(b"." + plain.tobytes(), np.uint8)[1:].view(np.float32).reshape(SHAPE),
        plain.astype(">f4"),
    ]
    plain.flags.writeable = False
    with load(bundle) as session:
        for a in [*forms, *forms]:
            assert_right(session.run({"a": a, "b": plain}), np.asarray(a, np.float32), plain)
            assert_right(session.run({"a": plain, "b": a}), plain, np.asarray(a, np.float32))


def test_results_stay_as_they_were_when_later_runs_write_theirs(bundle: Path) -> None:
    with load(bundle) as session:
        feeds = [{"a": at_offset(0, s), "b": at_offset(16, s + 1)} for s in range(6)]
        results = [session.run(f) for f in feeds]
        bound = session.bind()
        bound.inputs["a"][...], bound.inputs["b"][...] = feeds[0]["a"], feeds[0]["b"]
        assert_right(bound.run(), **feeds[0])
        for feed, found in zip(feeds, results, strict=True):
            assert_right(found, **feed)


def test_an_output_over_an_input_or_another_output_is_written_after_the_run(bundle: Path) -> None:
    with load(bundle) as session:
        a, b = at_offset(0, 1), at_offset(0, 2)
        before = a.copy()
        assert_right(session.run({"a": a, "b": b}, out={"y": a}), before, b)
        both = np.empty(LARGE + 64 * SHAPE[1] * 4, np.uint8)
        y = both[:LARGE].view(np.float32).reshape(SHAPE)
        z = both[64:][: SHAPE[1] * 64 * 4].view(np.float32).reshape(SHAPE[1], 64)
        session.run({"a": before, "b": b}, out={"y": y, "z": z})
        np.testing.assert_allclose(z, expected(before, b)["z"], rtol=1e-4, atol=1e-4)


def test_an_output_alone_and_repeated_names_are_right(bundle: Path) -> None:
    with load(bundle) as session:
        a, b = at_offset(0, 1), at_offset(4, 2)
        for names in (["z"], ["y"], ["y", "z", "y"], ["z", "y"]):
            found = session.run(names, {"a": a, "b": b})
            for name, value in zip(names, found, strict=True):
                np.testing.assert_allclose(value, expected(a, b)[name], rtol=1e-4, atol=1e-4)


def test_results_that_a_caller_keeps_are_not_written_again(bundle: Path) -> None:
    random = np.random.default_rng(5)
    inputs = [tuple(random.standard_normal((2, *SHAPE)).astype(np.float32)) for _ in range(6)]
    with load(bundle) as session:
        kept = [session.run({"a": a, "b": b}) for a, b in inputs]
        rows = [session.run({"a": a, "b": b})["y"][3:, ::2] for a, b in inputs]
        for found, row, (a, b) in zip(kept, rows, inputs, strict=True):
            assert_right(found, a, b)
            np.testing.assert_array_equal(row, np.maximum(a - b, 0)[3:, ::2])


def test_the_memory_of_dropped_results_is_used_again(bundle: Path) -> None:
    a, b = np.random.default_rng(6).standard_normal((2, *SHAPE)).astype(np.float32)
    with load(bundle) as session:
        addresses = set()
        for _ in range(6):
            found = session.run({"a": a, "b": b})  # the last results are dropped when the next ones are here
            addresses.add(found["y"].ctypes.data)
        assert len(addresses) == 2
