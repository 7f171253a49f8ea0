from __future__ import annotations

from collections.abc import Iterator

import pytest
import tvm_ffi

from heterocc.runtime.native import unavailable_reason


@pytest.fixture(autouse=True)
def _device_or_skip(request: pytest.FixtureRequest) -> Iterator[None]:
    """Skips a test marked `opencl` where there is no device, and leaves no fault behind."""
    if request.node.get_closest_marker("opencl") is None:
        yield
        return
    reason = unavailable_reason()
    if reason is not None:
        pytest.skip(f"no OpenCL device: {reason}")
    yield
    tvm_ffi.get_global_func("heterocc.opencl.fault")("")
