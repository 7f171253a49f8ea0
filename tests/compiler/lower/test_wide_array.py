"""Weights of 16 bits that are float32 only where their numbers are read."""

from __future__ import annotations

import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from onnx import helper

from heterocc.compiler.lower.backend import PartitionJob
from heterocc.compiler.lower.cpu.lowering import CpuLowering
from heterocc.compiler.lower.relax.importer import import_function
from heterocc.compiler.lower.wide_array import WideArray, as_stored, in_bits
from tests.compiler.lower.lowered import CPU, Model, model

WEIGHTS, SIDE = 4, 512


@pytest.mark.parametrize(("dtype", "bits"), [(np.float16, "float16"), (ml_dtypes.bfloat16, "uint16")])
def test_a_wide_array_answers_as_the_float32_one(dtype: type, bits: str) -> None:
    narrow = np.random.default_rng(0).standard_normal((6, 8)).astype(dtype)
    given, whole = WideArray(narrow), narrow.astype(np.float32)
    assert (given.shape, given.ndim, given.size, given.nbytes, given.dtype) == ((6, 8), 2, 48, 192, np.float32)
    np.testing.assert_array_equal(np.asarray(given), whole)
    np.testing.assert_array_equal(given + 1, whole + 1)
    np.testing.assert_array_equal(given[2:, ::3], whole[2:, ::3])
    np.testing.assert_array_equal(given.max(axis=1), whole.max(axis=1))
    others = [(given.T, whole.T), (given.transpose(1, 0), whole.T), (np.transpose(given, (1, 0)), whole.T)]
    for found, wanted in (*others, (given.reshape(4, -1), whole.reshape(4, -1))):
        assert isinstance(found, WideArray) and np.shares_memory(found.narrow, narrow)
        np.testing.assert_array_equal(np.asarray(found), wanted)
    assert as_stored(given) is narrow and as_stored(whole) is whole  # type: ignore[arg-type]
    stored = in_bits(given, bits)  # type: ignore[arg-type]
    assert stored.dtype == bits and np.shares_memory(stored, narrow)
    np.testing.assert_array_equal(in_bits(given, "float32"), whole)  # type: ignore[arg-type]


def products(dtype: type) -> Model:
    """Products whose weights are of 16 bits, one after another."""
    rng = np.random.default_rng(0)
    nodes = [helper.make_node("MatMul", [f"v{n}", f"w{n}"], [f"v{n + 1}"], name=f"m{n}") for n in range(WEIGHTS)]
    weights = {f"w{n}": rng.standard_normal((SIDE, SIDE)).astype(dtype) for n in range(WEIGHTS)}
    return model(nodes, {"v0": np.ones((1, SIDE), dtype)}, [f"v{WEIGHTS}"], weights)


def job(made: Model) -> PartitionJob:
    names = tuple(node.name for node in made.graph.nodes)
    return PartitionJob("p0", made, CPU, names, ("v0",), (f"v{WEIGHTS}",))


def test_importing_nodes_does_not_widen_their_weights() -> None:
    """The numbers of a language model as float32 are twice its size."""
    given = job(products(np.float16))
    import_function(given)  # what is imported and cached once
    tracemalloc.start()
    import_function(given)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < sum(array.nbytes for array in given.model.weights.values())


def test_weights_are_packed_from_the_memory_of_the_model() -> None:
    made = products(np.float16)
    lowered = CpuLowering().lower(job(made))
    sources = [found.source for found in lowered.arranged or () if found is not None]
    assert len(sources) == WEIGHTS
    for number, found in enumerate(sources):
        assert isinstance(found, np.ndarray) and np.shares_memory(found, made.weights[f"w{number}"])
