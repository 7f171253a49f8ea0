"""ONNX Runtime as the reference: runs the imported model and tells every value asked for."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort

from heterocc.artifacts.errors import Hint, InputError
from heterocc.compiler.half import rounded_values
from heterocc.compiler.half_reference import SCALE, round_values, rounded
from heterocc.compiler.imported import ImportedModel


class Reference:
    """The model (or some of its nodes) in ONNX Runtime, without its optimisations, so that every value can be read.

    Some of these change results: a Pad with zeros that is fused into MaxPool pads with -inf.

    `inputs` and `outputs` are names of the imported graph. With `shaken` inputs and weights are changed in their last
    bits: results then differ as far as rounding alone takes them. What the nodes in `half` write and the weights they
    read is rounded to float16 where a device that computes them may do so. One CPU session; not safe to share between
    threads. Raises InputError when ONNX Runtime lacks an operator of the model.
    """

    def __init__(
        self,
        model: ImportedModel,
        outputs: Sequence[str],
        *,
        nodes: Sequence[str] | None = None,
        inputs: Sequence[str] | None = None,
        shaken: bool = False,
        half: Collection[str] = (),
    ) -> None:
        graph = model.graph
        self._change = _shaken if shaken else _contiguous
        self.inputs = tuple(graph.inputs if inputs is None else inputs)
        self._aliases = [o for o in outputs if o in self.inputs]
        self._constants = {o: model.weights[o] for o in outputs if o in graph.constants}
        self.outputs = tuple(dict.fromkeys(o for o in outputs if o not in self.inputs and o not in graph.constants))
        self._session: ort.InferenceSession | None = None
        if not self.outputs:
            return
        chosen = tuple(n.name for n in graph.nodes) if nodes is None else tuple(nodes)
        proto = model.subgraph(chosen, self.inputs, self.outputs)
        values, weights = rounded_values(model, half)
        if half:
            round_values(proto, values, weights)
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 3
        names = [i.name for i in proto.graph.initializer if i.external_data]
        # ONNX Runtime keeps no reference to these arrays: they must outlive the session.
        given = (rounded(model.weights[n]) if n in weights else model.weights[n] for n in names)
        self._weights = [ort.OrtValue.ortvalue_from_numpy(self._change(array)) for array in given]
        if names:
            options.add_external_initializers(names, self._weights)
        try:
            self._session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # its classes have no common base; it lacks an operator for a type, for instance
            raise _cannot_run(error) from error

    def run(self, feed: Mapping[str, Any], scale: float = 1.0) -> dict[str, Any]:
        """Every value asked for, by name; of a model that rounds, in multiples of `scale`.

        Raises InputError when ONNX Runtime cannot run the model on `feed`.
        """
        result: dict[str, Any] = {name: feed[name] for name in self._aliases}
        result.update(self._constants)
        if self._session is not None:
            wanted = {i.name for i in self._session.get_inputs()}
            given = {k: v if not isinstance(v, np.ndarray) else self._change(v) for k, v in feed.items() if k in wanted}
            if SCALE in wanted:
                given[SCALE] = np.array(scale, np.float32)
            try:
                values = self._session.run(list(self.outputs), given)
            except Exception as error:
                # ONNX Runtime raises bare C++ exceptions of several types; all mean that this feed does not run.
                raise _cannot_run(error) from error
            result.update(zip(self.outputs, values, strict=True))
        return result


def _cannot_run(error: Exception) -> InputError:
    return InputError(
        f"ONNX Runtime cannot run the model: {str(error).splitlines()[0]}",
        hint=Hint(
            "give real inputs (`inputs`), or compile with check=False",
            "give real inputs with --inputs, or compile with --no-check",
        ),
    )


def _shaken(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Floating-point values a little off, the same for the same array; others as they are.

    By 8 units of the last place in 32 bits: sums of hundreds of terms in another order differ by that. By one in 16
    bits, which are summed in 32.
    """
    if array.dtype.kind != "f":
        return _contiguous(array)
    units = 1 if array.dtype == np.float16 else 8
    noise = np.random.default_rng(array.size).standard_normal(array.shape)
    kind = np.finfo(array.dtype)
    shaken = array * (1.0 + units * float(kind.eps) * noise)
    # Masks are often the largest number that there is.
    bounded = np.where(np.isfinite(array), np.clip(shaken, float(kind.min), float(kind.max)), array)
    return np.asarray(bounded, dtype=array.dtype, order="C")


def _contiguous(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    # Not ascontiguousarray: that makes one-element vectors of scalars.
    return np.asarray(array, order="C")
