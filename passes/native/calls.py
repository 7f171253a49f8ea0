"""The solver's functions with arrays of numpy."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from heterocc.passes.native.library import solver

Numbers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

_Int, _Pointer, _Double = ctypes.c_int64, ctypes.c_void_p, ctypes.c_double


def min_cut(vertices: int, tails: Numbers, heads: Numbers, capacities: Numbers) -> npt.NDArray[np.bool_]:
    """For each vertex whether it is on the side of vertex 1 of the minimum cut between vertices 0 and 1.

    The side of vertex 1 is as small as possible. The sum of capacities must be below 2**62.
    """
    on_sink = np.zeros(vertices, np.uint8)
    columns = [np.ascontiguousarray(column, np.int64) for column in (tails, heads, capacities)]
    solver().heterocc_min_cut(_Int(vertices), _Int(len(tails)), *map(_address, columns), _address(on_sink))
    return on_sink.astype(bool)


def cheapest_turns(
    edges: tuple[Numbers, Numbers],
    labels: Numbers,
    weights: Floats,
    work: int,
    loads: Floats | None = None,
) -> tuple[Numbers, float, float]:
    """The turn of each node in the cheapest sequence of devices found, its cost, and a lower bound of this cost.

    `edges` are, for each node, where its entries of the second array begin, and the nodes that it reads from.
    With `loads` the cost is the most time of a device: its load and its turns. `work` limits the exact search.
    """
    labels = np.ascontiguousarray(labels, np.int64)
    turns = np.zeros(len(labels), np.int64)
    proven = _Double()
    cost = solver().heterocc_turns(
        _Int(len(labels)),
        _Int(len(weights)),
        *map(_address, edges),
        _address(labels),
        _address(weights),
        _Pointer() if loads is None else _address(loads),
        _Int(work),
        _address(turns),
        ctypes.byref(proven),
    )
    return turns, cost, proven.value


_PROBLEM_ARRAYS = tuple(
    "seconds producer first readers launch share nbytes start latency per_byte overhead first_source sources".split()
)
_MEMORY_ARRAYS = ("capacity", "own", "first_constant", "constants", "constant_bytes")


class _Problem(ctypes.Structure):
    _fields_ = (
        *((name, _Int) for name in ("nodes", "devices", "factors")),
        *((name, _Pointer) for name in _PROBLEM_ARRAYS),
    )


class _Memory(ctypes.Structure):
    _fields_ = (*((name, _Pointer) for name in _MEMORY_ARRAYS), ("count", _Int))


@dataclass(frozen=True)
class Factored:
    """A placement problem as the solver reads it; `struct Problem` of solver.h describes the fields."""

    seconds: Floats
    producer: Numbers
    first: Numbers
    readers: Numbers
    launch: Floats
    share: Floats
    nbytes: Floats
    start: Floats
    latency: Floats
    per_byte: Floats
    overhead: Floats
    first_source: Numbers
    sources: Numbers

    @cached_property
    def record(self) -> _Problem:
        """The structure with addresses of the arrays, which must be kept while it is used."""
        addresses = {name: _address(getattr(self, name)) for name in _PROBLEM_ARRAYS}
        return _Problem(len(self.seconds), len(self.overhead), len(self.producer), **addresses)

    def new_messages(self) -> Floats:
        """Messages before the first sweep."""
        return np.zeros((len(self.producer) + len(self.readers)) * len(self.overhead))

    def relax(self, messages: Floats, sweeps: int) -> tuple[float, Numbers]:
        """A lower bound of the cost after more sweeps, and labels that follow from the messages."""
        labels = np.zeros(len(self.seconds), np.int64)
        bound = solver().heterocc_relax(
            ctypes.byref(self.record), _Int(sweeps), _address(messages), _address(labels) if sweeps else _Pointer()
        )
        return bound, labels


@dataclass(frozen=True)
class Memory:
    """Limits on memory as the solver reads them; `struct Memory` of solver.h describes the fields."""

    capacity: Floats
    own: Floats
    first_constant: Numbers
    constants: Numbers
    constant_bytes: Floats


def enumerated(
    problem: Factored,
    relaxations: Sequence[tuple[Factored, Floats]],
    memory: Memory | None,
    best: float,
    work: int,
    *,
    slowest: bool = False,
    any_: bool = False,
) -> tuple[float, Numbers | None]:
    """A lower bound of the cost of all placements, and the best placement if one costs less than `best`.

    See heterocc_enumerate in solver.h. The bound is exact if the search ends within `work` steps.
    """
    labels, found = np.zeros(len(problem.seconds), np.int64), _Int()
    records = (_Problem * max(len(relaxations), 1))(*[relaxed.record for relaxed, _ in relaxations])
    messages = (_Pointer * max(len(relaxations), 1))(*[_address(array) for _, array in relaxations])
    limits = None
    if memory is not None:
        addresses = {name: _address(getattr(memory, name)) for name in _MEMORY_ARRAYS}
        limits = _Memory(**addresses, count=len(memory.constant_bytes))
    bound = solver().heterocc_enumerate(
        ctypes.byref(problem.record),
        records,
        messages,
        _Int(len(relaxations)),
        ctypes.byref(limits) if limits is not None else None,
        _Double(best),
        _Int(slowest),
        _Int(any_),
        _Int(work),
        _address(labels),
        ctypes.byref(found),
    )
    return bound, labels if found.value else None


def _address(array: npt.NDArray[np.generic]) -> ctypes.c_void_p:
    assert array.flags.c_contiguous and array.dtype.itemsize in (1, 8)
    return _Pointer(array.ctypes.data)
