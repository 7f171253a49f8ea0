"""The program of a partition: its nodes as straight code, divided where control flow or an unknown size requires it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from types import MappingProxyType

import onnx

from heterocc.artifacts.dtypes import container
from heterocc.compiler.importer.draft.draft import reads, to_tensor
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.named_inputs import needed_names, plain_names
from heterocc.compiler.importer.symbols.branches import SIDES
from heterocc.compiler.importer.symbols.derivation import values_inside
from heterocc.compiler.importer.symbols.repeats import body_of, is_control
from heterocc.compiler.lower.backend import PartitionJob
from heterocc.compiler.lower.converters import PREPARED, RESULTS, SIZES, own_converter
from heterocc.compiler.lower.converters.computed.numbers import PLACES, prepared_shape
from heterocc.compiler.lower.converters.computed.required import TAKEN, WANTED
from heterocc.compiler.lower.converters.registry import part_domain
from heterocc.compiler.lower.cpu.programs.checks import Checks, is_open, needed_shapes, run_requirements
from heterocc.compiler.lower.cpu.programs.containers import Containers
from heterocc.compiler.lower.cpu.programs.functions import OWN
from heterocc.compiler.lower.cpu.programs.limits import Limits
from heterocc.compiler.lower.cpu.programs.program_builder import Builder, copy_of
from heterocc.compiler.lower.cpu.programs.repeats import Loops
from heterocc.compiler.lower.cpu.programs.steps import (
    Choose,
    Code,
    Copy,
    Invoke,
    Measure,
    Program,
    Step,
    drop_idle,
    other_reads,
    set_values,
    walk,
)
from heterocc.compiler.operators.table import of_node
from heterocc.passes.graph import Graph, Node


def needs_program(job: PartitionJob) -> bool:
    """Whether a partition has branches, loops, sizes that it computes, sequences or optional values."""
    protos, symbols, values = job.model.protos, job.model.symbols, job.model.graph.values
    owners = set() if symbols is None else set(symbols.fresh.values())
    if touches_any(job) or any(is_control(protos[name]) or name in owners for name in job.nodes):
        return True
    opset = job.model.opsets.get("", 1)
    return symbols is not None and any(
        is_open(protos[n], values, symbols)
        or needed_shapes(protos[n], values, symbols, opset)
        or run_requirements(protos[n], job.model, values, symbols, opset)
        for n in (job.nodes if owners else ())
    )


def touches_any(job: PartitionJob) -> bool:
    """Whether a node of a partition reads or writes a sequence or an optional value, at its own level."""
    nodes, values = job.model.graph.node_by_name, job.model.graph.values
    return any(container(values[v].dtype) for n in job.nodes for v in (*nodes[n].inputs, *nodes[n].outputs))


def program_of(job: PartitionJob, *, writes: bool) -> Program:
    """The program of a partition; with `writes` it writes its outputs into tensors of the caller.

    Raises LoweringError that names a node that has no program.
    """
    return _Splitter(job).program(writes)


class _Splitter(Builder):
    """Adds the steps of a partition's nodes to its program."""

    def __init__(self, job: PartitionJob) -> None:
        super().__init__(job)
        self.containers = Containers(self)
        self.checks = Checks(self)

    def program(self, writes: bool) -> Program:
        """The program."""
        steps: list[Step] = []
        self.sequence([self.model.protos[n] for n in self.job.nodes], steps)
        self.close(steps)
        outputs = list(self.job.outputs)
        last = None
        writes = writes and not any(name in self.symbols.elements for name in outputs)
        if writes:
            last = Code()
        inputs = {*self.job.inputs, *self.arrays}
        ends: list[str] = []
        for name in outputs:
            self.owner = self.model.graph.producer.get(name) or self.job.nodes[-1]
            copied = name not in self.symbols.elements and (writes or name in inputs or name in ends)
            ends.append(self.add("Identity", [name], f"{name}.out", like=name) if copied else name)
        if last is not None:
            last.nodes = self.code.nodes
            self.code = Code()
        else:
            self.close(steps)
        Limits(self).add(steps)
        model = self._universe(steps)
        self._connect(model, [*steps, *([] if last is None else [last])], ends)
        drop_idle(steps)
        calls = any(isinstance(step, Invoke) and step.function.startswith(OWN) for step in walk(steps))
        return Program(model, self.job.inputs, steps, tuple(ends), last, self.owners, calls or touches_any(self.job))

    def sequence(self, nodes: Iterable[onnx.NodeProto], steps: list[Step]) -> None:
        """Add the steps of nodes, and leave the straight code at their end open."""
        outer, required = self.owner, self.required
        for node in nodes:
            self.owner = outer or node.name
            if is_control(node):
                self._control(node, steps)
            elif self.containers.handles(node):
                self.containers.add(node, steps)
            else:
                self.require_known(node, (*reads(node), *filter(None, node.output)))
                self.append(self._measured(self.checks.add(node, steps), steps))
        self.owner = outer
        if outer:  # of a branch or body, which some runs leave out
            self.required = required

    def _measured(self, node: onnx.NodeProto, steps: list[Step]) -> onnx.NodeProto:
        """Add the sizes that a node defines, computed before it runs; returns the node that needs them."""
        places: dict[str, tuple[int, int]] = {}
        for index, output in enumerate(node.output):
            value = self.values.get(output)
            for axis, dim in enumerate(() if value is None else value.shape or ()):
                if isinstance(dim, str) and self.symbols.fresh.get(dim) == node.name:
                    places.setdefault(dim, (index, axis))
        if not places:
            return node
        if own_converter(part_domain(SIZES, node.domain), node.op_type) is None:
            raise self.refuse(node, "the shape of its output depends on data")
        inputs = list(node.input)
        rule = prepared_shape(node.op_type)
        if rule is not None:
            shapes = [self.symbols.shape_of(self.values.get(name)) for name in inputs]
            shape = self.symbols.dims(rule(shapes))
            if shape is None or None in shape:
                raise self.refuse(node, "the rank or a size of its inputs is not known")
            table = self.add(
                node.op_type,
                inputs,
                f"{node.name}.prepared",
                value=("int64", shape),
                domain=part_domain(PREPARED, node.domain),
                attributes=node.attribute,
            )
            inputs = [table]
        sizes = self.add(
            node.op_type,
            inputs,
            f"{node.name}.sizes",
            value=("int64", (len(places),)),
            domain=part_domain(SIZES, node.domain),
            attributes=node.attribute,
            chosen={PLACES: [n for place in places.values() for n in place]},
        )
        self.measure(sizes, tuple(places), steps)
        known = copy_of(node, part_domain(RESULTS, node.domain))
        known.input[:] = inputs
        return known

    def _control(self, node: onnx.NodeProto, steps: list[Step]) -> None:
        if self.owner == node.name:  # the values inside are those of all levels
            inside = values_inside(node, self.values, self.arrays, self.opset, self.symbols)
            self.values.update(inside)
        for name in filter(None, node.output):
            shape = self.values[name].shape if name in self.values else None
            if name in self.symbols.elements:
                continue
            if shape is None or None in shape:
                raise self.refuse(node, f"the rank or a size of '{name}' is not known")
        if of_node(node).control == "branches":
            self._choose(node, steps)
        else:
            Loops(self).add(node, steps)

    def _take(self, node: onnx.NodeProto, side: str, steps: list[Step]) -> None:
        """Add the branch that every run takes; one that is only needed ends a run that would take the other."""
        if side != self.symbols.branches.decided.get(node.name):
            self.require(TAKEN, [self.held(node.input[0])], node.name, steps, {WANTED: int(side == SIDES[0])})
        self._ends(node, side, steps)

    def _ends(self, node: onnx.NodeProto, side: str, steps: list[Step]) -> list[tuple[str, str]]:
        """Add the steps of a branch; returns the node's results, each with its value."""
        body = body_of(node, side)
        self.enter(body)
        self.sequence(body.node, steps)
        ends = [(result, self.held(o.name)) for result, o in zip(node.output, body.output, strict=False) if result]
        self.close(steps)
        steps.append(Copy(ends))
        return ends

    def _choose(self, node: onnx.NodeProto, steps: list[Step]) -> None:
        side = self.symbols.branches.only(node.name)
        if side is not None:
            self._take(node, side, steps)
            return
        condition = self.held(node.input[0])
        self.close(steps)
        then, otherwise = (self._branch(node, name) for name in SIDES)
        steps.append(Choose(condition, then, otherwise))

    def _branch(self, node: onnx.NodeProto, side: str) -> list[Step]:
        """The steps of a branch, which end in the node's results."""
        steps: list[Step] = []
        ends = self._ends(node, side, steps)
        for result, value in ends:
            if value in self.symbols.elements and result in self.symbols.elements:
                continue
            if value not in self.values or self.values[value].dtype != self.values[result].dtype:
                raise self.refuse(node, f"its branches return different types for '{result}'")
            if len(self.values[value].shape or ()) != len(self.values[result].shape or ()):
                raise self.refuse(node, f"its branches return different ranks for '{result}'")
        return steps

    # ---- the model of all straight code, and what its parts read and write ------------------------------------------

    def _universe(self, steps: Sequence[Step]) -> ImportedModel:
        graph = self.model.graph
        nodes = []
        for proto in self.protos:
            op_type = f"{proto.domain}::{proto.op_type}" if proto.domain else proto.op_type
            origin = graph.node_by_name[self.owners[proto.name]].original
            nodes.append(Node(proto.name, op_type, reads(proto), tuple(filter(None, proto.output)), origin))
        inputs = dict.fromkeys((*self.job.inputs, *set_values(steps)))
        proto = onnx.ModelProto(ir_version=self.model.proto.ir_version, opset_import=self.model.proto.opset_import)
        proto.graph.node.extend(self.protos)
        own = {n: a for n, a in self.arrays.items() if n not in self.model.weights}
        proto.graph.initializer.extend(t for t in self.model.proto.graph.initializer if t.name not in own)
        proto.graph.initializer.extend(to_tensor(name, array) for name, array in own.items())
        constants = frozenset(self.arrays)
        return dataclasses.replace(
            self.model,
            graph=Graph(graph.name, tuple(nodes), self.values, tuple(inputs), (), constants),
            proto=proto,
            weights=MappingProxyType(self.arrays),
            symbols=self.symbols,
        )

    def _connect(self, model: ImportedModel, steps: Sequence[Step], ends: Sequence[str]) -> None:
        """Determine what each part reads, and what it writes for others."""
        graph = model.graph
        parts = [step for step in walk(steps) if isinstance(step, Code)]
        readers: dict[str, set[int]] = {}
        for name in (*ends, *other_reads(steps)):
            readers.setdefault(name, set()).add(-1)
        for index, part in enumerate(parts):
            for node in part.nodes:
                for name in graph.node_by_name[node].inputs:
                    readers.setdefault(name, set()).add(index)
        shown: dict[str, str] = {}
        for name in graph.inputs:
            for dim in plain_names(model, [name]):
                shown.setdefault(dim, name)
        for index, part in enumerate(parts):
            nodes = [graph.node_by_name[n] for n in part.nodes]
            written = {o for n in nodes for o in n.outputs}
            read = [i for n in nodes for i in n.inputs if i not in written and i not in graph.constants]
            inputs = list(dict.fromkeys(read))
            part.outputs = tuple(o for n in nodes for o in n.outputs if readers.get(o, set()) - {index})
            missing = needed_names(model, part.nodes, inputs) - plain_names(model, inputs)
            sizes: dict[Measure, None] = {}
            for name in sorted(missing):
                if name in self.measures:
                    sizes[self.measures[name]] = None
                elif name in shown and shown[name] not in inputs:
                    inputs.append(shown[name])
            part.inputs, part.sizes = tuple(inputs), tuple(sizes)
