from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from heterocc.artifacts.errors import FeedError
from heterocc.runtime.feeds import FeedCheck, InputCheck, TensorInfo
from heterocc.runtime.targets import check_out

SPEC = TensorInfo(name="pixels", dtype="float32", shape=(1, 3, 4))
GOOD = np.zeros((1, 3, 4), np.float32)


def refusal(feed: Any) -> FeedError:
    with pytest.raises(FeedError) as caught:
        FeedCheck([SPEC, TensorInfo(name="mask", dtype="bool", shape=())], "m.hcb")(feed)
    assert caught.value.code == "HC110"
    assert caught.value.where == "m.hcb"
    return caught.value


def test_a_wrong_dtype_is_refused_and_never_cast() -> None:
    error = refusal({"pixels": GOOD.astype(np.float64), "mask": np.array(True)})
    assert error.message == "input 'pixels' must have dtype float32, got float64"
    assert "astype('float32')" in str(error.hint)


def test_arrays_in_the_other_byte_order_are_converted() -> None:
    given = np.arange(12, dtype=">f4").reshape(1, 3, 4)
    (pixels,) = FeedCheck([SPEC], "m.hcb")({"pixels": given})
    assert pixels.dtype == np.float32 and pixels.dtype.isnative and np.array_equal(pixels, given)
    assert check_out("pixels", np.zeros((1, 3, 4), ">f4"), SPEC, "m.hcb").dtype == np.dtype(">f4")


def test_a_wrong_shape_is_refused_with_both_shapes() -> None:
    error = refusal({"pixels": np.zeros((2, 3, 4), np.float32), "mask": np.array(True)})
    assert error.message == "input 'pixels' must have shape [1, 3, 4], got [2, 3, 4]"


@pytest.mark.parametrize(
    ("shape", "hint"),
    [
        ((3, 4), "batch dimension"),
        ((1, 4, 3), "another order"),
        ((1, 3, 5), "shapes="),
        ((7,), "an array of 3 dimensions"),
    ],
)
def test_the_hint_to_a_wrong_shape_fits_the_mistake(shape: tuple[int, ...], hint: str) -> None:
    assert hint in str(refusal({"pixels": np.zeros(shape, np.float32), "mask": np.array(True)}).hint)


def test_an_array_of_one_element_for_a_number_is_told_how_to_lose_its_dimensions() -> None:
    error = refusal({"pixels": GOOD, "mask": np.array([True])})
    assert error.message == "input 'mask' must have shape [], got [1]" and "array.reshape(())" in str(error.hint)


def test_a_missing_input_is_named() -> None:
    error = refusal({"pixels": GOOD})
    assert error.message == "input 'mask' is missing"
    assert "mask: bool []" in str(error.hint)


def test_an_unknown_input_points_to_the_nearest_name() -> None:
    error = refusal({"pixel": GOOD, "mask": np.array(True)})
    assert error.message == "the model has no input 'pixel'"
    assert error.hint == "did you mean 'pixels'?"


def test_an_extra_input_is_refused() -> None:
    assert refusal({"pixels": GOOD, "mask": np.array(True), "zzz": GOOD}).message == "the model has no input 'zzz'"


@pytest.mark.parametrize("given", [1.0, [[1.0]], None, "text"])
def test_python_values_are_refused_with_a_hint(given: Any) -> None:
    error = refusal({"pixels": given, "mask": np.array(True)})
    assert "must be a numpy array, got" in error.message
    assert "np.asarray(value, dtype='float32')" in str(error.hint)


def test_arrays_in_the_order_of_the_inputs_are_a_feed() -> None:
    mask = np.array(True)
    for given in ([GOOD, mask], (GOOD, mask)):
        found = FeedCheck([SPEC, TensorInfo(name="mask", dtype="bool", shape=())], "m")(given)
        assert found[0] is GOOD and found[1] is mask
    single = FeedCheck([SPEC], "m")
    assert single(GOOD)[0] is GOOD and single([GOOD])[0] is GOOD


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (GOOD, "the model has 2 inputs, got 1 array"),
        ([], "the model has 2 inputs, got 0 arrays"),
        ([GOOD] * 3, "the model has 2 inputs, got 3 arrays"),
        (["pixels", "mask"], "a list of texts was given in place of arrays"),
        (7, "inputs must be a mapping, an array, or a list of arrays, got int"),
        ([GOOD, [True]], "input 'mask' must be a numpy array, got list"),
    ],
)
def test_a_feed_of_another_form_is_refused(given: Any, message: str) -> None:
    error = refusal(given)
    assert error.message == message and error.hint


def test_numpy_scalars_and_other_array_libraries_are_accepted() -> None:
    class Foreign:
        def __dlpack__(self, **_: Any) -> Any:
            return GOOD.__dlpack__()

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    arrays = FeedCheck([SPEC, TensorInfo(name="mask", dtype="bool", shape=())], "m")(
        {"mask": np.bool_(True), "pixels": Foreign()}
    )
    assert arrays[0].shape == (1, 3, 4)
    assert arrays[1].shape == ()


def test_a_dynamic_dimension_takes_any_size_and_a_known_one_only_its_own() -> None:
    check = InputCheck(TensorInfo(name="x", dtype="int64", shape=(None, 2)), "m")
    assert check(np.zeros((5, 2), np.int64)).shape == (5, 2)
    with pytest.raises(FeedError, match=r"shape \[\?, 2\], got \[5, 3\]"):
        check(np.zeros((5, 3), np.int64))


def test_strings_are_checked_as_strings() -> None:
    check = InputCheck(TensorInfo(name="s", dtype="tensor(string)", shape=(2,)), "m")
    assert check(np.array(["a", "b"], dtype=object)).shape == (2,)
    with pytest.raises(FeedError, match="array of strings"):
        check(np.zeros(2))


class FakeTensor:
    """A stand-in for a tensor of PyTorch that DLPack refuses."""

    def __init__(self, dtype: str, *, requires_grad: bool = False, device: str = "cpu") -> None:
        self.dtype, self.requires_grad, self.device = dtype, requires_grad, device

    def __dlpack__(self, **_: object) -> object:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


@pytest.mark.parametrize(
    ("tensor", "hint"),
    [
        (FakeTensor("torch.float32", requires_grad=True), "tensor.detach()"),
        (FakeTensor("torch.bfloat16"), "tensor.float().numpy()"),
        (FakeTensor("torch.float32", device="cuda:0"), "copy it to the CPU first"),
        (FakeTensor("torch.float8_e4m3fn"), "a dense array of a dtype that numpy has, as float32"),
    ],
)
def test_a_tensor_that_cannot_be_shared_gets_a_hint_for_its_kind(tensor: FakeTensor, hint: str) -> None:
    with pytest.raises(FeedError) as caught:
        InputCheck(TensorInfo("x", "float32", (2,)), "m.hcb")(tensor)
    assert hint in str(caught.value.hint)
