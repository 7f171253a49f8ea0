"""Import of an ONNX file: the normalised model, and the graph that passes work on."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

from heterocc.artifacts.dtypes import container
from heterocc.artifacts.errors import DynamicShapeError, HeteroccError, InputError, InvalidGraphError
from heterocc.compiler.api.keywords import checked_keywords
from heterocc.compiler.importer.assembly import assembled, rename, rename_known
from heterocc.compiler.importer.caches import narrow_caches
from heterocc.compiler.importer.compressed import compress_weights
from heterocc.compiler.importer.draft.draft import (
    Draft,
    bodies,
    captured_by,
    graphs_of,
    value_table,
)
from heterocc.compiler.importer.estimates.runs import Work, work_of
from heterocc.compiler.importer.estimates.work import Budget
from heterocc.compiler.importer.folding.conv_fusion import fuse
from heterocc.compiler.importer.folding.dequantised import write_dequantised
from heterocc.compiler.importer.folding.empty_inputs import know_empty_inputs
from heterocc.compiler.importer.folding.loops import require_few_trips
from heterocc.compiler.importer.folding.pad_fusion import fuse_pads
from heterocc.compiler.importer.folding.ranges import write_ranges
from heterocc.compiler.importer.folding.simplify import simplify
from heterocc.compiler.importer.folding.stacked import reduce_stacked
from heterocc.compiler.importer.folding.whole_slices import state_backward_ends
from heterocc.compiler.importer.given import GivenModel
from heterocc.compiler.importer.model import ImportedModel, open_shapes
from heterocc.compiler.importer.onnx_tools.complaint import complaint
from heterocc.compiler.importer.onnx_tools.onnx_runtime import is_accepted, objection
from heterocc.compiler.importer.onnx_tools.propagation import require_few
from heterocc.compiler.importer.onnx_tools.representatives import representatives
from heterocc.compiler.importer.operators.classes import name_classes
from heterocc.compiler.importer.operators.classes import note as classes_note
from heterocc.compiler.importer.operators.functions import expand_local, expand_standard
from heterocc.compiler.importer.operators.opset import lower_opset, settle_opset
from heterocc.compiler.importer.operators.renamed import rename_operators
from heterocc.compiler.importer.reading.read import read_model
from heterocc.compiler.importer.reading.source import AnyModel, ModelSource, as_source
from heterocc.compiler.importer.repeating.counted import write_scans
from heterocc.compiler.importer.repeating.hoisted import hoist_products
from heterocc.compiler.importer.repeating.kept import take_out_kept
from heterocc.compiler.importer.sequences.opening import open_sequences
from heterocc.compiler.importer.shapes.assumed import assume_sizes, disagreements
from heterocc.compiler.importer.shapes.named import dims_of, is_symbol
from heterocc.compiler.importer.shapes.propose import Proposals, Samples
from heterocc.compiler.importer.shapes.shape_rules import empty_at_fault
from heterocc.compiler.importer.shapes.shapes import (
    dims_text,
    dynamic_inputs,
    infer,
    known_values,
    name_dimensions,
    set_input_shapes,
    still_dynamic,
)
from heterocc.compiler.importer.shapes.trials import Shapes
from heterocc.compiler.importer.shapes.unified import unify_names
from heterocc.compiler.importer.steps import Rewriting, Step
from heterocc.compiler.importer.symbols.derivation import rule_failure
from heterocc.compiler.importer.symbols.symbols import Symbols
from heterocc.compiler.operators.table import of_node
from heterocc.passes.graph import Value


@checked_keywords
def import_model(
    model: AnyModel | ModelSource,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    dims: Mapping[str, int] | None = None,
    base_dir: str | Path | None = None,
    keep_dims: bool = False,
    only_numbers: bool = False,
    assume: bool = False,
    replacing: bool = False,
    exact: bool = False,
) -> ImportedModel:
    """Read, check and normalise an ONNX model: a path, a ModelProto, or the bytes of one.

    `shapes` fixes dynamic input shapes by the input's name in the model, `dims` dimensions by their names, wherever the
    inputs have them. With `keep_dims` others stay dynamic: shapes have their names, and expressions of these.
    `base_dir` is the folder of the external data of a model without a file; without it such data is refused.
    With `only_numbers`, for devices that have no others, outputs that are names of classes, or maps from these, become
    numbers, with the names in the result's `classes`, and settings of a larger model that are inputs, too, may stay
    constant. With `assume` sizes of dynamic dimensions with which nodes cannot run are excluded, such as those that are
    not multiples of 32, so that shapes are known for all others. With `replacing` every initializer that a run may
    replace is an input. With `exact` nothing at all is assumed of sizes, not even that they are 1 or more.

    Raises an InputError (HC1xx) for any error in the model, its external data or the shapes.
    """
    source = as_source(model, base_dir)
    try:
        return _import(
            source,
            shapes or {},
            dims or {},
            keep_dims=keep_dims,
            only_numbers=only_numbers,
            assume=assume,
            replacing=replacing,
            exact=exact,
        )
    except MemoryError as error:
        raise InputError(
            "the model needs more memory than is available",
            where=source.path.name,
            hint="run it on a machine with more free memory",
        ) from error


def _import(
    source: ModelSource,
    shapes: Mapping[str, Sequence[int]],
    dims: Mapping[str, int],
    *,
    keep_dims: bool,
    only_numbers: bool,
    assume: bool,
    replacing: bool,
    exact: bool,
) -> ImportedModel:
    path = source.path
    draft, digest = read_model(source, beside_last_resort=not only_numbers, replacing=replacing)
    if source.weights is not None:
        digest = compress_weights(draft, source.weights, digest)
    if source.caches is not None:
        digest = narrow_caches(draft, source.caches, digest)
    given = GivenModel.of(draft)
    classes = name_classes(draft) if only_numbers else {}
    if classes:
        draft.notes.append(classes_note(classes))
    draft.budget = Budget.for_weights(draft.weights)
    where = path.name
    ends = (*draft.graph.input, *draft.graph.output)
    names = {i.name: tuple(d.dim_param if is_symbol(d) else None for d in dims_of(i)) for i in ends}
    set_input_shapes(draft, shapes, where, dims)
    proposals = Proposals(draft) if dynamic_inputs(draft) else None
    unfixed = [] if keep_dims else [copy.deepcopy(i) for i in dynamic_inputs(draft)]
    name_dimensions(draft)
    given.take_inputs(draft)
    # A name that is not UTF-8 has lone surrogates in Python, which cannot be written to text files.
    stem = os.fsencode(path.stem).decode("utf-8", "replace")
    try:
        model = _normalised(draft, stem, digest, where, given, assume=assume, exact=exact)
        if proposals is not None:
            proposals.fix(_fixed(model, names))
            proposals.expect(_expected(model, names))
            model = replace(model, samples=Samples(partial(_samples, model, proposals)))
        if unfixed:
            raise still_dynamic(unfixed, model.samples, where)
        return replace(
            model,
            dimensions=MappingProxyType(names),
            classes=MappingProxyType(classes),
            compressed=source.weights,
            caches=source.caches,
        )
    except HeteroccError as error:
        if unfixed and not isinstance(error, DynamicShapeError):
            raise still_dynamic(unfixed, {}, where) from error
        empty = empty_at_fault(shapes, error, dims) if isinstance(error, InvalidGraphError) else None
        if empty is None:
            raise
        raise empty from error


def _fixed(model: ImportedModel, names: Mapping[str, Sequence[str | None]]) -> dict[str, int]:
    """The sizes of the inputs' named dimensions that have become numbers; `names` are those of inputs and outputs."""
    return {dim: size for dim, size in _dims_of_inputs(model, names) if isinstance(size, int)}


