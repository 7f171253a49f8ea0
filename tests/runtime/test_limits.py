"""Numbers and dtypes of a manifest that the runtime must not act on, and those that it may."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from heterocc.artifacts.errors import BundleManifestError, UsageError
from heterocc.artifacts.manifest import Device
from heterocc.runtime import load
from heterocc.runtime.execute.tvm_api import max_threads
from tests.artifacts.bundle_forge import edited, pack
from tests.runtime import standin
from tests.runtime.execute.test_ort import floats, onnx_model
from tests.runtime.standin import Model, Op, Part

Write = Callable[..., Path]
X = np.arange(16, dtype=np.float32)


def negation(**properties: str) -> Model:
    """y = -x in ONNX Runtime."""
    code = onnx_model([helper.make_node("Neg", ["x"], ["y"])], [floats("x")], [floats("y")])
    device = Device(name="ORT", backend="ort", properties=properties)
    return Model(
        values=dict.fromkeys("xy", ("float32", (16,))),
        inputs=("x",),
        outputs=("y",),
        parts=(Part(0, ("x",), ("y",), onnx=code),),
        devices=(device,),
    )


def changed(path: Path, edit: Callable[[Any], None]) -> Path:
    """The bundle with another manifest, as our writer would not write it; all hashes hold."""
    pack(path, edited(path, edit))
    return path


def with_dtype(path: Path, dtype: str) -> Path:
    """The bundle with one dtype for all that it names."""

    def edit(manifest: Any) -> None:
        for spec in (*manifest["model"]["inputs"], *manifest["model"]["outputs"], *manifest["variants"][0]["values"]):
            spec["dtype"] = dtype

    return changed(path, edit)


@pytest.mark.parametrize("dtype", [">f4", "f4", "single", "longdouble", ",", "(2,", "i4,i4", "M8[s]"])
def test_a_dtype_that_only_numpy_knows_is_refused(dtype: str, bundle_of: Write) -> None:
    with pytest.raises(BundleManifestError, match="unknown dtype"):
        load(with_dtype(bundle_of(negation()), dtype))


@pytest.mark.parametrize("threads", ["100000", "²", "9" * 50, "2147483649", "-1", "1.5", ""])
def test_a_property_threads_that_is_no_number_of_threads_is_refused(threads: str, bundle_of: Write) -> None:
    def edit(manifest: Any) -> None:
        manifest["variants"][0]["devices"][0]["properties"]["threads"] = threads

    with pytest.raises(BundleManifestError, match="not a number from 1 to 1024"):
        load(changed(bundle_of(negation()), edit))


def test_a_bundle_gets_no_more_threads_than_the_machine_has(bundle_of: Write) -> None:
    with load(bundle_of(negation(threads="1024"))) as session:
        assert session.threads == max_threads()
        assert any("1024 threads were requested" in note for note in session.notes) == (max_threads() < 1024)
        np.testing.assert_array_equal(session.run({"x": X})["y"], -X)


@pytest.mark.parametrize("threads", [0, -1, 2**31, 10**40, True, 1.5, "2"])
def test_a_callers_threads_are_bounded(threads: Any, bundle_of: Write) -> None:
    with pytest.raises(UsageError, match="below 2") as caught:
        load(bundle_of(negation()), threads=threads)
    assert len(str(caught.value)) < 200


def test_a_caller_gets_no_more_threads_of_onnx_runtime_than_there_are_cores(bundle_of: Write) -> None:
    with load(bundle_of(negation()), threads=100_000) as session:
        assert session.threads == max_threads()
        assert any("100000 threads were requested" in note for note in session.notes)
        np.testing.assert_array_equal(session.run({"x": X})["y"], -X)


@pytest.mark.parametrize("dtype", ["complex64", "complex128", "bfloat16", "float8_e5m2", "int4", "string"])
def test_compiled_code_gets_no_tensor_of_a_dtype_that_no_device_computes(dtype: str, bundle_of: Write) -> None:
    with pytest.raises(BundleManifestError, match=f"is {dtype}, which no device computes"):
        load(with_dtype(bundle_of(standin.chain(1)), dtype))


@pytest.mark.parametrize("shape", [(16,), (0,), ()])
def test_complex_values_pass_by_compiled_code(shape: tuple[int, ...], bundle_of: Write) -> None:
    values: Any = {
        "x": ("float32", (16,)),
        "c": ("complex64", shape),
        "k": ("complex64", (2,)),
        "y": ("float32", (16,)),
    }
    double = Part(0, ("x",), ("y",), (Op("add", "add", ("x", "x"), "y"),))
    k = np.array([1j, 2], np.complex64)
    model = Model(values=values, inputs=("x", "c"), outputs=("y", "c", "k"), parts=(double,), weights={"w": k},
                  constants={"k": "w"})  # fmt: skip
    c = np.full(shape, 1 + 2j, np.complex64)
    with load(bundle_of(model)) as session:
        got = session.run({"x": X, "c": c})
        traced = session.run_traced({"x": X, "c": c})
    for found in (got, traced):
        np.testing.assert_array_equal(found["y"], 2 * X)
        np.testing.assert_array_equal(found["c"], c)
        np.testing.assert_array_equal(found["k"], k)


def test_values_that_no_memory_holds_together_are_refused(bundle_of: Write) -> None:
    def edit(manifest: Any) -> None:
        values = manifest["variants"][0]["values"]
        values += [{"name": f"huge{i}", "dtype": "float64", "shape": [2**28, 2**28]} for i in range(20)]
        manifest["variants"][0]["partitions"][0]["outputs"] += range(2, 22)

    with pytest.raises(BundleManifestError, match="bytes in total"):
        load(changed(bundle_of(negation()), edit))
