"""Kernels of any size that were written before: a model of many layers has few different ones, in many parts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

import tvm_ffi
from tvm import tirx

from heterocc.compiler.lower.cpu.sizes import dims_of
from heterocc.compiler.lower.variables import may_be_empty, typical_of

_Packings = TypeVar("_Packings")


class AlikeKernels(Generic[_Packings]):
    """The code of kernels, by what it was written from; names do not count. Those used last are kept, up to `most`.

    `depends` says whether code depends on more, for packings of weights: then it is not kept.
    """

    def __init__(self, most: int, depends: Callable[[_Packings], bool]) -> None:
        self._most, self._depends = most, depends
        self._known: OrderedDict[Hashable, tuple[tirx.PrimFunc, tirx.PrimFunc, _Packings]] = OrderedDict()

    def written(
        self, function: tirx.PrimFunc, facts: Hashable, write: Callable[[], tuple[tirx.PrimFunc, _Packings]]
    ) -> tuple[tirx.PrimFunc, _Packings]:
        """The code of a kernel, and the packings of its weights: those of an equal one with equal `facts`, or new."""
        symbol = function.attrs["global_symbol"]
        plain = function.with_attr("global_symbol", "kernel")
        sizes = [var for dim in dims_of(function) for var in tirx.analysis.undefined_vars(dim)]
        named = tuple((may_be_empty(var), typical_of(var)) for var in sizes)
        key = (tvm_ffi.structural_hash(plain, map_free_vars=True), named, facts)
        known = self._known.get(key)
        if known is None or not tvm_ffi.structural_equal(known[0], plain, map_free_vars=True):
            known = (plain, *write())
            if self._depends(known[2]):
                return known[1], known[2]
            self._known[key] = known
            while len(self._known) > self._most:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return known[1].with_attr("global_symbol", symbol), known[2]