def _expected(model: ImportedModel, names: Mapping[str, Sequence[str | None]]) -> dict[str, int]:
    """Sizes of the inputs' dimensions with which sizes of several are what nodes need: the sides of a square image."""
    found: dict[str, int] = {}
    for pin in () if model.symbols is None else model.symbols.pins.values():
        side = pin.side() if pin.is_joint else None
        if side is not None:
            found.update({dim: side for dim, name in _dims_of_inputs(model, names) if name in pin.size.names})
    return found


def _dims_of_inputs(
    model: ImportedModel, names: Mapping[str, Sequence[str | None]]
) -> Iterator[tuple[str, int | str | None]]:
    """The named dimensions of the inputs with what has become of them."""
    for name in model.graph.inputs:
        source, shape = model.sources.get(name, name), model.input_shape(name) or ()
        pairs = zip(names.get(source, ()), shape, strict=False)
        yield from ((dim, size) for dim, size in pairs if dim is not None)


def _samples(model: ImportedModel, proposals: Proposals) -> Mapping[str, tuple[int, ...]]:
    """Shapes of the inputs with which ONNX Runtime runs the model in little time and memory; empty if none are found.

    Sizes are the nearest that the model's nodes allow.
    """

    def work(shapes: Shapes) -> Work:
        sampled = replace(model, samples=model.allowed({name: tuple(shape) for name, shape in shapes.items()}))
        unknown = max((size for shape in sampled.samples.values() for size in shape), default=1)
        typical = sampled.typical
        return work_of(typical.graph, typical.proto.graph.node, unknown)

    return MappingProxyType(model.allowed({n: tuple(shape) for n, shape in (proposals.first(work) or {}).items()}))


