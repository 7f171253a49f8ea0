"""The kernel of one direction of an LSTM, GRU or RNN: a loop over time whose steps compute products and cell together.

A step takes groups of the state's columns in turn, in parallel if it is long enough: the sums of all gates of a group
are computed in registers, for tiles of rows of the batch, then the cells of the group from them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from tvm import tirx
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.converters.recurrent.layer import Layer
from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.generate.recurrent.arguments import LayerArguments, array
from heterocc.compiler.lower.cpu.generate.recurrent.cells import Cells, TimeStep
from heterocc.compiler.lower.cpu.generate.recurrent.groups import Phase
from heterocc.compiler.lower.cpu.generate.recurrent.levels import Levels
from heterocc.compiler.lower.cpu.generate.recurrent.sums import Source, Sums
from heterocc.compiler.lower.cpu.sizes import Size


def write_layer(layer: Layer, arguments: Sequence[tirx.Buffer], isa: Isa) -> None:
    """Write the body of the kernel that a converter requests, with the arguments of `Layer.arguments`."""
    given = LayerArguments(layer, arguments)
    batch, weights = given.batch, given.weights
    # a step reads the state that the one before wrote, while it writes its own
    state = array(layer.dtype, 2, batch, layer.padded)
    rows = emit.flat(state)
    _begin(given, layer, state)
    levels = Levels(layer, batch, isa) if layer.narrow else None
    phases = [Phase.of(layer, gates, isa) for gates in layer.phases]
    kept = array(layer.dtype, batch, layer.hidden) if len(phases) > 1 else None
    updates = array(layer.dtype, batch, layer.hidden) if len(phases) > 1 else None
    widest = max(len(phase.gates) for phase in phases)
    memory = emit.flat(array("int32" if layer.narrow else layer.dtype, batch, widest * layer.padded))
    count = _steps(given)
    with build.serial(index(0), count) as step:
        now = emit.bound(tirx.floormod(step, index(2)))
        start = emit.bound(now * index(batch * layer.padded))
        if levels is not None:
            levels.write(rows, start)  # zeros have levels, too
        for number, phase in enumerate(phases):
            sums = Sums(phase, memory, batch)
            source = Source(rows, start, layer.padded)
            if number and kept is not None:
                source = Source(emit.flat(kept), index(0), layer.hidden)
            if levels is not None:
                source = Source(levels.bytes, index(0), layer.padded)
            cells = Cells(given, layer, sums, levels, TimeStep(step, now, state, updates, kept))
            write = cells.reset if number + 1 < len(phases) else cells.write
            phase.each_group(batch, partial(sums.write, source, weights, isa), write)
    end = emit.bound(tirx.floormod(count, index(2)))
    _copy(batch, layer.hidden, lambda r, c: state[end, r, c], given.last[0])


def _steps(given: LayerArguments) -> tirx.Expr:
    """The steps of the longest sequence; outputs of those behind it are zeros."""
    steps = index(given.steps)
    if given.lengths is None:
        return steps
    longest = array("int64", 1)
    build.buffer_store(longest, index(0), [index(0)])
    with emit.loop(given.batch) as row:
        length = tirx.min(given.lengths[row].astype("int64"), steps)
        build.buffer_store(longest, tirx.max(longest[index(0)], length), [index(0)])
    count = build.bind(longest[index(0)])
    each = index(given.batch) * given.outputs.shape[2]
    rest = emit.flat(given.outputs)
    with build.serial(index(0), (steps - count) * each) as place:
        build.buffer_store(rest, tirx.const(0, str(given.outputs.dtype)), [count * each + place])
    return count


def _begin(given: LayerArguments, layer: Layer, state: tirx.Buffer) -> None:
    """The states before the first step; columns of `state` behind the last one are zeros at all steps.

    A sequence without steps ends with zeros, as in ONNX Runtime, whatever it begins with.
    """
    zero = tirx.const(0, layer.dtype)

    def first(place: int, row: tirx.Expr, column: tirx.Expr) -> tirx.Expr:
        if not given.begin:
            return zero
        state = given.begin[place][row, column]
        if given.lengths is None:
            return state if layer.steps else tirx.Select(index(given.steps) > index(0), state, zero)
        return tirx.Select(given.lengths[row] > tirx.const(0, "int32"), state, zero)

    for place, target in enumerate(given.last[1:], 1):
        _copy(given.batch, layer.hidden, partial(first, place), target)
    with emit.loop(given.batch) as row:
        with emit.loop(layer.hidden) as column:
            build.buffer_store(state, first(0, row, column), [index(0), row, column])
        for half in range(2):
            with emit.loop(layer.padded - layer.hidden) as column:
                build.buffer_store(state, zero, [index(half), row, index(layer.hidden) + column])


def _copy(rows: Size, columns: Size, source: Callable[[tirx.Expr, tirx.Expr], tirx.Expr], target: tirx.Buffer) -> None:
    with emit.loop(rows) as row, emit.loop(columns) as column:
        build.buffer_store(target, source(row, column), [row, column])
