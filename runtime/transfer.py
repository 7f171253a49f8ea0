"""Sends values between memories."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from heterocc.runtime.schedule import Copy, Space
from heterocc.runtime.tvm_api import tvm_api


def bind_copy(step: Copy, tensors: Mapping[tuple[int, Space], Any]) -> Callable[[], Any]:
    """A call without arguments that sends the value; when it returns from a copy to the host, the bytes are there."""
    source, target = tensors[step.value, step.source], tensors[step.value, step.target]
    return partial(tvm_api().copy, source, target)
