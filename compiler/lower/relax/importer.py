"""Import of the ONNX nodes of one partition into a Relax function that records the node of each binding.

The importer uses TVM's converters but replaces the loop around them. Shapes are static, weights stay arrays, the
converters of `converters` take precedence, and each result is compared with the graph's shapes and dtypes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import onnx_frontend

from heterocc.artifacts.dtypes import CARRIED
from heterocc.artifacts.errors import HeteroccError, LoweringError
from heterocc.artifacts.foreign import pass_foreign
from heterocc.artifacts.packed import PackedArray
from heterocc.compiler.importer.symbols.requirements import requirements_at
from heterocc.compiler.importer.symbols.symbols import Symbols
from heterocc.compiler.lower.backend import PartitionJob
from heterocc.compiler.lower.converters import STANDARD_DOMAINS, Context, own_converter
from heterocc.compiler.lower.converters.arrays.filling import from_sizes
from heterocc.compiler.lower.converters.arrays.reshaping import reshaped
from heterocc.compiler.lower.converters.attributes import Attributes, parsed
from heterocc.compiler.lower.converters.elementwise.narrow import carried_name
from heterocc.compiler.lower.converters.elementwise.narrow import convert as convert_narrow
from heterocc.compiler.lower.converters.elementwise.narrow import is_touched as is_narrow
from heterocc.compiler.lower.converters.quantised.dequantised import in_integers
from heterocc.compiler.lower.converters.registry import ML
from heterocc.compiler.lower.converters.unread import require_read
from heterocc.compiler.lower.converters.values import GROUPED
from heterocc.compiler.lower.progress import counted
from heterocc.compiler.lower.reasons import reason_of
from heterocc.compiler.lower.relax.builder import NodeBuilder
from heterocc.compiler.lower.relax.widened import Widened, narrow, widen, widened_array, without_types
from heterocc.compiler.lower.straight import bindings_of, constant, outputs_of, vars_of, write_main
from heterocc.compiler.lower.variables import Variables, require_names, same
from heterocc.compiler.lower.wide_array import WideArray
from heterocc.compiler.operators.table import of_node
from heterocc.runtime.execute.narrow import carried

_MOST_ENDS = 256
"""The most inputs and outputs of a node of a kind that is not computed in groups."""

PARAMETER_BYTES = 64
"""Floating-point constants of at least this many bytes become parameters; smaller ones and integers stay constants."""


@dataclass(frozen=True)
class ImportedFunction:
    """A module whose `main(*inputs, *parameters)` returns a tuple of the partition's outputs.

    `arrays` are the parameters' values by name, in their order. `node_of` maps variable names to graph nodes; a
    binding that a later pass adds is not in it, and belongs to the nodes of the next binding that is. `values_of` maps
    variable names to the graph values that they hold. `returns` marks a function whose inputs and outputs have dtypes
    that numpy lacks, so that its entry returns new tensors.
    """

    mod: tvm.IRModule
    inputs: tuple[str, ...]
    arrays: Mapping[str, np.ndarray]
    node_of: Mapping[str, tuple[str, ...]]
    values_of: Mapping[str, tuple[str, ...]]
    returns: bool = False


class _Importer(onnx_frontend.ONNXGraphImporter):  # type: ignore[misc]  # TVM has no type information
    def __init__(self, job: PartitionJob) -> None:
        super().__init__({}, "float32", keep_params_in_input=True, sanitize=False)
        self.job = job
        self.bb = NodeBuilder()
        self.values: dict[str, list[str]] = {}
        self.notes: dict[str, object] = {}
        self.variables = Variables(job.model)
        self.widened = Widened(job.model, all_values=job.device.backend == "cpu")
        self.wide: dict[str, relax.Expr] = {}
        self.readers: Counter[str] = Counter()
        # As constants in the code of kernels, scales would make each layer's kernel differ from all others.
        self.scales: frozenset[str] = job.model.scales if job.device.backend == "cpu" else frozenset()

    def constant(self, name: str, *, wide: bool = False) -> None:
        """Define an initializer for the converters, as a variable or as a constant; `wide` as float32."""
        table = self.wide if wide else self._nodes
        if name in table:
            return
        array = self.job.model.weights[name]
        coded = array.dtype.name in CARRIED and not wide
        if wide:
            array = widened_array(array, lazily=self.widened.all_values)
        elif coded:
            array = carried(array, array.dtype.name)
        if isinstance(array, PackedArray) and not self._stays_packed(name):
            array = np.asarray(array)
        if self._is_parameter(name, wide=wide):
            key = name
            while key in self._params or (wide and key in self.job.model.graph.values):
                key += "_wide"
            var = relax.Var(key, relax.TensorType(array.shape, array.dtype.name))
            table[name] = var
            self._params[key] = (var, array)
        else:
            table[name] = constant(np.asarray(array))

    def _stays_packed(self, name: str) -> bool:
        """Whether only data of DequantizeLinear is read from a constant: TVM's converters take numpy's arrays alone."""
        read = ((node, place) for node in self._partition for place, given in enumerate(node.input) if given == name)
        return all(of_node(node).dequantises and place == 0 for node, place in read)

    def _is_parameter(self, name: str, *, wide: bool) -> bool:
        array = self.job.model.weights[name]
        real = wide or array.dtype.kind == "f" or array.dtype.name in CARRIED
        nbytes = 4 * array.size if wide else array.nbytes
        return (real and nbytes >= PARAMETER_BYTES) or name in self.scales

    def _reads_wide(self, node: onnx.NodeProto, name: str) -> bool:
        return self.widened.stored(name) is not None and not self.widened.as_stored(node)

    def run(self, proto: onnx.ModelProto) -> ImportedFunction:
        """Convert all nodes. Raises LoweringError that names the node at fault."""
        job, graph = self.job, proto.graph
        self.opset = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 1)
        self.ml_opset = next((o.version for o in proto.opset_import if o.domain == ML), 1)
        inputs = []
        given = [name for names in job.sizes for name in names]
        require_names(job.model, job.inputs, given, f"partition {job.name}")
        for name in job.inputs:
            var = relax.Var(name, self._type(name))
            self._nodes[name] = var
            self.values[name] = [name]
            inputs.append(var)
        self._partition = graph.node
        for index, names in enumerate(job.sizes):
            inputs.append(relax.Var(f"sizes_{index}", relax.ShapeType([self.variables.variable(n) for n in names])))
        for node in graph.node:
            for name in filter(job.model.weights.__contains__, node.input):
                if self._is_parameter(name, wide=self._reads_wide(node, name)):
                    self.constant(name, wide=self._reads_wide(node, name))
                else:
                    self.readers[name] += 1
        for name in job.outputs:
            if name in job.model.weights:
                self.constant(name)
        parameters = [var for var, _ in self._params.values()]
        with self.bb.function("main", params=inputs + parameters):
            with self.bb.dataflow():
                for index, node in enumerate(counted("importing nodes", graph.node)):
                    self._convert_node(index, node)
                outputs = []
                for name in job.outputs:
                    value = self._stored(name)
                    outputs.append(value if isinstance(value, relax.Var) else self.bb.emit(value, f"out_{name}"))
                result = self.bb.emit_output(relax.Tuple(outputs))
            self.bb.emit_func_output(result)
        return self._named(self.bb.get())

    def _named(self, mod: tvm.IRModule) -> ImportedFunction:
        """Give every binding a unique name, and record its node."""
        main = mod["main"]
        bindings = bindings_of(main)
        node_of: dict[str, tuple[str, ...]] = {}
        values_of: dict[str, tuple[str, ...]] = {name: (name,) for name in self.job.inputs}
        owner = ""
        for index, binding in reversed(list(enumerate(bindings))):
            owner = self.bb.emitted.get(binding.var.name, owner)
            node_of[f"b{index}"] = (owner,) if owner else ()
            values_of[f"b{index}"] = tuple(self.values.get(binding.var.name, ()))
        # TVM warns about unused outputs of a node.
        live = {v for o in outputs_of(main) for v in vars_of(o)}
        for binding in reversed(bindings):
            if binding.var in live:
                live.update(vars_of(binding.value))
        named = [(b.var, b.value, f"b{i}") for i, b in enumerate(bindings) if b.var in live]
        params = [p for p in main.params if p.name not in self._params or p in live]
        mod = write_main(mod, params, named, outputs_of(main))
        found = {p.name: self._params[p.name][1] for p in params if p.name in self._params}
        arrays: dict[str, Any] = {name: a if isinstance(a, WideArray) else np.asarray(a) for name, a in found.items()}
        ends = [self.job.model.graph.values[name].dtype for name in (*self.job.inputs, *self.job.outputs)]
        returns = any(dtype in CARRIED for dtype in ends)
        return ImportedFunction(mod, self.job.inputs, arrays, node_of, values_of, returns)

    def _convert_node(self, index: int, node: onnx.NodeProto) -> None:
        try:
            outputs = self._outputs(index, node)
            self._forget(node)
        except HeteroccError:
            raise
        except Exception as error:  # converters raise anything: AssertionError, KeyError, TVMError, ValueError …
            pass_foreign(error)
            raise LoweringError(
                f"the importer cannot convert {node.op_type}: {reason_of(error)}", where=self._where(node)
            ) from error
        for name, value in zip(node.output, outputs, strict=False):
            if not name:
                continue
            value = self._assumed(name, value)
            self._check(node, name, value)
            wide = self.widened.dtype(name) is not None
            (self.wide if wide else self._nodes)[name] = value
            if isinstance(value, relax.Var):
                if not wide:
                    self.values.setdefault(value.name, []).append(name)
                self.bb.emitted.setdefault(value.name, node.name)

    def _forget(self, node: onnx.NodeProto) -> None:
        """Drop the constants that no later node reads; what was converted keeps those that it has."""
        for name in filter(self.readers.__contains__, node.input):
            self.readers[name] -= 1
            if not self.readers[name] and name not in self.job.outputs:
                self._nodes.pop(name, None)
                self.wide.pop(name, None)

    def _given(self, node: onnx.NodeProto, name: str) -> relax.Expr:
        """A value in the form in which a node reads it."""
        dtype = self.widened.stored(name)
        if name in self.readers:  # made for the first reader: most are packed anew, and those of all layers are many
            self.constant(name, wide=self._reads_wide(node, name))
        if dtype is None:
            return self._nodes[name]
        if self.widened.as_stored(node):
            return self._stored(name)
        if name not in self.wide:
            self.wide[name] = widen(self.bb, self._nodes[name], dtype)
        return self.wide[name]

    def _stored(self, name: str) -> relax.Expr:
        """A value in the model's type."""
        if name not in self._nodes:
            dtype, producer = self.widened.dtype(name), self.job.model.graph.producer.get(name)
            assert dtype is not None
            self.bb.node = producer or self.bb.node
            self._narrow(name, self.wide[name], dtype)
        return self._nodes[name]

    def _narrow(self, name: str, value: relax.Expr, dtype: str) -> relax.Expr:
        """A value in the model's type of 16 bits, from one of float32."""
        self._nodes[name] = narrow(self.bb, value, dtype)
        self.values.setdefault(self._nodes[name].name, []).append(name)
        return self._nodes[name]

    def _outputs(self, index: int, node: onnx.NodeProto) -> list[relax.Expr]:
        self.bb.prefix, self.bb.node = f"n{index}_", node.name
        known = self.variables.contents(node.output[0]) if len(node.output) == 1 else None
        if known is not None:
            dtype = self.job.model.graph.values[node.output[0]].dtype
            sizes = self.bb.normalize(from_sizes(self.bb, *known, dtype))
            return [sizes if isinstance(sizes, relax.Var | tvm.ir.GenericConst) else self.bb.emit(sizes)]
        self._require_possible(node)
        attrs = parsed(node.attribute, self._parse_attr)
        stored = self.widened.as_stored(node)
        if any(self.widened.stored(name) for name in node.output) and not stored:
            attrs = without_types(attrs)
        inputs = onnx_frontend.onnx_input([self._given(node, name) if name else None for name in node.input])
        context = Context(
            self.bb,
            node,
            Attributes(attrs),
            self.ml_opset if node.domain == ML else self.opset,
            len(node.output),
            (self._nodes, self._params),
            self.job.device.backend,
            self.notes,
            self.variables,
            self.widened.values(node),
            self.job.model.graph.values,
            self._partition,
        )
        given = [inputs[i] for i in range(len(node.input))]
        fields = convert_narrow(context, given, self._fields) if is_narrow(context) else self._fields(context, given)
        require_read(context)
        outputs = []
        for name, value in zip(node.output, fields, strict=False):
            expr = self._as_computed(node, name, self.bb.normalize(value))
            if isinstance(expr.ty, relax.TupleType) and len(fields) == 1:
                whole = expr if isinstance(expr, relax.Var) else self.bb.emit(expr)
                return [self.bb.emit(relax.TupleGetItem(whole, i), f"n{index}_{o}") for i, o in enumerate(node.output)]
            keep = isinstance(expr, relax.Var | tvm.ir.GenericConst)
            outputs.append(expr if keep else self.bb.emit(expr, f"n{index}_{name}"))
        if len(outputs) < len(node.output):
            raise LoweringError(
                f"the importer produces {len(outputs)} of the {len(node.output)} outputs of {node.op_type}",
                where=self._where(node),
            )
        return outputs

    def _as_computed(self, node: onnx.NodeProto, name: str, value: relax.Expr) -> relax.Expr:
        """A node's result, widened if it is of 16 bits, after the rounding that the node asks for."""
        dtype, stored = self.widened.dtype(name), self.widened.stored(name)
        if stored is None or not isinstance(value.ty, relax.TensorType):
            return value
        if dtype is None:
            return value if self.widened.as_stored(node) else narrow(self.bb, self.bb.emit(value), stored)
        if self.widened.rounds(node):
            value = self.bb.emit(value)
            # Attention may read rows as they are stored, if that is asked for; else the model says what is rounded.
            stays = self.job.model.caches is None or name not in self.job.model.graph.outputs
            value = narrow(self.bb, value, dtype) if stays else self._narrow(name, value, dtype)
        return value if dtype_name(value.ty) == "float32" else widen(self.bb, self.bb.emit(value), dtype)

    def _fields(self, context: Context, given: list[relax.Expr | None]) -> list[relax.Expr]:
        """The outputs of a node with these inputs, of which TVM's converters may give all as one tuple."""
        node = context.node
        ends = len(node.input) + len(node.output)
        if ends > _MOST_ENDS and node.op_type not in GROUPED:
            raise NotImplementedError(f"{ends} inputs and outputs of one {node.op_type} are more than {_MOST_ENDS}")
        own = own_converter(node.domain, node.op_type)
        exact = in_integers(context, given)
        if exact is not None:
            result = exact
        elif own is not None:
            result = own(context, *given)
        elif node.domain in STANDARD_DOMAINS and node.op_type in onnx_frontend._get_convert_map():
            result = context.original(*given)
        else:
            name = node.op_type if node.domain in STANDARD_DOMAINS else f"{node.domain}::{node.op_type}"
            raise LoweringError(f"TVM has no converter for {name}", where=self._where(node))
        return list(result) if isinstance(result, list | tuple | relax.Tuple) else [result]

    def _require_possible(self, node: onnx.NodeProto) -> None:
        """Raise LoweringError for sizes with which the node cannot run; a run checks those that may be others."""
        values, symbols = self.job.model.graph.values, self.job.model.symbols or Symbols(())
        for needed in requirements_at(node, values, symbols, self.opset):
            if needed.never:
                raise LoweringError(
                    f"{node.op_type} needs {needed.what} to fit {needed.right.text}, and it is {needed.left.text}",
                    where=self._where(node),
                )
            if needed.relation == "broadcast" and not of_node(node).chooses:
                raise LoweringError(
                    f"{node.op_type} broadcasts sizes of which only a run knows whether they are 1: {needed.what}",
                    where=self._where(node),
                    hint="fix the dimension with --dim, or list ORT after this device",
                )

    def _assumed(self, name: str, value: relax.Expr) -> relax.Expr:
        """The value with its known dimensions, if these are equal to its own because of assumptions about sizes."""
        symbols, known = self.job.model.symbols, self.job.model.graph.values[name]
        if symbols is None or not (symbols.pins or symbols.steps) or not isinstance(value.ty, relax.TensorType):
            return value
        wanted, shape = self.variables.shape(known), value.ty.shape
        if wanted is None or not isinstance(shape, relax.ShapeExpr) or len(wanted) != len(shape.values):
            return value
        return value if same(list(shape.values), wanted) else self.bb.emit(reshaped(self.bb, value, wanted))

    def _check(self, node: onnx.NodeProto, name: str, value: relax.Expr) -> None:
        """Compare a converted value with the shape and dtype that ONNX's shape inference found."""
        wanted = self.job.model.graph.values[name]
        if not isinstance(value.ty, relax.TensorType):
            raise LoweringError(f"the importer does not produce a tensor for output '{name}'", where=self._where(node))
        shape, fixed = self.variables.shape(wanted), static_shape(value.ty)
        known = isinstance(value.ty.shape, relax.ShapeExpr) and (fixed is not None or bool(self.variables))
        if shape is None or not known:
            raise LoweringError(f"the shape of output '{name}' depends on data", where=self._where(node))
        given, dtype = list(value.ty.shape.values), dtype_name(value.ty)
        if dtype != self._computed(name) or not (fixed == shape or same(given, shape)):
            raise LoweringError(
                f"its code would give output '{name}' the type {dtype}{_shown(given)} in place of "
                f"{wanted.dtype}{_shown(wanted.shape)}",
                where=self._where(node),
            )

    def _computed(self, name: str) -> str:
        """The dtype that compiled code has for a value between its nodes."""
        return "float32" if self.widened.dtype(name) else carried_name(self.job.model.graph.values[name].dtype)

    def _type(self, name: str) -> relax.TensorType:
        value = self.job.model.graph.values[name]
        shape = self.variables.shape(value)
        if shape is None or value.is_opaque:
            raise LoweringError(f"the type of '{name}' is not static and numeric", where=f"partition {self.job.name}")
        return relax.TensorType(shape, carried_name(value.dtype))

    def _where(self, node: onnx.NodeProto) -> str:
        graph_node = self.job.model.graph.node_by_name[node.name]
        return f"node '{graph_node.label}' ({node.op_type})"


def import_function(job: PartitionJob) -> ImportedFunction:
    """Convert the partition's nodes to Relax. Raises LoweringError that names the node at fault."""
    return _Importer(job).run(job.model.subgraph(job.nodes, job.inputs, job.outputs))


def dtype_name(ty: relax.TensorType) -> str:
    """The element type of a tensor type, by numpy's name."""
    return str(ty.dtype.dtype) if hasattr(ty.dtype, "dtype") else str(ty.dtype)


def _shown(shape: Sequence[object] | None) -> str:
    return f"[{', '.join(str(dim) for dim in shape or ())}]"


def static_shape(ty: relax.TensorType) -> tuple[int, ...] | None:
    """The shape of a tensor type, or None if a dimension is not a constant."""
    dims = ty.shape.values if isinstance(ty.shape, relax.ShapeExpr) else [None]
    return tuple(map(int, dims)) if all(isinstance(dim, tvm.tirx.IntImm) for dim in dims) else None
