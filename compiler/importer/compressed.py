"""Weights of float models in 4 or 8 bits: large products become MatMulNBits, with codes by ONNX Runtime's functions."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from heterocc.compiler.importer.draft.constants import is_constant
from heterocc.compiler.importer.draft.draft import Draft, graphs_of, nodes_of, opsets, set_nodes
from heterocc.compiler.importer.draft.names import unused
from heterocc.compiler.importer.draft.written import written
from heterocc.compiler.importer.weight_form import WeightForm
from heterocc.compiler.operators.layers.products import is_plain_product
from heterocc.compiler.operators.table import of_node
from heterocc.compiler.symbolic.given import attribute_of
from heterocc.runtime.execute.ort_session import onnxruntime_package

LEAST = 1 << 14
"""The fewest elements of a weight that is compressed: smaller ones save little."""

_MICROSOFT = "com.microsoft"

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class LargeProduct:
    """A node that multiplies `factor` by a large constant; `inner` says that it is in a body of another node.

    `weight` is the constant's name, which is transposed if `turned` says so.
    """

    node: str
    factor: str
    weight: str
    turned: bool
    inner: bool


@dataclass(frozen=True, slots=True)
class Codes:
    """A compressed weight of [terms, columns]: codes by column and block, a scale for each block, and zero points."""

    form: WeightForm
    terms: int
    columns: int
    packed: Array
    scales: Array
    zeros: Array | None

    @property
    def nbytes(self) -> int:
        """All bytes."""
        return sum(a.nbytes for a in (self.packed, self.scales, self.zeros) if a is not None)

    def numbers(self) -> Array:
        """The weight that the codes stand for, float32 [terms, columns]."""
        blocks = self.scales.shape[1]
        middle = 1 << (self.form.bits - 1)
        zeros = middle if self.zeros is None else self._unpacked(self.zeros)[:, :blocks, None]
        codes = self._unpacked(self.packed.reshape(self.columns, -1)).reshape(self.columns, blocks, -1)
        numbers = (codes.astype(np.float32) - zeros) * self.scales.astype(np.float32)[:, :, None]
        return numbers.reshape(self.columns, -1)[:, : self.terms].T

    def _unpacked(self, packed: Array) -> Array:
        if self.form.bits == 8:
            return packed
        return np.stack([packed & 15, packed >> 4], axis=-1).reshape(packed.shape[0], -1)


def compressed(weight: Array, form: WeightForm) -> Codes:
    """The codes of a weight of [terms, columns] in float32 or float16, rounded to the nearest by ONNX Runtime.

    4 bits have zero points, which halve the error of blocks whose numbers have one sign; 8 bits do not need them.
    """
    terms, columns = weight.shape
    blocks, each = -(-terms // form.block), 8 // form.bits
    padded = np.zeros((blocks * form.block, columns), weight.dtype)
    padded[:terms] = weight
    packed = np.zeros((columns, blocks, form.block // each), np.uint8)
    scales = np.zeros((columns, blocks), weight.dtype)
    zeros = np.zeros((columns, -(-blocks // each)), np.uint8)
    symmetric = form.bits == 8
    functions = onnxruntime_package().capi._pybind_state
    quantize = functions.quantize_matmul_8bits if form.bits == 8 else functions.quantize_matmul_4bits
    quantize(packed, padded, scales, zeros, form.block, columns, terms, symmetric)
    return Codes(form, terms, columns, packed, scales, None if symmetric else zeros)


def large_products(graph: onnx.GraphProto, weights: Mapping[str, Array]) -> Iterator[LargeProduct]:
    """The products with a large constant, of MatMul and Gemm, also in bodies of other nodes."""
    find = _constants(graph, weights)
    for part in graphs_of(graph):
        for node in part.node:
            found = find(node.input[1]) if len(node.input) > 1 and is_plain_product(node) else None
            if found is None:
                continue
            name, array, turned = found
            turned ^= node.op_type == "Gemm" and bool(attribute_of(node, "transB", 0))
            if array.ndim == 2 and array.size >= LEAST and array.dtype in (np.float32, np.float16):
                yield LargeProduct(node.name, node.input[0], name, turned, part is not graph)


def weight_of(product: LargeProduct, graph: onnx.GraphProto, weights: Mapping[str, Array]) -> Array:
    """The constant of a product, [terms, columns]."""
    found = _constants(graph, weights)(product.weight)
    assert found is not None
    return found[1].T if product.turned else found[1]


def compress_weights(draft: Draft, form: WeightForm, digest: Callable[[], str]) -> Callable[[], str]:
    """Compress the weights of a draft that was just read; returns the digest of the model with weights of this form."""
    compress(draft.model, draft.weights, form)
    for node in nodes_of(draft.graph.node):
        draft.origins.setdefault(node.name, ())
    about = f"{form} {sorted(form.keep)}"
    return lambda: hashlib.sha256(f"{digest()} {about}".encode()).hexdigest()


def compress(model: onnx.ModelProto, weights: dict[str, Array], form: WeightForm) -> None:
    """Replace the large products that `form` does not keep by MatMulNBits. The names of their results stay."""
    graph = model.graph
    products = {p.node: p for p in large_products(graph, weights) if p.node not in form.keep}
    if not products:
        return
    made: dict[tuple[str, bool], tuple[list[str], dict[str, int]]] = {}
    nodes = list(nodes_of(graph.node))
    taken = {*weights, *(name for n in nodes for name in (n.name, *n.input, *n.output))}

    def inputs_of(product: LargeProduct) -> tuple[list[str], dict[str, int]]:
        key = product.weight, product.turned
        if key not in made:
            codes = compressed(np.ascontiguousarray(weight_of(product, graph, weights)), form)
            arrays = {"codes": codes.packed, "scales": codes.scales, "zeros": codes.zeros}
            names = [unused(f"{product.weight}_{part}", taken) for part, array in arrays.items() if array is not None]
            weights.update(zip(names, (a for a in arrays.values() if a is not None), strict=True))
            made[key] = names, {"K": codes.terms, "N": codes.columns}
        return made[key]

    for part in reversed(list(graphs_of(graph))):  # inner graphs first: the outer ones copy them
        written: list[onnx.NodeProto] = []
        for node in part.node:
            product = products.get(node.name)
            written += [node] if product is None else _replaced(node, *inputs_of(product), form, taken)
        set_nodes(part, written)
    used = {name for node in nodes_of(graph.node) for name in node.input}
    used |= {o.name for part in graphs_of(graph) for o in part.output}
    for name in {p.weight for p in products.values()} - used:
        weights.pop(name, None)
    if _MICROSOFT not in opsets(model):
        model.opset_import.add(domain=_MICROSOFT, version=1)


def _replaced(
    node: onnx.NodeProto, inputs: list[str], sizes: Mapping[str, int], form: WeightForm, taken: set[str]
) -> list[onnx.NodeProto]:
    """MatMulNBits in place of a product, and the sum with a Gemm's third input."""
    bias = node.input[2] if len(node.input) > 2 else ""
    result = unused(f"{node.output[0]}_product", taken) if bias else node.output[0]
    found = helper.make_node(
        "MatMulNBits",
        [node.input[0], *inputs],
        [result],
        name=node.name,
        domain=_MICROSOFT,
        bits=form.bits,
        block_size=form.block,
        **sizes,
    )
    if form.accuracy_level:
        found.attribute.append(helper.make_attribute("accuracy_level", form.accuracy_level))
    found.metadata_props.extend(node.metadata_props)
    if not bias:
        return [found]
    ends = {"product": result, "bias": bias, "result": node.output[0]}
    label = unused(f"{node.name}_bias", taken)
    return [found, *written("result = Add (product, bias)", ends, str, lambda _: label)]


def _constants(graph: onnx.GraphProto, weights: Mapping[str, Array]) -> Callable[[str], tuple[str, Array, bool] | None]:
    """A function from a value's name to the constant behind it: its name, its array, and whether it is transposed."""
    writers = {o: n for part in graphs_of(graph) for n in part.node for o in n.output}

    def find(name: str) -> tuple[str, Array, bool] | None:
        turned = False
        while name not in weights:
            node = writers.get(name)
            if node is None or node.domain:
                return None
            if is_constant(node):
                value = attribute_of(node, "value", None)
                return None if value is None else (name, numpy_helper.to_array(value), turned)
            if node.op_type == "Transpose" and list(attribute_of(node, "perm", (1, 0))) == [1, 0]:
                turned = not turned
            elif not of_node(node).copies:
                return None
            name = node.input[0]
        return name, weights[name], turned

    return find
