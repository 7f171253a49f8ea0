"""The memory of a kernel: storage buffers, shared memory of a work group, private arrays of an invocation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from heterocc.compiler.lower.vulkan.body import Body
from heterocc.compiler.lower.vulkan.dtypes import INT32, DType, UnsupportedError, parse
from heterocc.compiler.lower.vulkan.integers import floor_div
from heterocc.compiler.lower.vulkan.scalar import Scalar
from heterocc.compiler.lower.vulkan.spirv import Decoration, Module, Op, Storage

if TYPE_CHECKING:
    from tvm import tirx


QUAD = 4
"""The number of elements of a vector load."""

MAX_PRIVATE_BYTES = 1 << 16
"""The most bytes of private arrays of an invocation. Drivers spill larger ones to memory, or fail."""


@dataclass(frozen=True, slots=True)
class View:
    """A view of a buffer: `lanes` scalars of `dtype` per element, in memory whose elements are of type `held`."""

    variable: int
    storage: Storage
    held: DType
    dtype: DType
    lanes: int


@dataclass
class _Binding:
    """A storage buffer. It has a variable for each element type and vector width (1 or QUAD) of its accesses."""

    index: int
    variables: dict[tuple[DType, int], int] = field(default_factory=dict)
    written: bool = False


class Memory:
    """All memory of a kernel, addressed by scalar element."""

    def __init__(self, module: Module, body: Body, aliased: bool) -> None:
        """`aliased` is true if two parameters may share memory."""
        self._module = module
        self._body = body
        self._aliased = aliased
        self._bindings: dict[int, _Binding] = {}
        self._views: dict[int, View] = {}
        self._constant: set[int] = set()
        self._structures: dict[tuple[DType, int], int] = {}
        self.shared_bytes = 0
        self.private_bytes = 0

    def bind(self, parameter: tirx.Var, written: bool) -> None:
        """Bind a pointer parameter to the next descriptor; `written` is true if the kernel stores to it."""
        self._bindings[key_of(parameter)] = _Binding(len(self._bindings), written=written)

    @property
    def bindings(self) -> int:
        """The number of storage buffers."""
        return len(self._bindings)

    def declare(self, buffer: tirx.Buffer, data: tirx.Expr) -> None:
        """Declare `buffer` as a view of the memory at the pointer `data`."""
        dtype, lanes = parse(buffer.dtype)
        data = memory_of(data)
        binding = self._bindings.get(key_of(data))
        if binding is not None:
            variable = self._storage(binding, dtype.stored)
            self._views[key_of(buffer)] = View(variable, Storage.STORAGE_BUFFER, dtype.stored, dtype, lanes)
            return
        known = self._views.get(key_of(data))
        if known is None:
            raise UnsupportedError(f"buffer {buffer.name} in memory from outside the kernel")
        if known.held.bits != dtype.bits and dtype != known.dtype:
            raise UnsupportedError(f"{known.held.name} memory used as {dtype.name}")
        self._views[key_of(buffer)] = View(known.variable, known.storage, known.held, dtype, lanes)

    def allocate(self, buffer: tirx.Buffer) -> None:
        """Allocate the array of a new buffer."""
        dtype, lanes = parse(buffer.dtype)
        elements = lanes
        for extent in buffer.shape:
            if not hasattr(extent, "value"):
                raise UnsupportedError(f"buffer {buffer.name} whose size is not constant")
            elements *= int(extent.value)
        scope = str(buffer.scope())
        size = elements * max(dtype.bytes, 4 if dtype.kind == "bool" else 1)
        array = self._module.type(Op.TYPE_ARRAY, dtype.compute(self._module), INT32.constant(self._module, elements))
        if scope.startswith("shared"):
            storage = Storage.WORKGROUP
            self.shared_bytes += size
            variable = self._module.variable(self._pointer(storage, array), storage)
        elif scope in ("local", "global", ""):
            storage = Storage.FUNCTION
            self.private_bytes += size
            variable = self._body.variable(self._pointer(storage, array))
        else:
            raise UnsupportedError(f"memory of scope '{scope}'")
        self._views[key_of(buffer)] = View(variable, storage, dtype, dtype, lanes)

    def view(self, buffer: tirx.Buffer) -> View:
        """The view of a buffer. Raises UnsupportedError if it is not declared."""
        found = self._views.get(key_of(buffer))
        if found is None:
            raise UnsupportedError(f"buffer {buffer.name} without a declaration")
        return found

    def load(self, view: View, index: Scalar) -> Scalar:
        """Load one scalar of a buffer."""
        pointer = self.pointer(view, index)
        type_ = view.held.declare(self._module)
        if view.variable in self._constant:
            loaded = self._body.pure(Op.LOAD, type_, pointer)
        else:
            loaded = self._body.fresh(Op.LOAD, type_, pointer)
        return _seen(Scalar(self._body, view.held, loaded), view.dtype)

    def load_quad(self, view: View, index: Scalar) -> tuple[Scalar, ...] | None:
        """Load QUAD scalars from an index that is a multiple of QUAD; None if the kernel may change them."""
        binding = next((b for b in self._bindings.values() if view.variable in b.variables.values()), None)
        if binding is None or view.variable not in self._constant or view.dtype != view.held:
            return None
        scalar = view.held.compute(self._module)  # extracting an element of a vector counts as arithmetic
        vector = self._module.type(Op.TYPE_VECTOR, scalar, QUAD)
        variable = self._storage(binding, view.held, QUAD)
        place = floor_div(index, index.constant(QUAD))
        members = (INT32.constant(self._module, 0), place.id)
        pointer = self._body.pure(Op.ACCESS_CHAIN, self._pointer(view.storage, vector), variable, *members)
        loaded = self._body.pure(Op.LOAD, vector, pointer)
        parts = (self._body.pure(Op.COMPOSITE_EXTRACT, scalar, loaded, i) for i in range(QUAD))
        return tuple(Scalar(self._body, view.held, part) for part in parts)

    def store(self, view: View, index: Scalar, value: Scalar) -> None:
        """Store one scalar."""
        held = _seen(value, view.held)
        if view.storage == Storage.STORAGE_BUFFER and held.wide is not None:
            held = held.wide.rounded()  # drivers remove the earlier conversion if it is unused
        self._body.effect(Op.STORE, self.pointer(view, index), held.id)

    def pointer(self, view: View, index: Scalar) -> int:
        """A pointer to one scalar."""
        # A storage buffer is a structure with one array.
        outer = (INT32.constant(self._module, 0),) if view.storage == Storage.STORAGE_BUFFER else ()
        type_ = self._pointer(view.storage, view.held.declare(self._module))
        return self._body.pure(Op.ACCESS_CHAIN, type_, view.variable, *outer, index.id)

    def finish(self) -> None:
        """Write the decorations that depend on the whole code. Call it last."""
        for binding in self._bindings.values():
            for variable in binding.variables.values():
                shared = self._aliased or (binding.written and len(binding.variables) > 1)
                self._module.decorate(variable, Decoration.ALIASED if shared else Decoration.RESTRICT)

    def _storage(self, binding: _Binding, held: DType, width: int = 1) -> int:
        if (held, width) not in binding.variables:
            type_ = self._pointer(Storage.STORAGE_BUFFER, self._structure(held, width))
            variable = self._module.variable(type_, Storage.STORAGE_BUFFER)
            self._module.decorate(variable, Decoration.DESCRIPTOR_SET, 0)
            self._module.decorate(variable, Decoration.BINDING, binding.index)
            if not binding.written:
                self._module.decorate(variable, Decoration.NON_WRITABLE)
                if not self._aliased:
                    self._constant.add(variable)
            binding.variables[held, width] = variable
        return binding.variables[held, width]

    def _structure(self, held: DType, width: int) -> int:
        """A structure with one run-time array."""
        if (held, width) not in self._structures:
            element = held.in_buffer(self._module)
            if width > 1:
                element = self._module.type(Op.TYPE_VECTOR, element, width)
            array = self._module.own_type(Op.TYPE_RUNTIME_ARRAY, element)
            self._module.decorate(array, Decoration.ARRAY_STRIDE, held.bytes * width)
            structure = self._module.own_type(Op.TYPE_STRUCT, array)
            self._module.decorate(structure, Decoration.BLOCK)
            self._module.decorate_member(structure, 0, Decoration.OFFSET, 0)
            self._structures[held, width] = structure
        return self._structures[held, width]

    def _pointer(self, storage: Storage, pointee: int) -> int:
        return self._module.type(Op.TYPE_POINTER, storage, pointee)


def _seen(value: Scalar, dtype: DType) -> Scalar:
    """A value from memory as another type: bool is converted from and to its byte, others are bit casts."""
    if value.dtype == dtype:
        return value
    if "bool" in (value.dtype.kind, dtype.kind):
        return value.to(dtype)
    return value.bitcast(dtype)


def memory_of(data: tirx.Expr) -> tirx.Buffer | tirx.Var:
    """The parameter or buffer whose memory a pointer expression refers to."""
    name = getattr(getattr(data, "op", None), "name", "")
    return data.args[0] if name == "tirx.buffer_data" else data


def key_of(node: tirx.Buffer | tirx.Var) -> int:
    """A key for a TVM object during its lifetime. Its own equality operator builds an expression."""
    return int(node.__chandle__())
