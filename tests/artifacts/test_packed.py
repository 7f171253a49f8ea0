"""Arrays of 4-bit integers that stay two in a byte."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from heterocc.artifacts.dtypes import is_narrow
from heterocc.artifacts.packed import PackedArray
from heterocc.compiler.importer.digests import Digests, digest


@pytest.mark.parametrize("kind", ["INT4", "UINT4"])
@pytest.mark.parametrize("shape", [(6, 8), (5, 7)])
def test_a_packed_array_answers_as_the_unpacked_one(kind: str, shape: tuple[int, int]) -> None:
    number = getattr(TensorProto, kind)
    data = np.random.default_rng(0).integers(0, 256, (shape[0] * shape[1] + 1) // 2, np.uint8)
    tensor = TensorProto(data_type=number, dims=shape, raw_data=data.tobytes())
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(number))
    code = np.dtype("i1" if kind == "INT4" else "u1")
    packed = PackedArray(data, shape, dtype, is_signed=kind == "INT4")
    whole = numpy_helper.to_array(tensor).astype(code)
    bits = packed.view(code)
    assert (packed.shape, packed.ndim, packed.size, packed.nbytes) == (shape, 2, whole.size, whole.nbytes)
    assert is_narrow(packed) and not is_narrow(bits) and packed.itemsize == 1
    np.testing.assert_array_equal(np.asarray(packed).astype(code), whole)
    np.testing.assert_array_equal(packed.T.astype(np.float32), whole.T)
    np.testing.assert_array_equal(bits == 3, whole == 3)
    np.testing.assert_array_equal(bits.astype(np.int16) + 1, whole.astype(np.int16) + 1)
    for first, last in ((0, 5), (1, 4), (2, 5), (3, 3)):
        np.testing.assert_array_equal(bits.part(0, first, last), whole[first:last])
        np.testing.assert_array_equal(bits.part(1, first, last), whole[:, first:last])
        np.testing.assert_array_equal(bits[first:last], whole[first:last])
    np.testing.assert_array_equal(np.concatenate(list(bits.pieces())), whole.reshape(-1))
    assert digest(packed) == digest(bits) == hashlib.sha256(whole.tobytes()).hexdigest()  # type: ignore[arg-type]


def test_digests_tell_signed_integers_from_others_in_the_same_memory() -> None:
    data, known = np.full(8, 255, np.uint8), Digests()
    found = [known.of(PackedArray(data, (16,), np.dtype("u1"), is_signed=s)) for s in (True, False)]  # type: ignore[arg-type]
    assert found == [digest(np.full(16, n, np.uint8)) for n in (255, 15)]


def test_what_is_written_to_the_unpacked_array_is_an_error() -> None:
    packed = PackedArray(np.zeros(2, np.uint8), (4,), np.dtype("i1"), is_signed=True)
    with pytest.raises(ValueError, match="read-only"):
        np.asarray(packed)[0] = 1
    with pytest.raises(TypeError):
        packed[0] = 1  # type: ignore[index]
