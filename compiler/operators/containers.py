"""What the rules of sequences and of optional values share; and what is known of copies of these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import onnx

from heterocc.artifacts.dtypes import Container, container
from heterocc.compiler.symbolic.containers import Held, Typed
from heterocc.compiler.symbolic.opened import Opened

Registers = Sequence[str | None]
"""The registers of a node's inputs in a program; None for an absent input."""

Call = tuple[str, tuple[Any, ...]]
"""A function of the runtime, and its arguments: registers, numbers, or None for what is absent. The function without a
name gives its argument."""

Caller = Callable[[onnx.NodeProto, Registers, Callable[[str], int]], Call]
"""The call that computes a node, whose last argument gives the rank of a value. Raises NotImplementedError if there is
none."""


def kind_of(held: Held | None) -> Container | None:
    """What a value is if it is a sequence or optional."""
    return None if held is None else container(held.dtype)


def same_container(_node: onnx.NodeProto, given: Sequence[Held | None]) -> list[Typed] | None:
    """Identity: what it is given, if that is a container."""
    held = given[0]
    if held is None or held.elements is None:
        return None
    return [(held.dtype, held.elements)]


def replaced_optional(kind: Container, *, optional: bool) -> str:
    """The text of a type that is or is not optional."""
    return Container(kind.dtype, kind.sequence, optional).text


def second(given: Registers) -> str | None:
    """The second input, if there is one."""
    return given[1] if len(given) > 1 else None


def copied(_node: onnx.NodeProto, given: Registers, _rank: Callable[[str], int]) -> Call:
    """The call of a copy: arrays never change."""
    return "", (given[0],)


def become(writer: Any, held: Opened, output: str) -> bool:
    """Make a value that is known to be another one; return whether a node had to be written."""
    if isinstance(held, str):
        writer.copy(held, output)
        return True
    writer.known[output] = held
    return False


def open_copy(writer: Any, node: onnx.NodeProto) -> bool:
    """Identity: what is known of its input."""
    if node.input[0] in writer.known:
        writer.known[node.output[0]] = writer.known[node.input[0]]
    return False
