"""Runs of CPU code for dynamic sizes from a dictionary of arrays to a dictionary of arrays, as in `cpu_runner`."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from heterocc.artifacts.manifest import Range
from heterocc.runtime import ffi as tvm_ffi
from heterocc.runtime.native.cpu_runner import Run, is_usable, library

_NUMBER, _SYMBOL = 0, 1
_OPERATORS = {"+": 2, "*": 3, "//": 4, "min": 5, "max": 6}
_RELATIONS = {"equal": 7, "at_least": 8, "multiple": 9, "broadcast": 10}


class SizedValue(NamedTuple):
    """An input or output of a run, under its name for callers.

    `dtype` is that of callers' arrays, `carried` the one of as many bytes with which code has it.
    """

    name: str
    dtype: np.dtype[Any]
    carried: np.dtype[Any]


class DimensionSizes(NamedTuple):
    """The sizes of an input's dimension. Those of one `symbol` have the same size; it is None for one of its own."""

    range: Range
    symbol: int | None


class SizeCondition(NamedTuple):
    """A relation of two sizes in postfix notation, as in the manifest, with the symbols of dimensions by name."""

    left: Sequence[int | str]
    relation: str
    right: Sequence[int | str]
    symbols: Mapping[str, int]


class SizedInput(NamedTuple):
    """An input, its dimensions, and what code requires of its address, in bytes."""

    value: SizedValue
    dimensions: Sequence[DimensionSizes]
    alignment: int


def new_sized_runner(
    inputs: Sequence[SizedInput],
    outputs: Sequence[tuple[SizedValue, int]],
    conditions: Sequence[SizeCondition],
    function: Any,
    weights: Any,
    lengthened: Iterable[int] = (),
) -> Run | None:
    """A function from a feed to new results, or None if this interpreter or this installation has none.

    It calls `function(*inputs, weights)`, a function of tvm_ffi that returns a list of tensors; `outputs` have their
    places in it. Given anything but a dictionary of plain arrays for exactly these inputs, of sizes that they may have
    and that meet the conditions, or if the call fails, it returns None: the caller then runs in Python, which converts
    inputs and says what is wrong. Inputs numbered in `lengthened`, to which code appends rows, may also be the first
    rows of memory with room for more, as results then are. The function is for one thread at a time.
    """
    if not is_usable():
        return None
    plugin, arrays = _library()
    given = (_Input * len(inputs))(*map(_Input.of, inputs))
    wanted = (_Output * len(outputs))(*(_Output(*_type(value), place) for value, place in outputs))
    listed = [token for condition in conditions for token in _tokens(condition)]
    tokens = (_Token * len(listed))(*(_Token(*token) for token in listed))
    appended = sorted(lengthened)
    numbers = (ctypes.c_int64 * len(appended))(*appended)
    found: Run = plugin.heterocc_cpu_sized_runner(
        arrays,
        given,
        len(given),
        wanted,
        len(wanted),
        tokens,
        len(tokens),
        function.__chandle__(),
        weights.__chandle__(),
        numbers,
        len(numbers),
    )
    return found


def _tokens(condition: SizeCondition) -> Iterator[tuple[int, int]]:
    for token in (*condition.left, *condition.right):
        if isinstance(token, int):
            yield _NUMBER, token
        elif token in _OPERATORS:
            yield _OPERATORS[token], 0
        else:
            yield _SYMBOL, condition.symbols[token[1:]]
    yield _RELATIONS[condition.relation], 0


class _DataType(ctypes.Structure):
    """DLPack's DLDataType."""

    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Dimension(ctypes.Structure):
    """See fast_sizes.h."""

    _fields_ = tuple((name, ctypes.c_int64) for name in ("min", "max", "step", "symbol"))

    @classmethod
    def of(cls, sizes: DimensionSizes) -> _Dimension:
        """The dimension as the plug-in takes it."""
        most, symbol = (-1 if number is None else number for number in (sizes.range.max, sizes.symbol))
        return cls(sizes.range.min, most, sizes.range.step, symbol)


class _Input(ctypes.Structure):
    """See fast_sizes.h."""

    _fields_ = (
        ("name", ctypes.py_object),
        ("dtype", ctypes.py_object),
        ("type", _DataType),
        ("rank", ctypes.c_int64),
        ("dimensions", ctypes.POINTER(_Dimension)),
        ("alignment", ctypes.c_int64),
    )

    @classmethod
    def of(cls, given: SizedInput) -> _Input:
        """The input as the plug-in takes it."""
        dimensions = (_Dimension * len(given.dimensions))(*map(_Dimension.of, given.dimensions))
        return cls(*_type(given.value), len(dimensions), dimensions, given.alignment)


class _Token(ctypes.Structure):
    """See size_conditions.h."""

    _fields_ = (("kind", ctypes.c_int64), ("value", ctypes.c_int64))


class _Output(ctypes.Structure):
    """See fast_sizes.h."""

    _fields_ = (
        ("name", ctypes.py_object),
        ("dtype", ctypes.py_object),
        ("type", _DataType),
        ("place", ctypes.c_int64),
    )


def _type(value: SizedValue) -> tuple[str, np.dtype[Any], _DataType]:
    found = tvm_ffi.dtype(value.carried.name)
    return value.name, value.dtype, _DataType(found.type_code, found.bits, found.lanes)


@cache
def _library() -> tuple[ctypes.PyDLL, int]:
    """As `cpu_runner.library`, with the types of the function that is called here."""
    plugin, arrays = library()
    plugin.heterocc_cpu_sized_runner.restype = ctypes.py_object
    plugin.heterocc_cpu_sized_runner.argtypes = [
        ctypes.c_void_p,
        ctypes.POINTER(_Input),
        ctypes.c_int64,
        ctypes.POINTER(_Output),
        ctypes.c_int64,
        ctypes.POINTER(_Token),
        ctypes.c_int64,
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.POINTER(ctypes.c_int64),
        ctypes.c_int64,
    ]
    return plugin, arrays
