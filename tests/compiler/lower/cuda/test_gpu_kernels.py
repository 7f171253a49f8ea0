"""Every kernel as it is scheduled for CUDA, on a real GPU, against the same kernel unscheduled on the CPU."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heterocc.runtime.native import cuda_unavailable_reason
from tests.compiler.lower.kernel_case import batch
from tests.compiler.lower.kernel_cases import FAMILIES
from tests.compiler.lower.kernel_devices import NVIDIA
from tests.compiler.lower.kernel_diff import differences
from tests.compiler.lower.kernel_shapes import KINDS, several

_REASON = cuda_unavailable_reason()
pytestmark = [pytest.mark.cuda, pytest.mark.skipif(_REASON is not None, reason=f"no NVIDIA GPU here: {_REASON}")]

TAKEN = [family for family, cases in FAMILIES.items() if not all("cuda" in c.refused for c in cases)]
PART = 40
"""Cases that are compiled together."""


@pytest.mark.parametrize("family", TAKEN)
def test_scheduled_kernels_compute_what_unscheduled_ones_do(family: str) -> None:
    cases = [c for c in FAMILIES[family] if c.dtypes <= NVIDIA.device.dtypes and "cuda" not in c.refused]
    parts = [cases[start : start + PART] for start in range(0, len(cases), PART)]
    assert [text for part in parts for text in differences(batch(part), NVIDIA).wrong] == []


@pytest.mark.parametrize("kind", KINDS)
@settings(
    max_examples=6,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(st.data())
def test_kernels_of_drawn_shapes_agree(kind: str, data: st.DataObject) -> None:
    together = data.draw(several(KINDS[kind], 8))
    made = batch([c for c in together.cases if c.dtypes <= NVIDIA.device.dtypes])
    assert differences(made, NVIDIA).wrong == ()
