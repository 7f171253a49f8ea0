"""Native plug-ins of the runtime: what gives the stock TVM wheel an OpenCL device."""

from __future__ import annotations


def register() -> None:
    """Entry point of group `tvm.backends`: called by `import tvm`."""
