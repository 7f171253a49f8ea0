"""Sizes that a kernel takes beside its tensors are in the order in which these use them.

TVM collects the sizes that no dimension of a tensor gives in sets, whose order is that of places in memory: the same
model had kernels with other parameters in each process.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tvm.relax import utils


class _InOrder(dict[Any, None]):
    """The part of a set that TVM uses there, in the order of insertion."""

    def add(self, value: object) -> None:
        self.setdefault(value)

    def update(self, values: Iterable[object]) -> None:  # type: ignore[override]
        for value in values:
            self.add(value)

    def __sub__(self, others: _InOrder) -> list[Any]:
        return [value for value in self if value not in others]


def order_sizes() -> None:
    """Replace the sets of `tvm.relax.utils` in this process, which only its `gen_call_tir_inputs` makes."""
    vars(utils)["set"] = _InOrder
