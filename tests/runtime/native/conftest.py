from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tvm_ffi

from heterocc.runtime.native import opencl_unavailable_reason, vulkan_unavailable_reason
from tests.runtime.native import opencl_sample, vulkan_sample

_WHY_NOT: dict[str, tuple[str, Callable[[], str | None]]] = {
    "opencl": ("OpenCL", opencl_unavailable_reason),
    "vulkan": ("Vulkan", vulkan_unavailable_reason),
}


@pytest.fixture(autouse=True)
def _device_or_skip(request: pytest.FixtureRequest) -> Iterator[None]:
    """Skip a test marked `opencl` or `vulkan` without such a device, and remove faults after it."""
    used = [name for name in _WHY_NOT if request.node.get_closest_marker(name) is not None]
    for name in used:
        label, why_not = _WHY_NOT[name]
        reason = why_not()
        if reason is not None:
            pytest.skip(f"no {label} device: {reason}")
    yield
    for name in used:
        tvm_ffi.get_global_func(f"heterocc.{name}.fault")("")


@pytest.fixture(
    params=[pytest.param("opencl", marks=pytest.mark.opencl), pytest.param("vulkan", marks=pytest.mark.vulkan)]
)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def sample(backend: str) -> Any:
    """The functions of the API's sample: tensors, and a kernel that scales one."""
    return {"opencl": opencl_sample, "vulkan": vulkan_sample}[backend]
