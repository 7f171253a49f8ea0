"""Kernels of drawn shapes on every driver and set of limits; see test_gpu_kernels for those that are written down."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.compiler.lower.kernel_case import batch
from tests.compiler.lower.kernel_devices import SETTINGS, Setting
from tests.compiler.lower.kernel_diff import differences, inexact
from tests.compiler.lower.kernel_shapes import KINDS, Together, several
from tests.few_examples import few

HERE = [s for s in SETTINGS if s.missing is None and s.backend != "cuda"]
"""The emulated CUDA needs a process for each example; the explicit examples cover it."""

pytestmark = pytest.mark.skipif(not HERE, reason="no OpenCL and no Vulkan device")

every_kind = pytest.mark.parametrize("kind", KINDS)


def agree(together: Together, setting: Setting) -> None:
    made = batch([c for c in together.cases if c.dtypes <= setting.device.dtypes])
    assert differences(made, setting).wrong == ()
    assert inexact(made, setting) == []


# Not shrunk: that takes minutes, and the failure names the wrong case of an example.
@every_kind
@few(3)
@given(st.data(), st.sampled_from(HERE))
def test_kernels_of_drawn_shapes_agree(kind: str, data: st.DataObject, setting: Setting) -> None:
    agree(data.draw(several(KINDS[kind])), setting)


@pytest.mark.slow
@every_kind
@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(st.data(), st.sampled_from(HERE))
def test_kernels_of_many_drawn_shapes_agree(kind: str, data: st.DataObject, setting: Setting) -> None:
    agree(data.draw(several(KINDS[kind], 8)), setting)
