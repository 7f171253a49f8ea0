"""The compiler: from an ONNX model to a bundle.

from heterocc.compiler import compile_model, query_model

plan = query_model("model.onnx", "GPU,CPU")          # node → device, to look at and to change
plan["conv1"] = "CPU"
compile_model("model.onnx", "model.hcb", devices="GPU,CPU", affinity=plan)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heterocc.compiler.driver import compile_model, partition_model
    from heterocc.compiler.onnx_import import import_model
    from heterocc.compiler.options import CompileOptions
    from heterocc.compiler.query import query_model
    from heterocc.compiler.verify import verify_bundle

_HOMES = {
    "CompileOptions": "options",
    "compile_model": "driver",
    "import_model": "onnx_import",
    "partition_model": "driver",
    "query_model": "query",
    "verify_bundle": "verify",
}

__all__ = ["CompileOptions", "compile_model", "import_model", "partition_model", "query_model", "verify_bundle"]


def __getattr__(name: str) -> Any:
    """Load a public name when it is used: `heterocc --help` needs neither onnx nor TVM."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
