"""Inputs of partitions from which code learns the sizes of named dimensions."""

from __future__ import annotations

from collections.abc import Iterable

from heterocc.compiler.importer.model import ImportedModel


def with_names(model: ImportedModel, nodes: Iterable[str], inputs: tuple[str, ...]) -> tuple[str, ...]:
    """The inputs of a partition, and graph inputs for names of dimensions that the partition's inputs do not have.

    Code learns the size of a named dimension from an input that has it.
    """
    graph = model.graph
    missing = needed_names(model, nodes, inputs) - plain_names(model, inputs)
    added = list(inputs)
    for name in graph.inputs:
        here = missing & plain_names(model, (name,))
        if here and name not in added:
            added.append(name)
            missing -= here
    return tuple(added)


def hidden_names(model: ImportedModel, nodes: Iterable[str], inputs: Iterable[str]) -> tuple[str, ...]:
    """The sizes known only at run time that no input of a partition has as a dimension, though the nodes need them."""
    if model.symbols is None:
        return ()
    inputs = tuple(inputs)
    missing = needed_names(model, nodes, inputs) - plain_names(model, inputs)
    own = {n for n, owner in model.symbols.fresh.items() if owner in set(nodes)}
    return tuple(sorted(missing & model.symbols.fresh.keys() - own))


def needed_names(model: ImportedModel, nodes: Iterable[str], inputs: Iterable[str]) -> set[str]:
    """The names on which the sizes of the nodes' values, and the integers that follow from sizes, depend."""
    symbols, graph = model.symbols, model.graph
    if symbols is None:
        return set()
    touched = {v for name in nodes for v in (*graph.node_by_name[name].inputs, *graph.node_by_name[name].outputs)}
    needed: set[str] = set()
    for value in (*inputs, *sorted(touched)):
        shape = symbols.shape_of(graph.values[value]) or ()
        contents = symbols.contents.get(value)
        for size in (*shape, *(() if contents is None else contents.flat)):
            needed |= frozenset() if size is None else size.names
    return needed


def plain_names(model: ImportedModel, values: Iterable[str]) -> set[str]:
    """The named sizes that are dimensions of one of the values."""
    symbols = model.symbols
    if symbols is None:
        return set()
    names = {*symbols.names, *symbols.fresh}
    return {d for v in values for d in model.graph.values[v].shape or () if isinstance(d, str) and d in names}
