"""ONNX Runtime as the reference of tests: its usual optimisations, and exact products of integers on every CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx

from heterocc.compiler.importer.onnx_tools.exact_products import with_exact_products
from heterocc.runtime.execute import ort_session


def reference_session(model: onnx.ModelProto | Path, options: Any = None) -> Any:
    """A session for a model, or for a file that is too large for one message if it has no products of integers.

    `options` are those of `session_options`, which keep constant weights from saturating.
    """
    proto = onnx.load(model, load_external_data=False) if isinstance(model, Path) else model
    exact = with_exact_products(proto)
    given: Any = str(model) if isinstance(model, Path) and exact is proto else exact.SerializeToString()
    return ort_session.open_session(given, options or ort_session.session_options())
