"""Experimental operators of ONNX's first releases, which ONNX Runtime runs up to operator set 9, written as others.

ONNX has left most of them out, and has given two names to later operators. What they mean is taken from ONNX Runtime.
LayerNormalization of a set before 17, which ONNX Runtime has had before ONNX, is that of 17.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
from onnx import helper

from heterocc.compiler.importer.draft.constants import constant_node
from heterocc.compiler.importer.draft.draft import Draft, graphs_of, keep, set_nodes
from heterocc.compiler.importer.draft.names import names_in, unused
from heterocc.compiler.importer.draft.written import written
from heterocc.compiler.importer.onnx_tools.checker import is_experimental

Rule = Callable[[onnx.NodeProto, Mapping[str, Any]], tuple[str, dict[str, np.ndarray]]]
"""From a node and its attributes to a text of nodes, and the constants of the text."""

_DOMAIN = "heterocc.experimental"
"""The domain of such nodes while ONNX's converter runs, which does not know them."""


def hide_experimental(draft: Draft, version: int) -> None:
    """Hide such nodes from ONNX's converter."""
    found = [n for g in graphs_of(draft.graph) for n in g.node if is_experimental(n, version)]
    for node in found:
        node.domain = _DOMAIN
    if found:
        draft.model.opset_import.add(domain=_DOMAIN, version=1)


def show_experimental(draft: Draft, *, converted: bool) -> None:
    """Write the hidden nodes as other operators if the model was `converted`; else put them back as they were."""
    graphs = list(graphs_of(draft.graph))
    taken = names_in(draft.graph) | draft.weights.keys()
    for graph in graphs:
        if not any(node.domain == _DOMAIN for node in graph.node):
            continue
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            if node.domain == _DOMAIN:
                node.domain = ""
                nodes += _written(draft, node, taken) if converted else [node]
            else:
                nodes.append(node)
        set_nodes(graph, nodes)
    keep(draft.model.opset_import, lambda entry: entry.domain != _DOMAIN)


def _written(draft: Draft, node: onnx.NodeProto, taken: set[str]) -> list[onnx.NodeProto]:
    """The nodes for one; the last has its name."""
    if node.op_type not in _RULES:
        return [node]
    text, constants = _RULES[node.op_type](node, {a.name: helper.get_attribute_value(a) for a in node.attribute})
    ends = {"x": node.input[0], "result": node.output[0]}
    ends.update((f"input{place}", name) for place, name in enumerate(node.input))
    made = []
    for name, array in constants.items():
        ends[name] = unused(f"{node.output[0]}_{name}", taken)
        made.append(constant_node(ends[name], array))
    made += written(
        text,
        ends,
        lambda value: unused(f"{node.output[0]}_{value}", taken),
        lambda new: node.name if new.output[0] == node.output[0] else unused(f"{node.name}_{new.op_type}", taken),
    )
    for new in made:
        draft.origins[new.name] = draft.origins.get(node.name, ())
        if node.name in draft.affinity:
            draft.affinity[new.name] = draft.affinity[node.name]
    return made


def _number(value: float) -> np.ndarray:
    return np.array(value, np.float32)


def _affine(_: onnx.NodeProto, given: Mapping[str, Any]) -> tuple[str, dict[str, np.ndarray]]:
    constants = {"alpha": _number(given.get("alpha", 1)), "beta": _number(given.get("beta", 0))}
    return "scaled = Mul (x, alpha) result = Add (scaled, beta)", constants


def _image_scaler(_: onnx.NodeProto, given: Mapping[str, Any]) -> tuple[str, dict[str, np.ndarray]]:
    bias = np.array(given["bias"], np.float32).reshape(-1, 1, 1)
    return "scaled = Mul (x, scale) result = Add (scaled, bias)", {
        "scale": _number(given.get("scale", 1)),
        "bias": bias,
    }


def _scale(_: onnx.NodeProto, given: Mapping[str, Any]) -> tuple[str, dict[str, np.ndarray]]:
    return "result = Mul (x, scale)", {"scale": _number(given.get("scale", 1))}


def _between(op_type: str) -> Rule:
    """alpha · f(beta · x)."""

    def rule(_: onnx.NodeProto, given: Mapping[str, Any]) -> tuple[str, dict[str, np.ndarray]]:
        text = f"inner = Mul (x, beta) outer = {op_type} (inner) result = Mul (outer, alpha)"
        return text, {"alpha": _number(given["alpha"]), "beta": _number(given["beta"])}

    return rule


def _threshold(_: onnx.NodeProto, given: Mapping[str, Any]) -> tuple[str, dict[str, np.ndarray]]:
    return f"result = ThresholdedRelu <alpha = {float(given.get('alpha', 1))}> (x)", {}


def _mean_variance(_: onnx.NodeProto, given: Mapping[str, Any]) -> tuple[str, dict[str, np.ndarray]]:
    """The mean is over the batch and the map, and with `across_channels` over the channels, too."""
    axes = [0, 1, 2, 3] if given.get("across_channels", 0) else [0, 2, 3]
    if given.get("normalize_variance", 1):
        return f"result = MeanVarianceNormalization <axes = {axes}> (x)", {}
    return f"mean = ReduceMean <axes = {axes}> (x) result = Sub (x, mean)", {}


def _crop(_: onnx.NodeProto, given: Mapping[str, Any]) -> tuple[str, dict[str, np.ndarray]]:
    """Without the borders, or from the upper left ones on with the height and width `scale`.

    A map that is too small for that is an error, as in ONNX Runtime: of Pad, or of the Reshape after a Slice, which
    would end where the map does.
    """
    left, top, right, bottom = given["border"]
    if "scale" not in given:
        pads = np.array([0, 0, -top, -left, 0, 0, -bottom, -right], np.int64)
        return "result = Pad (x, pads)", {"pads": pads}
    height, width = given["scale"]
    constants = {
        "starts": [top, left],
        "ends": [top + height, left + width],
        "axes": [2, 3],
        "shape": [0, 0, height, width],
    }
    text = "cut = Slice (x, starts, ends, axes) result = Reshape (cut, shape)"
    return text, {name: np.array(v, np.int64) for name, v in constants.items()}


def _dynamic_slice(node: onnx.NodeProto, _: Mapping[str, Any]) -> tuple[str, dict[str, np.ndarray]]:
    return f"result = Slice ({', '.join(f'input{place}' for place in range(len(node.input)))})", {}


_RULES: Mapping[str, Rule] = {
    "Affine": _affine,
    "Crop": _crop,
    "DynamicSlice": _dynamic_slice,
    "ImageScaler": _image_scaler,
    "MeanVarianceNormalization": _mean_variance,
    "ParametricSoftplus": _between("Softplus"),
    "Scale": _scale,
    "ScaledTanh": _between("Tanh"),
    "ThresholdedRelu": _threshold,
}
