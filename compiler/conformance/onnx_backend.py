"""heterocc as an ONNX backend: the interface of `onnx.backend.base`.

    import heterocc.compiler.conformance.onnx_backend as backend

    prepared = backend.prepare(model, "CPU")
    outputs = prepared.run([x, y])

A device is a list as in `--devices`: `CPU`, `OPENCL,CPU`, `CPU,ORT`. Further keywords are fields of `CompileOptions`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import checker, helper
from onnx.backend.base import Backend, BackendRep, namedtupledict

from heterocc.artifacts.errors import FeedError, HeteroccError
from heterocc.compiler.devices.names import resolve_devices
from heterocc.compiler.pipeline.compile import compile_model
from heterocc.runtime import load
from heterocc.runtime.session import Session

Inputs = Mapping[str, Any] | Sequence[Any] | Any
"""Values by name, in the order of the model's inputs, or the value of the only input."""


class HeteroccRep(BackendRep):  # type: ignore[misc]  # onnx has no types here
    """A compiled and loaded model. It must be closed, or used in a `with` statement, to free the bundle early."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def run(self, inputs: Inputs, **kwargs: Any) -> tuple[Any, ...]:
        """The outputs, by position and by name. Keywords are those of `Session.run`.

        Raises the errors of `Session.run`; FeedError (HC404) also for a wrong number of inputs.
        """
        names = [item.name for item in self.session.inputs]
        if not isinstance(inputs, Mapping):
            given = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
            if len(given) != len(names):
                raise FeedError(
                    f"the model has {len(names)} inputs, not {len(given)}: {', '.join(names)}",
                    hint="give a value for each, or a mapping by name",
                )
            inputs = dict(zip(names, given, strict=True))
        feed = {name: np.asarray(v) if isinstance(v, np.generic | int | float) else v for name, v in inputs.items()}
        results = self.session.run(feed, **kwargs)
        found = tuple(results[item.name] for item in self.session.outputs)
        outputs: tuple[Any, ...] = namedtupledict("Outputs", [item.name for item in self.session.outputs])(*found)
        return outputs

    def close(self) -> None:
        """Release the session."""
        self.session.close()

    def __enter__(self) -> HeteroccRep:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class HeteroccBackend(Backend):  # type: ignore[misc]  # onnx has no types here
    """Compiles models with heterocc and runs them in this process."""

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Return whether the device list can run every node of the model. Keywords are those of `prepare`."""
        with tempfile.TemporaryDirectory() as folder:
            try:
                options = {**kwargs, "devices": device, "stop_after": "partition"}
                compile_model(model, Path(folder, "model.hcb"), **options)
            except HeteroccError:
                return False
        return True

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> HeteroccRep:
        """Compile and load a model. Keywords are fields of `CompileOptions`.

        Raises the errors of `compile_model` and `load`.
        """
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "model.hcb")
            compile_model(model, path, devices=device, **kwargs)
            # The session reads a copy, so the file is not needed any more.
            return HeteroccRep(load(path, copy=True))

    @classmethod
    def run_model(cls, model: onnx.ModelProto, inputs: Inputs, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """Compile a model and run it once; the outputs as those of `HeteroccRep.run`."""
        with cls.prepare(model, device, **kwargs) as prepared:
            return prepared.run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Inputs,
        device: str = "CPU",
        outputs_info: Sequence[tuple[np.dtype[Any], tuple[int, ...]]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        """Run a single node. `outputs_info` has the dtype and shape of each output; `opset_version` is a keyword.

        `inputs` has a value for each input that the node names.
        """
        version = kwargs.pop("opset_version", onnx.defs.onnx_opset_version())
        names = list(dict.fromkeys(name for name in node.input if name))
        given = [inputs[n] for n in names] if isinstance(inputs, Mapping) else list(inputs)
        arrays = dict(zip(names, map(np.asarray, given), strict=True))
        written = [name for name in node.output if name]
        infos = (
            [helper.make_value_info(name, onnx.TypeProto()) for name in written]
            if outputs_info is None
            else [
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), shape)
                for name, (dtype, shape) in zip(written, outputs_info, strict=True)
            ]
        )
        taken = [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in arrays.items()
        ]
        graph = helper.make_graph([node], "node", taken, infos)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid(node.domain, version)])
        if outputs_info is None:
            inferred = onnx.shape_inference.infer_shapes(model).graph
            types = {info.name: info.type for info in (*inferred.value_info, *inferred.output)}
            for info in model.graph.output:
                info.type.CopyFrom(types[info.name])
        checker.check_model(model)
        return cls.run_model(model, arrays, device, **kwargs)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Return whether every device of a list is on this machine."""
        try:
            devices, _ = resolve_devices(device)
        except HeteroccError:
            return False
        return all(item.present for item in devices)


is_compatible = HeteroccBackend.is_compatible
prepare = HeteroccBackend.prepare
run_model = HeteroccBackend.run_model
run_node = HeteroccBackend.run_node
supports_device = HeteroccBackend.supports_device

__all__ = ["HeteroccBackend", "HeteroccRep", "is_compatible", "prepare", "run_model", "run_node", "supports_device"]
