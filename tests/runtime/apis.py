"""The APIs whose devices the runtime's tests run on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from heterocc.artifacts.manifest import Device
from heterocc.runtime.native import opencl_api, vulkan_api
from tests.runtime import standin


@dataclass(frozen=True)
class Api:
    """An API: `letter` is its device in `standin.chain`, `label` what messages call it."""

    letter: str
    label: str
    device: Device
    why_not: Callable[[], str | None]
    trim: Callable[[], int]

    @property
    def backend(self) -> str:
        return self.device.backend


OPENCL = Api("g", "OpenCL", standin.OPENCL, opencl_api.opencl_unavailable_reason, opencl_api.trim)
VULKAN = Api("v", "Vulkan", standin.VULKAN, vulkan_api.vulkan_unavailable_reason, vulkan_api.trim)
