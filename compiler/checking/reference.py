"""ONNX Runtime as the reference: runs the imported model and returns the requested values."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx

from heterocc.artifacts.dtypes import NARROW, is_narrow
from heterocc.artifacts.errors import Hint, InputError, ModelRunError
from heterocc.artifacts.foreign import pass_foreign
from heterocc.artifacts.packed import contiguous
from heterocc.compiler.checking.half_reference import SCALE, round_products, round_values, rounded
from heterocc.compiler.checking.run_memory import RunLimit
from heterocc.compiler.files.memory import Memory
from heterocc.compiler.files.scratch import scratch_folder
from heterocc.compiler.importer.draft.draft import STUB_LOCATION, nodes_of
from heterocc.compiler.importer.model import ImportedModel
from heterocc.compiler.importer.onnx_tools.complaint import BEYOND, complaint
from heterocc.compiler.importer.onnx_tools.exact_products import with_exact_products
from heterocc.compiler.importer.onnx_tools.late_constants import compute_constants_late
from heterocc.compiler.importer.onnx_tools.safe import safe_model
from heterocc.compiler.lower.half.policy import rounded_values
from heterocc.compiler.lower.half.products import product_nodes
from heterocc.compiler.operators.table import rounds_if_packed
from heterocc.runtime.execute.narrow import dtype_of, from_ort, ort_value
from heterocc.runtime.execute.ort_session import onnxruntime_package, open_session, session_options

SECONDS = 600
"""The time limit in seconds of one run of a model; a loop may have any number of iterations."""

_SHARED = 1 << 20
"""Bytes from which a session uses a weight in place."""

_SIZES = ("tensor(int32)", "tensor(int64)")

_CUT = " as it was computed"

_SHAKEN = 1 << 18
"""Elements that are perturbed at a time."""


class Stop:
    """Ends the runs of references from another thread: those that go on, and any that begins later."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._limits: list[Any] = []
        self._stopped = False

    def now(self) -> None:
        """End all runs; they raise an error."""
        with self._lock:
            self._stopped = True
            for limit in self._limits:
                limit.terminate = True

    def watch(self, limit: Any) -> None:
        """Let `now` end the run with these options of ONNX Runtime."""
        with self._lock:
            self._limits.append(limit)
            limit.terminate = self._stopped


def session_of(proto: onnx.ModelProto, weights: Mapping[str, Any], most: int | None = None) -> Any:
    """A session without optimisations for one run; `weights` are external initializers, which must outlive it.

    It changes the order of the nodes. A run that needs more than `most` bytes for its values at a time fails.

    Raises the errors of ONNX Runtime.
    """
    options = session_options(optimise="none")
    if not any(map(rounds_if_packed, nodes_of(proto.graph.node))):
        options.add_session_config_entry("session.disable_prepacking", "1")  # most sessions run once
    proto = safe_model(with_exact_products(proto))
    compute_constants_late(proto, options)
    with _given(options, weights):
        return open_session(proto.SerializeToString(), options, most=most)


@contextmanager
def _given(options: Any, weights: Mapping[str, Any]) -> Iterator[None]:
    """Give weights to the session that is opened meanwhile: large ones in place, of which it would else make copies.

    It wants the file that those say they are in, and reads it only for what follows from the elements of a constant
    before any node runs, such as sizes: integers that may be sizes are copied.
    """
    shared = {n: v for n, v in weights.items() if v.tensor_size_in_bytes() >= _SHARED and v.data_type() not in _SIZES}
    copied = {name: value for name, value in weights.items() if name not in shared}
    if copied:
        options.add_external_initializers(list(copied), list(copied.values()))
    if not shared:
        yield
        return
    with scratch_folder("weights") as folder:
        with (folder / STUB_LOCATION).open("wb") as file:  # of zeros that take no space
            file.truncate(max(value.tensor_size_in_bytes() for value in shared.values()))
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
        for name, value in shared.items():
            options.add_initializer(name, value)
        yield