_LOOPS = (
    Step("write-scans", lambda w: write_scans(w.draft, w.values, w.namer), lambda o: o.control == "loop"),
    Step("hoist-products", lambda w: hoist_products(w.draft, w.values, w.namer), lambda o: o.control == "scan"),
)
REWRITES = (
    Step("expand-standard", lambda w: expand_standard(w.draft, w.namer, w.where), lambda o: o.expanded or o.stricter),
    Step(
        "open-sequences",
        lambda w: open_sequences(w.draft, w.values, w.namer),
        lambda o: o.opens is not None and not o.copies,
    ),
    Step("write-ranges", lambda w: write_ranges(w.draft, w.values, w.namer), lambda o: o.fills),
    Step("fuse-convolutions", lambda w: fuse(w.draft), lambda o: o.window == "product"),
    Step("fuse-pads", lambda w: fuse_pads(w.draft), lambda o: o.window),
    Step("reduce-stacked", lambda w: reduce_stacked(w.draft, w.values, w.namer), lambda o: o.reduces is not None),
    Step("take-out-kept", lambda w: take_out_kept(w.draft, w.values, w.namer), lambda o: o.control in ("loop", "scan")),
    *_LOOPS,
)
"""The steps that write nodes differently. A new one is added here."""

_UNIFY = Step("unify-names", lambda w: unify_names(w.draft, w.values))
_UNIFY_MORE = Step("unify-names", lambda w: unify_names(w.draft, w.values, assume=True))
_ASSUME = Step("assume-sizes", lambda w: assume_sizes(w.draft, w.values, w.namer))


def _normalised(
    draft: Draft, stem: str, digest: Callable[[], str], where: str, given: GivenModel, *, assume: bool, exact: bool
) -> ImportedModel:
    names, namer = rename(draft)
    expand_local(draft, namer, where)
    settle_opset(draft, where)
    rename_operators(draft, namer)
    know_empty_inputs(draft, namer)
    state_backward_ends(draft, namer)
    write_dequantised(draft)
    work = Rewriting(draft, namer, where)
    work.simplify()
    work.settle(REWRITES)
    work.settle([_UNIFY_MORE if assume else _UNIFY])
    settled = work.values
    if assume:
        work.settle([_ASSUME])
    symbols = None if exact else draft.symbols
    if symbols is not None and (symbols.fresh or (assume and disagreements(draft, work.values))):
        work.values = _with_filled_dimensions(draft, work.values, where)
        draft.assumes |= not symbols.fresh or (draft.symbols is not None and bool(draft.symbols.floors))
    if assume and work.values is not settled:
        # What an operator needs to be equal may be known only now, as it depends on the assumptions.
        work.settle([_UNIFY_MORE, _ASSUME])
    if draft.symbols is None and _has_unknown_sizes(draft, work.values):
        draft.symbols = Symbols(())
        work.simplify()
        work.settle(_LOOPS)
        if not _has_unknown_sizes(draft, work.values):
            draft.symbols = None
    lower_opset(draft)
    return replace(_finish(draft, stem, digest, given.renamed(names), where), steps=tuple(work.applied))


def _with_filled_dimensions(draft: Draft, values: Mapping[str, Value], where: str) -> Mapping[str, Value]:
    """Derive shapes again knowing which dimensions are at least 1, if that makes more sizes known or equal."""
    before = draft.symbols
    assert before is not None
    unknown = len(before.fresh), disagreements(draft, values)
    written = [o for n in draft.graph.node for o in n.output if o in values]
    dims = {d for o in written for d in values[o].shape or ()}
    seen = {name for d in dims if isinstance(d, str) for name in before.sizes[d].names}
    empty = before.may_be_empty(dims)
    ignored = empty & _ignored_in_a_branch(draft, values)
    for allowed in dict.fromkeys((empty & (seen | ignored), empty & seen)):
        draft.symbols = replace(before.copy(), sizes={}, filled=frozenset(before.names) - allowed)
        found = simplify(draft, where)
        if (len(draft.symbols.fresh), disagreements(draft, found)) < unknown:
            return found
    draft.symbols = before
    return simplify(draft, where)


def _ignored_in_a_branch(draft: Draft, values: Mapping[str, Value]) -> set[str]:
    """The names of dimensions that a branch of If has nothing of, and another has: the length of past keys.

    A run that takes the first may have a size of 0, as the first step of a decoder.
    """

    def named(inputs: Iterable[str]) -> set[str]:
        shapes = (values[name].shape or () for name in inputs if name in values)
        return {dim for shape in shapes for dim in shape if isinstance(dim, str)}

    outer = named(name for node in draft.graph.node for name in node.input)
    found: set[str] = set()
    for node in draft.graph.node:
        if of_node(node).control == "branches":
            one, other = (named(captured_by(body)) for body in bodies(node))
            found |= one ^ other
    return found - outer


