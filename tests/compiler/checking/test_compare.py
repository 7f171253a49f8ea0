import math
import tracemalloc

import numpy as np
import pytest

from heterocc.compiler.checking.compare import Tolerance, compare


def test_equal_tensors_have_an_infinite_ratio_and_no_reason() -> None:
    a = np.array([1.0, np.nan, np.inf], np.float32)
    found = compare("y", a.copy(), a)
    assert found.ok and found.max_abs == 0 and math.isinf(found.snr)


def test_the_worst_element_is_named_with_both_values() -> None:
    reference = np.zeros((2, 3), np.float32)
    got = reference.copy()
    got[1, 2], got[0, 1] = 5.0, 0.5
    found = compare("y", got, reference)
    assert not found.ok
    assert found.reason == "2 of 6 elements differ, worst at [1,2]: 5.0 instead of 0.0"
    assert found.max_abs == 5.0


@pytest.mark.parametrize(("error", "ok"), [(0.9e-4, True), (2.2e-3, False)])
def test_the_tolerance_grows_with_the_reference(error: float, ok: bool) -> None:
    reference = np.array([1.0, 0.0], np.float32)
    got = reference + np.array([error, 0], np.float32)
    assert compare("y", got, reference).ok is ok


def test_a_nan_in_place_of_a_number_is_wrong() -> None:
    assert not compare("y", np.array([np.nan], np.float32), np.array([1.0], np.float32)).ok
    assert not compare("y", np.array([1.0], np.float32), np.array([np.nan], np.float32)).ok
    assert not compare("y", np.array([np.inf], np.float32), np.array([-np.inf], np.float32)).ok


def test_large_integers_are_compared_exactly() -> None:
    """Neighbours above 2**53 are one number in float64."""
    reference = np.array([2**53, 2**63 - 1])
    assert compare("y", reference.copy(), reference).ok
    found = compare("y", np.array([2**53 + 1, 2**63 - 1]), reference)
    assert not found.ok and found.max_abs == 1
    unsigned = np.array([2**64 - 1], np.uint64)
    assert not compare("y", unsigned - np.uint64(1), unsigned).ok


def test_integers_are_compared_exactly_unless_steps_are_allowed() -> None:
    got, reference = np.array([3], np.uint8), np.array([4], np.uint8)
    assert not compare("y", got, reference).ok
    assert compare("y", got, reference, Tolerance(steps=1)).ok


def test_another_dtype_or_shape_is_wrong_whatever_the_values() -> None:
    reference = np.zeros((2,), np.float32)
    assert "float64[2], expected float32[2]" in (compare("y", reference.astype(np.float64), reference).reason or "")
    assert not compare("y", np.zeros((1, 2), np.float32), reference).ok


def test_maps_and_sequences_are_compared_element_by_element() -> None:
    reference = [{0: 0.25, 1: 0.75}]
    assert compare("p", [{0: 0.25, 1: 0.75}], reference).ok
    found = compare("p", [{0: 0.35, 1: 0.65}], reference)
    assert not found.ok and "p[0][0]" in (found.reason or "")
    assert not compare("p", [{0: 0.25}], reference).ok


def test_text_is_compared_exactly() -> None:
    assert compare("s", np.array(["a"], object), np.array(["a"], object)).ok
    assert not compare("s", np.array(["a"], object), np.array(["b"], object)).ok


def test_empty_tensors_are_equal() -> None:
    assert compare("y", np.zeros((0, 3), np.float32), np.zeros((0, 3), np.float32)).ok


def test_large_tensors_are_compared_with_little_memory_and_the_worst_place_is_found() -> None:
    reference = np.zeros((3, 1 << 19), np.float32)
    got = reference.copy()
    got[0, 7], got[1, 300_000], got[2, 5] = 1.0, 2.0, 2.0
    tracemalloc.start()
    found = compare("y", got, reference)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 * reference.nbytes  # float64 copies of everything are more
    assert found.reason == "3 of 1572864 elements differ, worst at [1,300000]: 2.0 instead of 0.0"
    assert (found.max_abs, found.mean_abs) == (2.0, 5.0 / reference.size)
