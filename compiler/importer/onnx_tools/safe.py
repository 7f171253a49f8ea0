"""Models that do not end the process in which ONNX Runtime runs them."""

from __future__ import annotations

import onnx

from heterocc.compiler.importer.onnx_tools.filled import needs_checks, with_filled_sizes
from heterocc.compiler.importer.onnx_tools.frames import has_frames, with_checked_frames


def with_checked_sizes(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model, or one in its place whose sizes are checked where ONNX Runtime does not do it.

    Values keep their names. Quotients are another matter, of which the dtypes must be known (`quotients.py`).
    """
    if not (needs_checks(model) or has_frames(model)):
        return model
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    with_checked_frames(changed)
    with_filled_sizes(changed)
    return changed
