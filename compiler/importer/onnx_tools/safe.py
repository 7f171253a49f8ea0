"""Models that neither end the process in which ONNX Runtime runs them nor return memory of others."""

from __future__ import annotations

from collections.abc import Collection

import onnx

from heterocc.compiler.importer.onnx_tools.caches import has_windowed_caches, with_clear_caches
from heterocc.compiler.importer.onnx_tools.filled import needs_checks, with_filled_sizes
from heterocc.compiler.importer.onnx_tools.frames import has_frames, with_checked_frames


def safe_model(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, or one in its place with checks and without results that ONNX Runtime leaves unwritten.

    Values keep their names. Quotients are another matter, of which the dtypes must be known (`quotients.py`).
    """
    if not (needs_checks(model) or has_frames(model) or has_windowed_caches(model)):
        return model
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    make_safe(changed)
    return changed


def make_safe(model: onnx.ModelProto, checked: Collection[tuple[str, str]] = ()) -> None:
    """Change a model in this way; `checked` is as for `with_filled_sizes`."""
    with_checked_frames(model)
    with_clear_caches(model)
    if needs_checks(model):
        with_filled_sizes(model, checked)
