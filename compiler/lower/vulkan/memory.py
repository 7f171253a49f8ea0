"""Buffers: storage buffers behind descriptors, shared memory of a work group, arrays of one invocation."""

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
"""Elements of the widest vector that a shader loads at once."""

MAX_PRIVATE_BYTES = 1 << 16
"""Arrays of an invocation, at most: drivers put what does not fit into registers in memory, or fail."""


@dataclass(frozen=True, slots=True)
class View:
    """A buffer as one name of it sees it: `lanes` scalars of `dtype` per element, over memory of elements `held`."""

    variable: int
    storage: Storage
    held: DType
    dtype: DType
    lanes: int


@dataclass
class _Binding:
    """A storage buffer: one variable for each element type that it is seen as, alone (1) or in vectors (QUAD)."""

    index: int
    variables: dict[tuple[DType, int], int] = field(default_factory=dict)
    written: bool = False


class Memory:
    """All memory of a kernel. Elements are addressed one by one, in scalars."""

    def __init__(self, module: Module, body: Body, aliased: bool) -> None:
        """`aliased` says that two parameters may share memory."""
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
        """Give a pointer parameter the next descriptor; `written` says whether the kernel stores to it."""
        self._bindings[key_of(parameter)] = _Binding(len(self._bindings), written=written)

    @property
    def bindings(self) -> int:
        """The number of storage buffers."""
        return len(self._bindings)

    def declare(self, buffer: tirx.Buffer, data: tirx.Expr) -> None:
        """Make `buffer` a name of the memory behind the pointer `data`."""
        dtype, lanes = parse(buffer.dtype)
        data = memory_of(data)
        binding = self._bindings.get(key_of(data))
        if binding is not None:
            variable = self._storage(binding, dtype.stored)
            self._views[key_of(buffer)] = View(variable, Storage.STORAGE_BUFFER, dtype.stored, dtype, lanes)
            return
        known = self._views.get(key_of(data))
        if known is None:
            raise UnsupportedError(f"buffer {buffer.name} lies in memory that the kernel does not own")
        if known.held.bits != dtype.bits and dtype != known.dtype:
            raise UnsupportedError(f"{known.held.name} memory is used as {dtype.name}")
        self._views[key_of(buffer)] = View(known.variable, known.storage, known.held, dtype, lanes)

    def allocate(self, buffer: tirx.Buffer) -> None:
        """Make the array of a new buffer."""
        dtype, lanes = parse(buffer.dtype)
        elements = lanes
        for extent in buffer.shape:
            if not hasattr(extent, "value"):
                raise UnsupportedError(f"the size of buffer {buffer.name} is not a constant")
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
        """What is known of a buffer."""
        found = self._views.get(key_of(buffer))
        if found is None:
            raise UnsupportedError(f"buffer {buffer.name} is not declared")
        return found

    def load(self, view: View, index: Scalar) -> Scalar:
        """One scalar of a buffer."""
        pointer = self.pointer(view, index)
        type_ = view.held.declare(self._module)
        if view.variable in self._constant:
            loaded = self._body.pure(Op.LOAD, type_, pointer)
        else:
            loaded = self._body.fresh(Op.LOAD, type_, pointer)
        return _seen(Scalar(self._body, view.held, loaded), view.dtype)

    def load_quad(self, view: View, index: Scalar) -> tuple[Scalar, ...] | None:
        """QUAD scalars from an index on that is a multiple of QUAD; None where the kernel may change them."""
        binding = next((b for b in self._bindings.values() if view.variable in b.variables.values()), None)
        if binding is None or view.variable not in self._constant or view.dtype != view.held:
            return None
        scalar = view.held.compute(self._module)  # what takes an element out of a vector counts as arithmetic
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
            held = held.wide.rounded()  # drivers drop the conversion before where nothing else uses it
        self._body.effect(Op.STORE, self.pointer(view, index), held.id)

    def pointer(self, view: View, index: Scalar) -> int:
        """A pointer to one scalar."""
        # A storage buffer is a structure around its array.
        outer = (INT32.constant(self._module, 0),) if view.storage == Storage.STORAGE_BUFFER else ()
        type_ = self._pointer(view.storage, view.held.declare(self._module))
        return self._body.pure(Op.ACCESS_CHAIN, type_, view.variable, *outer, index.id)

    def finish(self) -> None:
        """Decorate what is known only once all code is written."""
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
        """A structure of one array without end."""
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
    """A value out of memory as another type: bool against its byte, everything else bit by bit."""
    if value.dtype == dtype:
        return value
    if "bool" in (value.dtype.kind, dtype.kind):
        return value.to(dtype)
    return value.bitcast(dtype)


def memory_of(data: tirx.Expr) -> tirx.Buffer | tirx.Var:
    """The parameter or buffer that a pointer expression is the memory of."""
    name = getattr(getattr(data, "op", None), "name", "")
    return data.args[0] if name == "tirx.buffer_data" else data


def key_of(node: tirx.Buffer | tirx.Var) -> int:
    """What identifies a TVM object as long as it lives; its own equality builds an expression."""
    return int(node.__chandle__())