def run_session(
    session: Any, outputs: Sequence[str], given: Mapping[str, Any], stop: Stop | None, most: float | None = None
) -> Sequence[Any]:
    """The outputs of one run. Raises the errors of ONNX Runtime, and InputError after SECONDS, or `most` of them."""
    seconds = SECONDS if most is None else min(most, SECONDS)
    limit = onnxruntime_package().RunOptions()
    limit.log_severity_level = 4
    if stop is not None:
        stop.watch(limit)
    timer = threading.Timer(seconds, setattr, (limit, "terminate", True))
    timer.daemon = True
    timer.start()
    try:
        return _run_until(session, outputs, given, limit)
    except Exception as error:
        pass_foreign(error)
        if not limit.terminate:
            raise
        raise InputError(
            f"ONNX Runtime has not run the model after {seconds} s",
            hint="give inputs of less work" + Hint(" (`inputs`)", " with --inputs"),
        ) from error
    finally:
        timer.cancel()


def _run_until(session: Any, outputs: Sequence[str], given: Mapping[str, Any], limit: Any) -> Sequence[Any]:
    written = any(dtype_of(o.type) in NARROW for o in session.get_outputs())
    if not written and not any(is_narrow(v) for v in given.values()):
        return [_apart(v) for v in session.run(list(outputs), given, limit)]
    values = {name: ort_value(v) if isinstance(v, np.ndarray) else v for name, v in given.items()}
    return [_apart(from_ort(v)) for v in session.run_with_ort_values(list(outputs), values, limit)]


def _apart(value: Any) -> Any:
    """A copy of an array: one of ONNX Runtime's keeps all memory that its session took for values of the run."""
    return value.copy() if isinstance(value, np.ndarray) else value


