"""The launch axes of a kernel: the indices of the work group and of the invocation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heterocc.compiler.lower.vulkan.body import Body
from heterocc.compiler.lower.vulkan.dtypes import UINT32, UnsupportedError
from heterocc.compiler.lower.vulkan.scalar import Scalar, constant
from heterocc.compiler.lower.vulkan.spirv import BuiltIn, Decoration, Module, Op, Storage

if TYPE_CHECKING:
    from tvm import tirx


_BUILT_IN = {"blockIdx": BuiltIn.WORKGROUP_ID, "threadIdx": BuiltIn.LOCAL_INVOCATION_ID}


class Launch:
    """The axes that a kernel reads, and their extents."""

    def __init__(self, module: Module, body: Body) -> None:
        self._module = module
        self._body = body
        self._inputs: dict[BuiltIn, int] = {}
        self._local = [1, 1, 1]
        self._groups: dict[int, int] = {}

    @property
    def interface(self) -> tuple[int, ...]:
        """The ids of the built-in variables that are read."""
        return tuple(self._inputs.values())

    @property
    def local_size(self) -> tuple[int, int, int]:
        """The invocations of a work group in x, y and z."""
        x, y, z = self._local
        return x, y, z

    @property
    def groups(self) -> dict[int, int]:
        """The numbers of work groups by axis, for axes with constant numbers."""
        return dict(self._groups)

    def axis(self, tag: str, extent: tirx.Expr) -> Scalar:
        """The index along an axis such as `threadIdx.x`, as uint32."""
        name, _, letter = tag.partition(".")
        place = "xyz".find(letter) if letter else -1
        if name not in _BUILT_IN or place < 0:
            raise UnsupportedError(f"launch axis {tag}")
        size = getattr(extent, "value", None)
        if name == "threadIdx":
            if size is None:
                raise UnsupportedError("a work group whose size is not constant")
            self._local[place] = max(self._local[place], int(size))
        elif size is not None:
            self._groups[place] = max(self._groups.get(place, 1), int(size))
        if size is not None and int(size) == 1:
            return constant(self._body, UINT32, 0)
        return self._read(_BUILT_IN[name], place)

    def _read(self, built_in: BuiltIn, place: int) -> Scalar:
        word = UINT32.compute(self._module)
        vector = self._module.type(Op.TYPE_VECTOR, word, 3)
        if built_in not in self._inputs:
            pointer = self._module.type(Op.TYPE_POINTER, Storage.INPUT, vector)
            variable = self._module.variable(pointer, Storage.INPUT)
            self._module.decorate(variable, Decoration.BUILT_IN, built_in)
            self._inputs[built_in] = variable
        whole = self._body.pure(Op.LOAD, vector, self._inputs[built_in])
        return Scalar(self._body, UINT32, self._body.pure(Op.COMPOSITE_EXTRACT, word, whole, place))
