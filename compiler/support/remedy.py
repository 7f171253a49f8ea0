"""Remedies for nodes that no listed device runs: one that left them to the last resort, or a device to add."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from heterocc.artifacts.errors import Hint
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.devices.names import host_device, ort_device
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.shapes.named import quoted
from heterocc.compiler.operators.table import of_type
from heterocc.compiler.support.cache import open_cache
from heterocc.compiler.support.trial import Refusal, Support
from heterocc.passes.graph import Node

_MAX_ASKED = 20
"""Maximum number of refused nodes to query; a trial takes about 10 ms."""


def refused_by_all(
    nodes: Iterable[Node], devices: Sequence[TargetDevice], refusals: Mapping[str, Mapping[str, object]]
) -> list[Node]:
    """The nodes that each of the devices refuses, by `refusals[device][node]`."""
    return [node for node in nodes if all(node.name in refusals.get(d.name, {}) for d in devices)]


def asked_again(
    alone: Support, nodes: Iterable[Node], devices: Sequence[TargetDevice]
) -> Iterator[tuple[Node, TargetDevice, Refusal | None]]:
    """What devices say of nodes that the last resort among them refuses, where the others may have left it these.

    `alone` is for the devices without the last resort. Yields nothing if none is listed.
    """
    if any(device.last_resort for device in devices):
        for node in nodes:
            for device in devices:
                if not device.last_resort:
                    yield node, device, alone.refusal(node, device)


def remedy(
    model: ImportedModel, devices: Sequence[TargetDevice], refusals: Mapping[str, Mapping[str, str]]
) -> str | None:
    """A hint for the nodes that all of `devices` refuse, or None if there are no such nodes: devices to add, or lengths
    to fix.

    `refusals[device][node]` is the reason why a device cannot run a node.
    """
    refused = refused_by_all(model.graph.nodes, devices, refusals)
    if not refused:
        return None
    fixed = _fixed_lengths(model, refused[0])
    support = Support(model, cache=open_cache())
    listed = {d.backend for d in devices}
    added: list[str] = []
    left = refused[:_MAX_ASKED]
    for device in (host_device(), ort_device()):
        if device.backend in listed:
            continue
        able = [node for node in left if support.refusal(node, device) is None]
        if able:
            added.append(device.name)
            left = [node for node in left if node not in able]
    see = "see " + Hint("query_model", "`heterocc query`") + " for what each device can run"
    if left or not added:
        label = f"{left[0].op_type} '{left[0].label}'"
        return f"no device of this machine can run {label}; " + see + fixed
    names, whole = ",".join(added), ",".join([*(d.name for d in devices), *added])
    can = f"{' and '.join(added)} can run {'it' if len(refused) == 1 else 'what the others cannot'}"
    return Hint(f"{can}: add {names} to `devices` ({whole!r})", f"{can}: add {names} to --devices (-d {whole})") + fixed


def _fixed_lengths(model: ImportedModel, node: Node) -> Hint | str:
    """What fixes the length of a node's vectors of whole numbers, on which the rank of its result or code depends."""
    values, symbols = model.graph.values, model.symbols
    known = all(values[output].shape is not None for output in node.outputs)
    if symbols is None or (known and not of_type(node.op_type).code_needs_length):
        return ""
    read = [values[name] for name in node.inputs if values[name].dtype in ("int32", "int64")]
    lengths = [size for value in read for size in (symbols.shape_of(value) or ())[-1:] if size is not None]
    length = next((size for size in lengths if not size.names.isdisjoint(symbols.names)), None)
    if length is None:
        return ""
    name = next(name for name in sorted(length.names) if name in symbols.names)
    found = _length(model, node) if length.name == name else None
    size = f"{2 if found is None else found}"
    say = "" if found is not None else " say"
    what = "; or fix a length," if found is None else "; or fix the length that the ranks of its tensors need,"
    if any(name in shape for shape in model.dimensions.values()):
        return Hint(f"{what} dims={{{name!r}: {size}}}{say}", f"{what} --dim {quoted(name)}={size}{say}")
    source = name.rpartition("_")[0]  # a dimension without a name has one of its input and axis
    return Hint(f"{what} shapes={{{source!r}: [{size}]}}{say}", f"{what} --shape {quoted(source)}={size}{say}")


def _length(model: ImportedModel, node: Node) -> int | None:
    """The length of a node's vectors, or of the last axis of its indices, from the ranks of its other tensors.

    The rank of a result is what the model states of its output. None if the ranks are not known, or do not fit.
    """
    rule, proto = of_type(node.op_type).length_from_ranks, model.protos[node.name]
    shapes = [model.graph.values[name].shape for name in proto.input if name]
    output = node.outputs[0]
    stated = len(model.dimensions.get(model.sources.get(output, ""), model.graph.values[output].shape or ()))
    if rule is None or not stated:
        return None
    found = rule(proto, [None if shape is None else len(shape) for shape in shapes], stated)
    return found if found is not None and found > 0 else None
