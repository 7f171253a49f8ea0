"""Runs of candidate schedules on the device, with the same random inputs; results are compared with the first's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from heterocc.artifacts.foreign import pass_foreign
from heterocc.compiler.files.scratch import scratch_folder
from heterocc.compiler.lower.backend import Run
from heterocc.compiler.lower.gpu.packed import Layouts, Packed
from heterocc.compiler.lower.tuning.tensors import Array, Tensor, random_values
from heterocc.runtime.execute.executable import load_library, synchronizer
from heterocc.runtime.execute.faults import first_line
from heterocc.runtime.execute.memory import Allocations, aligned_bytes, device_tensor, host_tensor, to_host
from heterocc.runtime.execute.tvm_api import tvm_api
from heterocc.runtime.plan.schedule import Space

if TYPE_CHECKING:
    import tvm_ffi
    from tvm import tirx


Build = Callable[[Mapping[str, "tirx.PrimFunc"]], bytes]
"""Compiles scheduled kernels, given by name, to the bytes of a shared object. Raises exceptions of TVM and drivers."""

ROUNDING = {"float64": 1e-10, "float32": 1e-4, "float16": 2e-2}
"""The largest difference of two correct results relative to the largest value, due to the order of sums or Winograd's
filtering."""


@dataclass
class Bench:
    """A device, and the tensors of one kernel on it. The kernel writes the last `outputs` tensors."""

    space: Space
    build: Build
    tensors: Sequence[Tensor]
    outputs: int
    expected: list[Array] | None = None
    _given: dict[tuple[int, Layouts], Any] = field(default_factory=dict)
    _outputs: list[Any] = field(default_factory=list)
    _kept: list[Any] = field(default_factory=list)

    def runs(self, candidates: Sequence[Packed]) -> list[Run | str]:
        """For each candidate a function that runs it, or the reason why it is refused.

        The results of the first candidate that ever runs are the reference for the others.
        """
        try:
            functions: list[tvm_ffi.Function] = self._loaded([c.function for c in candidates])
        except Exception as error:  # drivers and TVM raise classes of their own
            pass_foreign(error)
            if len(candidates) == 1:
                return [f"it cannot be compiled: {first_line(error)}"]
            return [run for candidate in candidates for run in self.runs([candidate])]
        return [self._tried(f, c) for f, c in zip(functions, candidates, strict=True)]

    def wait(self) -> None:
        """Wait until the device is done."""
        wait = synchronizer(self.space)
        if wait is not None:
            wait()

    def _loaded(self, functions: Sequence[tirx.PrimFunc]) -> list[tvm_ffi.Function]:
        named = {f"candidate{i}": f.with_attr("global_symbol", f"candidate{i}") for i, f in enumerate(functions)}
        with scratch_folder("tune") as folder:
            path = folder / "candidates.so"
            path.write_bytes(self.build(named))
            module = load_library(str(path), "candidates", self.space).module
        self._kept.append(module)
        return [module[name] for name in named]

    def _tried(self, function: tvm_ffi.Function, candidate: Packed) -> Run | str:
        count = len(self.tensors) - self.outputs
        try:
            given = [self._value(i, candidate.layouts) for i in range(count)]
            wrote = self._wrote(count)
            function(*given, *wrote)
            self.wait()
            found = [to_host(t) for t in wrote]
        except Exception as error:
            pass_foreign(error)
            return f"it fails when run: {first_line(error)}"
        if self.expected is None:
            self.expected = found
        if not all(_same(f, e) for f, e in zip(found, self.expected, strict=True)):
            return "its result is wrong"
        return lambda: function(*given, *wrote)

    def _value(self, index: int, layouts: Layouts) -> Any:
        """The input tensor at `index`, in the candidate's layout."""
        own = tuple((i, layout) for i, layout in layouts if i == index)
        if (index, own) not in self._given:
            array = random_values(self.tensors[index], index)
            for _, layout in own:
                array = layout.apply(array)
            self._given[index, own] = self._placed(array)
        return self._given[index, own]

    def _wrote(self, first: int) -> list[Any]:
        """The output tensors, which candidates share, filled with NaN (integers with 1) to detect missing writes."""
        arrays = [np.full(t.shape, np.nan if t.dtype.startswith("float") else 1, t.dtype) for t in self.tensors[first:]]
        if not self._outputs:
            self._outputs = [self._placed(array) for array in arrays]
        for array, tensor in zip(arrays, self._outputs, strict=True):
            self._copy(array, tensor)
        return self._outputs

    def _placed(self, array: Array) -> Any:
        tensor = device_tensor(self.space, array.shape, array.dtype.name, Allocations())
        self._copy(array, tensor)
        return tensor

    def _copy(self, array: Array, tensor: Any) -> None:
        if array.nbytes:
            aligned = aligned_bytes(array.nbytes).view(array.dtype).reshape(array.shape)
            np.copyto(aligned, array)
            tvm_api().copy(host_tensor(aligned), tensor)
            self.wait()  # some copies are only enqueued, and the array is freed on return


def _same(found: Array, expected: Array) -> bool:
    """Whether two results differ by rounding at most."""
    bound = ROUNDING.get(expected.dtype.name)
    if bound is None:
        return bool(np.array_equal(found, expected))
    wide, other = expected.astype(np.float64), found.astype(np.float64)
    finite = np.isfinite(wide)
    if not np.array_equal(wide[~finite], other[~finite], equal_nan=True):
        return False
    largest = float(np.abs(wide[finite]).max(initial=0.0))
    return bool((np.abs(other[finite] - wide[finite]) <= bound * largest).all())