class Reference:
    """The model (or some of its nodes) in ONNX Runtime, without its optimisations, so that every value can be read.

    Some optimisations change results: a Pad with zeros that is fused into MaxPool pads with -inf.

    `inputs` and `outputs` are names of the imported graph. With `shaken`, inputs and weights are perturbed in their
    last bits, so that results show the effect of rounding alone. Values that the nodes in `half` write, and weights
    that they read, are rounded to float16 if a device may do so; factors of the products of the nodes in `paired` are
    rounded to bfloat16. Nodes that read a value of `cut` read that array, not the value that another node computes.
    `stop` ends runs early, and those beyond `limit` fail. Uses one CPU session. Not thread-safe.

    Raises ModelRunError if ONNX Runtime finds the model invalid, InputError if it only lacks one of its operators.
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
        paired: Collection[str] = (),
        cut: Mapping[str, np.ndarray[Any, Any]] | None = None,
        stop: Stop | None = None,
        limit: RunLimit | None = None,
    ) -> None:
        graph = model.graph
        self._model = model
        self._stop = stop
        self._most = None if limit is None else limit.nbytes
        self._seconds = None if limit is None else limit.seconds
        self._whole = nodes is None
        self._change = _shaken if shaken else contiguous
        self.inputs = tuple(graph.inputs if inputs is None else inputs)
        self._aliases = [o for o in outputs if o in self.inputs]
        self._constants = {o: model.weights[o] for o in outputs if o in graph.constants}
        self.outputs = tuple(dict.fromkeys(o for o in outputs if o not in self.inputs and o not in graph.constants))
        self._session: Any = None
        if not self.outputs:
            return
        chosen = tuple(n.name for n in graph.nodes) if nodes is None else tuple(nodes)
        proto = model.subgraph(chosen, self.inputs, self.outputs)
        values, weights = rounded_values(model, half)
        if half:
            round_values(proto, values, weights)
        if paired:
            round_products(proto, product_nodes(model, paired))
        self._given = _cut(proto, cut or {})
        names = [i.name for i in proto.graph.initializer if i.external_data]
        given = {n: rounded(model.weights[n]) if n in weights else model.weights[n] for n in names}
        # ONNX Runtime keeps no reference to these arrays: they must outlive the session.
        memory = Memory(array.nbytes for array in given.values() if shaken and _is_shaken(array))
        changed = {n: _shaken(array, memory) if shaken else contiguous(array) for n, array in given.items()}
        self._weights = {n: ort_value(array) for n, array in changed.items()}
        try:
            self._session = session_of(proto, self._weights, self._most)
        except Exception as error:  # its classes have no common base; it lacks an operator for a type, for instance
            pass_foreign(error)
            raise self._cannot_run(error) from error

    def run(self, feed: Mapping[str, Any], scale: float = 1.0) -> dict[str, Any]:
        """The requested values, by name; a model that rounds uses multiples of `scale`.

        Raises ModelRunError if the model fails on `feed`, InputError if ONNX Runtime cannot run it, or not within
        SECONDS.
        """
        result: dict[str, Any] = {name: feed[name] for name in self._aliases}
        result.update(self._constants)
        if self._session is not None:
            wanted = {i.name for i in self._session.get_inputs()}
            given = {k: v if not isinstance(v, np.ndarray) else self._change(v) for k, v in feed.items() if k in wanted}
            given.update((name, self._change(array)) for name, array in self._given.items())
            if SCALE in wanted:
                given[SCALE] = np.array(scale, np.float32)
            try:
                values = run_session(self._session, self.outputs, given, self._stop, self._seconds)
            except InputError:
                raise
            except Exception as error:
                pass_foreign(error)
                # ONNX Runtime raises bare C++ exceptions of several types; all mean that this feed does not run.
                raise self._cannot_run(error) from error
            result.update(zip(self.outputs, values, strict=True))
        return result

    def _cannot_run(self, error: Exception) -> InputError:
        """The error for ONNX Runtime's exception, with the user's labels and input names."""
        found, graph = complaint(error), self._model.graph
        if found.reason == BEYOND:
            return InputError(
                f"a run needs more than {self._most} bytes for its values at a time",
                hint="give inputs of less work" + Hint(" (`inputs`)", " with --inputs"),
            )
        node = graph.node_by_name.get(found.node or "")
        text = found.sentence(None if node is None else node.label)
        if found.excusable:
            return InputError(
                f"ONNX Runtime cannot run the model: {text}",
                hint=Hint(
                    "give real inputs (`inputs`), or compile with check=False",
                    "give real inputs with --inputs, or compile with --no-check",
                ),
            )
        shapes = "; ".join(self._model.shape_texts()) if self._whole else ""
        return ModelRunError(
            f"ONNX Runtime refuses the model{f' at {shapes}' if shapes else ''}: {text}",
            hint="give inputs that the model takes" + Hint(" (`inputs`)", " with --inputs"),
        )


def _cut(proto: onnx.ModelProto, values: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    """Make nodes read new inputs in place of these values; returns the arrays by the names of the inputs.

    Bodies of nodes still read the computed values.
    """
    given = {}
    for node in proto.graph.node:
        for place, name in enumerate(node.input):
            if name in values:
                node.input[place] = f"{name}{_CUT}"
                given[f"{name}{_CUT}"] = contiguous(values[name])
    for name, array in given.items():
        kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        proto.graph.input.append(onnx.helper.make_tensor_value_info(name, kind, array.shape))
    return given


def _is_shaken(array: np.ndarray[Any, Any]) -> bool:
    return array.dtype.kind == "f" and not is_narrow(array)


def _shaken(array: np.ndarray[Any, Any], memory: Memory | None = None) -> np.ndarray[Any, Any]:
    """The array, in `memory`, with a reproducible perturbation of floating-point values; others are unchanged.

    By 8 units of the last place in 32 bits, the difference of sums of hundreds of terms in another order. By one unit
    in 16 bits, which are summed in 32 bits.
    """
    if not _is_shaken(array):
        return contiguous(array)
    units = 1 if array.dtype == np.float16 else 8
    draw, kind = np.random.default_rng(array.size), np.finfo(array.dtype)
    memory = memory or Memory(())
    found: np.ndarray[Any, Any] = memory.take(array.nbytes).view(array.dtype).reshape(array.shape)
    given, written = array.reshape(-1), found.reshape(-1)
    for start in range(0, array.size, _SHAKEN):  # in pieces, as what it takes has 64 bits
        piece = given[start : start + _SHAKEN]
        shaken = piece * (1.0 + units * float(kind.eps) * draw.standard_normal(piece.size))
        # Masks are often the largest number that there is.
        bounded = np.where(np.isfinite(piece), np.clip(shaken, float(kind.min), float(kind.max)), piece)
        written[start : start + _SHAKEN] = bounded
    return found
