"""Generation of reductions over a short last dimension: pairs of real and imaginary parts, coordinates, channels.

Vectors are of outputs. The terms of such a vector lie beside each other in memory: they are loaded as a whole, and
shuffled into a vector for each term.
"""

from __future__ import annotations

from functools import partial

from tvm import tirx
from tvm.ir import TensorLoad
from tvm.script.ir_builder import tirx as build

from heterocc.compiler.lower.cpu.generate import emit
from heterocc.compiler.lower.cpu.generate.emit import Arguments
from heterocc.compiler.lower.cpu.generate.epilogue import can_store
from heterocc.compiler.lower.cpu.generate.isa import Isa
from heterocc.compiler.lower.cpu.generate.panels import Panels
from heterocc.compiler.lower.cpu.generate.places import Axis, Place, at, index, offset
from heterocc.compiler.lower.cpu.generate.read import Fold
from heterocc.compiler.lower.cpu.generate.reductions.reductions import Reduction, Writer, at_lane, from_arguments
from heterocc.compiler.lower.cpu.sizes import is_number
from heterocc.compiler.lower.kernels.expressions import loads

MOST = 4
"""The most terms: more are combined in a vector of terms with fewer shuffles."""


def generate_few_terms(kernel: Fold, isa: Isa) -> tuple[tirx.PrimFunc, tuple[Panels, ...]] | None:
    """The kernel written with vectors of outputs; None if its terms are not a few neighbours in memory."""
    reduction = _find(kernel, isa.lanes)
    if reduction is None or not can_store(kernel):
        return None
    return emit.written(kernel, {}, _FewTerms(kernel, reduction, isa).write), ()


def _find(kernel: Fold, lanes: int) -> Reduction | None:
    terms = [n for n in kernel.terms if kernel.extents[n] > 1]
    places = [n for n in kernel.places if kernel.extents[n] > 1]
    value = from_arguments(kernel)
    if value is None or len(terms) != 1 or not places:
        return None
    count = kernel.extents[terms[0]]
    forms = [offset(load.indices, load.source, kernel.loops) for load in loads(value)]
    every = [f for f in forms if f is not None]
    if not is_number(count) or count > MOST or len(every) < len(forms):
        return None
    row, last = kernel.last_run(places, every), kernel.axis(terms)
    steps = {(row.step(f), last.step(f)) for f in every}
    if (count, 1) not in steps or not steps <= {(count, 1), (1, 0), (0, 0)} or lanes > row.length:
        return None
    return Reduction(kernel.axis([n for n in places if n not in row.loops]), tuple(terms), row, True, value)


class _FewTerms(Writer):
    """A generator with a vector of outputs at a time; the last one of a row overlaps the one before."""

    def write(self, arguments: Arguments) -> None:
        """Write the kernel's body."""
        row, lanes = self.reduction.row, self.lanes
        vectors = -(-row.length // lanes)
        with emit.loop(self.reduction.outer.length * vectors, self.kind) as task:
            outer = self.outer_place(tirx.floordiv(task, index(vectors)))
            start = tirx.min(tirx.floormod(task, index(vectors)) * index(lanes), index(row.length - lanes))
            start = emit.bound(start)
            total = emit.registers(1, lanes)
            (number,) = self.reduction.terms
            last = Axis((number,), (self.kernel.extents[number],))
            separated = self._separated(arguments, [*outer, (row, start), (last, index(0))])
            for term in range(last.length):
                known = [(load, registers[term]) for load, registers in separated]
                with emit.loop(lanes, "vectorized") as lane:
                    place = [*outer, (last, index(term)), (row, start + lane)]
                    value = self.value(arguments, place, [(load, register[lane]) for load, register in known])
                    build.buffer_store(total, self.kernel.combine(total[lane], value) if term else value, [lane])
            self.store(arguments, total, partial(at_lane, outer, row, start), lanes)

    def _separated(self, arguments: Arguments, place: Place) -> list[tuple[TensorLoad, list[tirx.Buffer]]]:
        """The loads of terms, each with a vector for each term."""
        reads = []
        for load in loads(self.reduction.value):
            form = offset(load.indices, load.source, self.kernel.loops)
            where = None if form is None else at(form, place)
            assert form is not None and where is not None
            count = self.reduction.row.step(form)
            if count in (0, 1):
                continue
            flat = arguments.flat(load.source)
            together = [
                build.bind(emit.vector(flat, where + index(n * self.lanes), self.lanes)) for n in range(count or 0)
            ]
            registers = []
            for term in range(len(together)):
                order = [lane * len(together) + term for lane in range(self.lanes)]
                registers.append(emit.registers(1, self.lanes))
                emit.put(registers[-1], tirx.Shuffle(together, order), index(0), self.lanes)
            reads.append((load, registers))
        return reads
