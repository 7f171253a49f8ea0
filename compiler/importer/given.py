"""The model as it was given: as it was read, before the import changed anything but the shapes of inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import onnx

from heterocc.compiler.importer.draft.draft import INLINE_BYTES, Draft, to_stub, to_tensor


@dataclass(frozen=True, slots=True)
class GivenModel:
    """The nodes of the model, without its constants, and these in `weights`, by the model's own names.

    `names` are the model's own names of values by those in the imported graph, as far as they are still there.
    """

    proto: onnx.ModelProto
    weights: Mapping[str, np.ndarray]
    names: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, draft: Draft) -> GivenModel:
        """The model of a draft that was just read."""
        proto = onnx.ModelProto()
        proto.CopyFrom(draft.model)
        return cls(proto, dict(draft.weights))

    def take_inputs(self, draft: Draft) -> None:
        """Take over the inputs of a draft, whose shapes the user may have fixed."""
        del self.proto.graph.input[:]
        self.proto.graph.input.extend(draft.graph.input)

    def renamed(self, names: Mapping[str, str]) -> GivenModel:
        """The model with the names of its values by those in the imported graph."""
        return replace(self, names=names)

    def with_constants(self) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
        """The model with all constants; the large ones are stubs, and their arrays are given beside it."""
        proto, large = onnx.ModelProto(), {}
        proto.CopyFrom(self.proto)
        for name, array in self.weights.items():
            if array.nbytes <= INLINE_BYTES or array.dtype == object:
                proto.graph.initializer.append(to_tensor(name, array))
            else:
                proto.graph.initializer.append(to_stub(name, array))
                large[name] = array
        return proto, large
