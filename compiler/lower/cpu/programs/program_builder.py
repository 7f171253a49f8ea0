"""What the parts of a split use of the program under construction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import onnx

from heterocc.artifacts.errors import LoweringError
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.symbols.symbols import Symbols
from heterocc.compiler.lower.backend import PartitionJob
from heterocc.compiler.lower.cpu.programs.steps import Step
from heterocc.passes.graph import Value

Dims = tuple[int | str | None, ...]
Shaped = tuple[str, Dims]
"""An element type and a shape."""


class Builder(Protocol):
    """The program under construction: see `split`."""

    job: PartitionJob
    model: ImportedModel
    opset: int
    symbols: Symbols
    values: dict[str, Value]
    protos: list[onnx.NodeProto]
    arrays: dict[str, np.ndarray[Any, Any]]
    owner: str

    def add(
        self,
        op_type: str,
        inputs: Sequence[str],
        output: str,
        like: str | None = None,
        value: Shaped | None = None,
        domain: str = "",
        attributes: Sequence[onnx.AttributeProto] = (),
    ) -> str:
        """Add a node."""
        ...

    def constant(self, name: str, array: np.ndarray[Any, Any]) -> str:
        """Add a constant."""
        ...

    def held(self, name: str) -> str:
        """The value that a step reads."""
        ...

    def close(self, steps: list[Step]) -> None:
        """End the straight code that is being collected."""
        ...

    def measure(self, sizes: str, names: tuple[str, ...], steps: list[Step]) -> None:
        """End the straight code, and let the elements of a tensor be the sizes of these names."""
        ...

    def enter(self, body: onnx.GraphProto) -> None:
        """Add the constants of a body."""
        ...

    def sequence(self, nodes: Sequence[onnx.NodeProto], steps: list[Step]) -> None:
        """Add the steps of nodes."""
        ...

    def refuse(self, node: onnx.NodeProto, reason: str) -> LoweringError:
        """The error for a node that has no program."""
        ...
