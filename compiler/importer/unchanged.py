"""The import of a model that stays as it was given, for ONNX Runtime alone: nothing of it is inferred or believed.

ONNX Runtime runs models that the other import refuses, because it knows more of them than is true, or less than it
needs. Of such a model it needs only names, the types of values, and that no limit is exceeded.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from heterocc.artifacts.errors import InvalidGraphError
from heterocc.compiler.importer.assembly import assembled, rename
from heterocc.compiler.importer.draft.constants import constant_of
from heterocc.compiler.importer.draft.draft import Draft, keep, nodes_of, reads, value_table
from heterocc.compiler.importer.estimates.runs import Work, work_of
from heterocc.compiler.importer.estimates.work import Budget
from heterocc.compiler.importer.folding.loops import require_few_trips
from heterocc.compiler.importer.given import GivenModel
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.onnx_tools.filled import leaves_unwritten
from heterocc.compiler.importer.onnx_tools.propagation import require_few
from heterocc.compiler.importer.operators.functions import expand_local
from heterocc.compiler.importer.reading.read import read_model
from heterocc.compiler.importer.reading.source import ModelSource
from heterocc.compiler.importer.shapes.named import dims_of, is_symbol
from heterocc.compiler.importer.shapes.propose import Proposals, Samples
from heterocc.compiler.importer.shapes.shapes import (
    dynamic_inputs,
    forget_inferred,
    set_input_shapes,
    values_of_runtime,
)
from heterocc.compiler.importer.shapes.trials import Shapes
from heterocc.passes.graph import Value


def import_unchanged(
    source: ModelSource,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    replacing: bool = False,
) -> ImportedModel:
    """Read a model that ONNX Runtime is to run as it was given; parameters are as for `import_model`.

    Sizes of inputs are those that the model states, all others are known only at the run. The result is for ONNX
    Runtime, which has the last word on whether the model is valid.

    Raises an InputError (HC1xx) for a model that cannot be read, and for one that exceeds a limit.
    """
    where = source.path.name
    draft, digest = read_model(source, replacing=replacing, checked=False)
    given = GivenModel.of(draft)
    draft.budget = Budget.for_weights(draft.weights)
    set_input_shapes(draft, shapes or {}, where, dims)
    given.take_inputs(draft)
    proposals = Proposals(draft) if dynamic_inputs(draft) else None
    names, namer = rename(draft)
    expand_local(draft, namer, where)
    _take_constants(draft)
    forget_inferred(draft.graph)
    unsafe = next(filter(leaves_unwritten, nodes_of(draft.graph.node)), None)
    if unsafe is not None:
        raise InvalidGraphError(f"ONNX Runtime's own {unsafe.op_type} may leave results unwritten", where=where)
    require_few(draft.graph, where, draft.weights)
    table = _typed(draft, where)
    require_few_trips(draft.graph, draft.weights, table, draft.origins, where)
    stem = os.fsencode(source.path.stem).decode("utf-8", "replace")
    model = assembled(draft, stem, digest, given.renamed(MappingProxyType(names)), table)
    model = replace(model, dimensions=_own_names(given))
    return model if proposals is None else replace(model, samples=Samples(partial(_samples, model, proposals)))


def _samples(model: ImportedModel, proposals: Proposals) -> Mapping[str, tuple[int, ...]]:
    """Shapes of the inputs with which ONNX Runtime runs the model in little time and memory; empty if none are found.

    Of a run whose sizes are not known before only the trial itself tells what it takes.
    """

    def work(_shapes: Shapes) -> Work:
        return work_of(model.graph, model.proto.graph.node, 1)

    return {name: tuple(shape) for name, shape in (proposals.first(work) or {}).items()}


def _take_constants(draft: Draft) -> None:
    """Make nodes that are constants weights, so that limits know them."""
    found = {n.output[0]: constant_of(n) for n in draft.graph.node if len(n.attribute) == 1 and len(n.output) == 1}
    arrays = {name: array for name, array in found.items() if array is not None}
    draft.weights.update(arrays)
    keep(draft.graph.node, lambda node: node.output[0] not in arrays if len(node.output) == 1 else True)


def _typed(draft: Draft, where: str) -> dict[str, Value]:
    """The values with the types that the model states, or ONNX Runtime infers.

    Sizes are those of inputs and of what constants alone determine.
    """
    table = value_table(draft.graph, draft.weights)
    constant = set(draft.weights)
    types = values_of_runtime(draft)
    for node in draft.graph.node:
        if constant.issuperset(reads(node)):
            constant.update(node.output)
    for value in types:
        unknown = None if value.shape is None else (None,) * len(value.shape)
        table[value.name] = value if value.name in constant else replace(value, shape=unknown)
    for output in draft.graph.output:
        if output.name not in table or table[output.name].dtype == "undefined":
            raise InvalidGraphError(f"the type of output '{output.name}' is not known", where=where)
    return table


def _own_names(given: GivenModel) -> Mapping[str, tuple[str | None, ...]]:
    """The names of the inputs' dimensions that occur once: ONNX Runtime compares no sizes of those with one name."""
    ends = given.proto.graph.input
    found = {i.name: [d.dim_param if is_symbol(d) else None for d in dims_of(i)] for i in ends}
    count = Counter(name for dims in found.values() for name in dims)
    own = {end: tuple(name if count[name] == 1 else None for name in dims) for end, dims in found.items()}
    return MappingProxyType(own)
