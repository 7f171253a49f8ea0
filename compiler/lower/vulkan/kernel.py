"""Compilation of a kernel: from a TIR function, lowered for the device, to a SPIR-V module and its interface."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag
from typing import Literal

import tvm_ffi
from tvm import tirx

from heterocc.compiler.lower.vulkan.body import Body
from heterocc.compiler.lower.vulkan.dtypes import BOOL, UINT32, DType, UnsupportedError, parse
from heterocc.compiler.lower.vulkan.expressions import Context
from heterocc.compiler.lower.vulkan.iterations import iterations
from heterocc.compiler.lower.vulkan.launch import Launch
from heterocc.compiler.lower.vulkan.memory import MAX_PRIVATE_BYTES, Memory, key_of, memory_of
from heterocc.compiler.lower.vulkan.scalar import Scalar
from heterocc.compiler.lower.vulkan.spirv import Capability, Decoration, Module, Op, Storage
from heterocc.compiler.lower.vulkan.statements import Writer

LAUNCH_TAGS = "tirx.kernel_launch_params"


class Feature(IntFlag):
    """The optional features of Vulkan 1.1 that a kernel needs; the bits are those of the package format."""

    INT64 = 1
    FLOAT64 = 2
    FLOAT16 = 4
    INT8 = 8
    STORAGE_8BIT = 16
    STORAGE_16BIT = 32
    INT16 = 64
    SUBGROUP_ARITHMETIC = 128
    NAN16 = 256
    NAN32 = 512
    NAN64 = 1024


_FEATURES: dict[Capability, Feature] = {
    Capability.INT64: Feature.INT64,
    Capability.FLOAT64: Feature.FLOAT64,
    Capability.FLOAT16: Feature.FLOAT16,
    Capability.INT8: Feature.INT8,
    Capability.STORAGE_BUFFER_8BIT: Feature.STORAGE_8BIT,
    Capability.STORAGE_BUFFER_16BIT: Feature.STORAGE_16BIT,
    Capability.INT16: Feature.INT16,
    Capability.GROUP_NON_UNIFORM_ARITHMETIC: Feature.SUBGROUP_ARITHMETIC,
}

_NAN = {16: Feature.NAN16, 32: Feature.NAN32, 64: Feature.NAN64}
"""The features by which arithmetic preserves NaN, infinities and the sign of zero, by the width of the float."""


@dataclass(frozen=True, slots=True)
class Argument:
    """A parameter: a buffer at the binding `place`, or a scalar of the push constants at the byte offset `place`."""

    kind: Literal["buffer", "scalar"]
    dtype: DType | None
    place: int


@dataclass(frozen=True, slots=True)
class Kernel:
    """A compute shader and its interface.

    `launch_tags` are the axes whose extents a launch passes, in order. `local_size` is fixed in the code. `groups` are
    the numbers of work groups, 1 if they are not constant. `buffer_bytes` is the size of the largest storage buffer
    that the kernel declares, 0 if unknown. Sizes are in bytes. `iterations` is the number of loop iterations of an
    invocation.
    """

    name: str
    arguments: tuple[Argument, ...]
    push_bytes: int
    launch_tags: tuple[str, ...]
    local_size: tuple[int, int, int]
    groups: tuple[int, int, int]
    shared_bytes: int
    buffer_bytes: int
    features: Feature
    code: bytes
    iterations: int = 0

    @property
    def buffers(self) -> int:
        """The number of storage buffers."""
        return sum(a.kind == "buffer" for a in self.arguments)


def compile_kernel(name: str, function: tirx.PrimFunc, offered: Feature) -> Kernel:
    """The kernel of a device function that TVM's pipeline has lowered.

    Of the features `offered` it uses only those that preserve NaN; other features are used if the function needs them.
    Raises UnsupportedError if Vulkan code cannot express the function.
    """
    module = Module()
    body = Body(module)
    memory = Memory(module, body, aliased="tirx.noalias" not in function.attrs)
    launch = Launch(module, body)
    context = Context(body, memory)
    arguments, push_bytes = _parameters(function, context)
    Writer(context, launch).write(function.body)
    if memory.private_bytes > MAX_PRIVATE_BYTES:
        raise UnsupportedError(f"arrays of {memory.private_bytes} bytes per invocation")
    memory.finish()
    features = Feature(0)
    for bits, feature in _NAN.items():
        if bits in module.float_widths and feature in offered:
            module.preserve_nan(bits)
            features |= feature
    code = module.assemble(name, launch.local_size, launch.interface, body.words())
    for capability in module.capabilities:
        features |= _FEATURES.get(capability, Feature(0))
    x, y, z = (launch.groups.get(axis, 1) for axis in range(3))
    return Kernel(
        name=name,
        arguments=arguments,
        push_bytes=push_bytes,
        launch_tags=tuple(str(tag) for tag in function.attrs[LAUNCH_TAGS]),
        local_size=launch.local_size,
        groups=(x, y, z),
        shared_bytes=memory.shared_bytes,
        buffer_bytes=_largest_buffer(function),
        features=features,
        code=code,
        iterations=iterations(function.body),
    )


def _parameters(function: tirx.PrimFunc, context: Context) -> tuple[tuple[Argument, ...], int]:
    """Bind pointers to descriptors and read scalars from push constants; return the arguments and bytes of these."""
    written = _written(function)
    arguments: list[Argument] = []
    scalars: list[tuple[tirx.Var, DType, int]] = []
    end = 0
    for parameter in function.params:
        if type(parameter.ty).__name__ == "PointerType":
            arguments.append(Argument("buffer", None, context.memory.bindings))
            context.memory.bind(parameter, key_of(parameter) in written)
            continue
        dtype, lanes = parse(parameter.ty.dtype)
        if lanes != 1:
            raise UnsupportedError("a vector as an argument")
        size = max(4, dtype.bytes)
        end += -end % size
        scalars.append((parameter, dtype, end))
        arguments.append(Argument("scalar", dtype, end))
        end += size
    if scalars:
        _read_push_constants(scalars, context)
    return tuple(arguments), end


def _read_push_constants(scalars: list[tuple[tirx.Var, DType, int]], context: Context) -> None:
    """Read scalars. Narrow ones are read as the low bits of a word, which avoids features for narrow push constants."""
    module, body = context.body.module, context.body
    held = [dtype if dtype.bits >= 32 else UINT32 for _, dtype, _ in scalars]
    structure = module.own_type(Op.TYPE_STRUCT, *(h.compute(module) for h in held))
    module.decorate(structure, Decoration.BLOCK)
    for member, (_, _, offset) in enumerate(scalars):
        module.decorate_member(structure, member, Decoration.OFFSET, offset)
    pointer = module.type(Op.TYPE_POINTER, Storage.PUSH_CONSTANT, structure)
    variable = module.variable(pointer, Storage.PUSH_CONSTANT)
    for member, ((parameter, dtype, _), stored) in enumerate(zip(scalars, held, strict=True)):
        type_ = stored.compute(module)
        chain = module.type(Op.TYPE_POINTER, Storage.PUSH_CONSTANT, type_)
        place = body.pure(Op.ACCESS_CHAIN, chain, variable, UINT32.constant(module, member))
        word = Scalar(body, stored, body.pure(Op.LOAD, type_, place))
        context.variables[key_of(parameter)] = (_narrowed(word, dtype),)


def _narrowed(word: Scalar, dtype: DType) -> Scalar:
    if dtype == word.dtype:
        return word
    if dtype == BOOL:
        return (word & 0xFF).differs(0)
    dtype.compute(word.body.module)  # declares the capability, as a push constant does not
    if dtype.is_float:
        return word.to(DType("uint", dtype.bits)).bitcast(dtype)
    return word.to(dtype)


def _written(function: tirx.PrimFunc) -> frozenset[int]:
    """The pointer parameters whose memory the kernel stores to."""
    source: dict[int, int] = {}
    stored: list[int] = []

    def declared(node: tirx.DeclBuffer) -> None:
        source[key_of(node.buffer)] = key_of(memory_of(node.data))

    tvm_ffi.structural_walk(
        function.body,
        [(tirx.DeclBuffer, declared), (tirx.BufferStore, lambda node: stored.append(key_of(node.buffer)))],
        order="post",
    )
    found = set()
    for buffer in stored:
        place = buffer
        while place in source:
            place = source[place]
        found.add(place)
    return frozenset(found)


def _largest_buffer(function: tirx.PrimFunc) -> int:
    """The size in bytes of the largest buffer of a parameter."""
    sizes = [0]

    def declared(node: tirx.DeclBuffer) -> None:
        dtype, lanes = parse(node.buffer.dtype)
        size = dtype.bytes * lanes
        for extent in node.buffer.shape:
            size *= int(getattr(extent, "value", 0))
        sizes.append(size)

    tvm_ffi.structural_walk(function.body, [(tirx.DeclBuffer, declared)], order="post")
    return max(sizes)