def _has_unknown_sizes(draft: Draft, values: Mapping[str, Value]) -> bool:
    """Whether a value has sizes that are known only at run time, though those of inputs that are tensors are fixed."""
    if any(not v.is_static and container(v.dtype) is None for v in (values[i.name] for i in draft.graph.input)):
        return False
    return any(container(v.dtype) or (not v.is_opaque and not v.is_static) for v in values.values())


def _finish(draft: Draft, stem: str, digest: Callable[[], str], given: GivenModel, where: str) -> ImportedModel:
    """Build the result of the import, with identifiers for names that ONNX's tools added."""
    olds, table = rename_known(draft, known_values(draft))
    names = {new: given.names[old] for new, old in olds.items() if old in given.names}
    results = (o for n in draft.graph.node for o in n.output[:] if o)
    if table is None and draft.symbols is None:
        table = value_table(draft.graph, draft.weights)
        table = table if all(o in table and table[o].is_static for o in results) else None
    if table is None:
        table = infer(draft, stem)
    require_few_trips(draft.graph, draft.weights, table, draft.origins, where)
    loose = _loose_nodes(draft, table, where, names)
    return assembled(draft, stem, digest, given.renamed(MappingProxyType(names)), table, loose)


def _unknown_operator(draft: Draft, name: str, where: str) -> InvalidGraphError:
    """The error for an operator that neither ONNX nor ONNX Runtime has, at its first node."""
    domain, _, op_type = name.rpartition("::")
    node = next((n for g in graphs_of(draft.graph) for n in g.node if (n.domain, n.op_type) == (domain, op_type)), None)
    if node is not None:
        label = next(iter(draft.origins.get(node.name, ())), node.name)
        where = f"{where}: node '{label}' ({op_type})"
    return InvalidGraphError(
        f"neither ONNX nor ONNX Runtime has an operator {name}",
        where=where,
        hint="write it with ONNX's operators, or as a function of the model: libraries of operators are not loaded",
    )


_SHOWN = 4
"""The most inputs whose shapes an error lists."""


def _loose_nodes(draft: Draft, values: Mapping[str, Value], where: str, sources: Mapping[str, str]) -> frozenset[str]:
    """Nodes with a body that the fixed shapes contradict, if the model is valid without fixed shapes.

    Raises InvalidGraphError if ONNX Runtime finds the model invalid without them too, or if its check would need too
    much memory.
    """
    require_few(draft.graph, where, draft.weights)
    compute = not draft.budget.spent
    few = representatives(draft, values)
    is_valid = few is not None and objection(few, compute=compute) is None
    if is_valid and not (draft.symbols is not None and draft.symbols.failed):
        return frozenset()
    proto = draft.to_proto(with_trees=False)
    reason = None if is_valid else objection(proto, compute=compute)
    if reason is None:
        _require_no_failed_rules(draft, where, compute=compute)
        return frozenset()
    loose = [n.name for n in draft.graph.node if any(True for _ in bodies(n))]
    open_shapes(proto)
    if not loose or objection(proto, compute=compute) is not None:
        found = complaint(reason)
        label = next(iter(draft.origins.get(found.node or "", ())), None)
        if found.unknown is not None:
            raise _unknown_operator(draft, found.unknown, where)
        shapes = "; ".join(f"{sources[i.name]}={dims_text(i)}" for i in draft.graph.input[:_SHOWN])
        shapes += "; …" if len(draft.graph.input) > _SHOWN else ""
        raise InvalidGraphError(
            f"ONNX Runtime refuses the model{f' at {shapes}' if shapes else ''}: {found.sentence(label)}", where=where
        )
    draft.notes.append(
        "the fixed input shapes contradict a branch or body of "
        + ", ".join(f"'{(draft.origins.get(n) or (n,))[0]}'" for n in loose)
        + ": a run that takes it fails"
    )
    return frozenset(loose)


def _require_no_failed_rules(draft: Draft, where: str, *, compute: bool) -> None:
    """Raise InternalError (HC902) if a shape rule failed for a node of a model that ONNX Runtime accepts."""
    if draft.symbols is None or not draft.symbols.failed:
        return
    node, error = draft.symbols.failed[0]
    draft.symbols.failed = []
    if is_accepted(draft.to_proto(), compute=compute):
        label = next(iter(draft.origins.get(node.name, ())), None)
        failure = rule_failure(node, error, label)
        failure.where = f"{where}: {failure.where}"
        raise failure
