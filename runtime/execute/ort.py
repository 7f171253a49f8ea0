"""Partitions that stay ONNX: ONNX Runtime sessions over the chain's own buffers."""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

import numpy as np

from heterocc.artifacts.dtypes import NARROW
from heterocc.artifacts.errors import BundleError, BundleManifestError, DeviceError, DriverMissingError
from heterocc.artifacts.foreign import pass_foreign
from heterocc.artifacts.manifest import Partition, TensorSpec
from heterocc.runtime import forks
from heterocc.runtime.execute.faults import first_line
from heterocc.runtime.execute.narrow import from_ort, ort_value, to_ort
from heterocc.runtime.execute.onnx_wire import unexpected_external
from heterocc.runtime.execute.ort_session import limit_folding, onnxruntime_package, open_session, session_options
from heterocc.runtime.feeds import Array
from heterocc.runtime.native import cpu_api

_OLDEST = (1, 31)
"""The first onnxruntime of which it is known that it follows neither absolute paths nor links in a model's bytes."""

_NOWHERE = "/dev/null"
"""Given as the folder of models' external data: not a folder, so that no file below it can be opened."""

Shapes = tuple[tuple[int, ...], ...]
"""The shapes of a feed's arrays, in the order of the inputs."""


def onnxruntime() -> Any:
    """The onnxruntime package; imported by the first partition that needs it.

    Raises DriverMissingError if it is not installed or too old.
    """
    try:
        ort = onnxruntime_package()
    except ImportError as error:
        raise DriverMissingError(
            "the bundle has partitions for ONNX Runtime, and it is not installed",
            hint="pip install onnxruntime, or compile for devices without ORT",
        ) from error
    if too_old(ort.__version__):
        raise DriverMissingError(
            f"onnxruntime {ort.__version__} is too old: it reads files outside a model's folder",
            hint=f"pip install 'onnxruntime>={OLDEST_TEXT}'",
        )
    forks.end_without_handlers()
    return ort


def too_old(version: str) -> bool:
    """Whether a release of onnxruntime may read files that a model's author chose."""
    numbers = re.match(r"(\d{1,6})\.(\d{1,6})", version)
    return numbers is None or (int(numbers[1]), int(numbers[2])) < _OLDEST


OLDEST_TEXT = ".".join(map(str, _OLDEST))
"""The oldest onnxruntime that is accepted."""


class OrtPartition:
    """An ONNX partition's session, shared by all contexts (ONNX Runtime sessions are thread-safe)."""

    def __init__(
        self,
        part: Partition,
        values: Sequence[TensorSpec],
        model: bytes,
        weights: Mapping[str, tuple[Array, str]],
        *,
        threads: int,
        spin: bool,
        keeps_denormals: bool = False,
    ) -> None:
        """`weights` are the external initializers by name, with their manifest dtype; `spin` lets idle workers spin.

        Denormal numbers are taken for zeros unless it `keeps_denormals`.

        Raises BundleError for a model that names files, DriverMissingError, DeviceError.
        """
        ort = onnxruntime()
        reason = unexpected_external(model, weights)
        if reason is not None:
            raise BundleError(
                f"the ONNX model of partition '{part.name}' would read files: {reason}",
                where=f"partition '{part.name}'",
                hint="heterocc writes no such bundle: compile the model again, and do not use this file",
            )
        options = session_options(threads=threads)
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "1" if spin else "0")
        options.add_session_config_entry("session.load_model_format", "ONNX")  # ORT's own format is not looked through
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", _NOWHERE)
        options.add_session_config_entry("session.set_denormal_as_zero", "0" if keeps_denormals else "1")
        limit_folding(options, sum(array.nbytes for array, _ in weights.values()))
        self.name = part.name
        self._keeps_denormals = keeps_denormals
        self._value = ort.OrtValue
        self._held = [self._ort_weight(array, dtype) for array, dtype in weights.values()]
        if weights:
            options.add_external_initializers(list(weights), self._held)
        try:
            with cpu_api.Denormals(kept=keeps_denormals):  # of a process's first session ONNX Runtime leaves it set
                self._session = open_session(model, options)
        except Exception as error:
            pass_foreign(error)
            raise DeviceError(
                f"ONNX Runtime {ort.__version__} cannot load partition '{part.name}': {first_line(error)}",
                where=f"partition '{part.name}'",
                hint="install the onnxruntime release that compiled the bundle; `heterocc inspect` names it",
            ) from error
        self.inputs = _names([i.name for i in self._session.get_inputs()], part, part.inputs, values)
        self.outputs = _names([o.name for o in self._session.get_outputs()], part, part.outputs, values)

    def _ort_weight(self, array: Array, dtype: str) -> Any:
        if dtype in NARROW:
            return to_ort(array, dtype)
        return self._value.ortvalue_from_numpy(array)

    def bind(self, inputs: Sequence[Array], outputs: Sequence[Array]) -> Callable[[], Any]:
        """A function that runs the session on these arrays' memory, without a copy if ONNX Runtime supports that."""
        binding = self._session.io_binding()
        for name, array in zip(self.inputs, inputs, strict=True):
            binding.bind_ortvalue_input(name, self._value.ortvalue_from_numpy(array))
        for name, array in zip(self.outputs, outputs, strict=True):
            binding.bind_ortvalue_output(name, self._value.ortvalue_from_numpy(array))
        run = self._session.run_with_iobinding

        def run_bound() -> None:
            with cpu_api.Denormals(kept=self._keeps_denormals):
                run(binding)

        return run_bound

    def run_on_arrays(
        self, inputs: Mapping[str, str], outputs: Mapping[str, str], dtypes: Sequence[Any], known: Container[Shapes]
    ) -> Callable[[Any], dict[str, Any] | None]:
        """A function from a feed to new results, for one thread at a time: the session's run on the given arrays.

        `inputs` and `outputs` are names of the session by those of a feed and of the results, `dtypes` those of the
        inputs. The function returns None for another feed, for shapes that are not `known`, and if the session fails.
        """
        expected = tuple(zip(inputs, inputs.values(), dtypes, strict=True))
        count, names, wanted = len(expected), tuple(outputs), list(outputs.values())
        same, ndarray = all(name == own for name, own, _ in expected), np.ndarray
        # The session in C++: the package's own checks of names and kinds of values take 0.9 us, and are made here.
        method = getattr(self._session, "_sess", self._session).run
        set_mode, set_back = cpu_api.denormal_mode(kept=self._keeps_denormals)

        def run(feed: Any) -> dict[str, Any] | None:
            if type(feed) is not dict or len(feed) != count:
                return None
            given = feed if same else {}
            shapes: Shapes = ()
            for name, own, dtype in expected:
                array = feed.get(name)
                if type(array) is not ndarray or array.dtype is not dtype:
                    return None
                if not same:
                    given[own] = array
                shapes += (array.shape,)
            if shapes not in known:
                return None
            before = set_mode()
            try:
                results = method(wanted, given, None)
            except Exception as error:  # the chain repeats the run, and says what is wrong
                pass_foreign(error)
                return None
            finally:
                set_back(before)
            return dict(zip(names, results, strict=True))

        return run

    def call_on_objects(
        self,
        inputs: Sequence[int],
        outputs: Sequence[int],
        arrays: Mapping[int, Array],
        objects: dict[int, Any],
        *,
        as_python: bool,
    ) -> Callable[[], None]:
        """A call for partitions that touch values without a static shape: static ones in `arrays`, others in `objects`.

        Dynamic outputs become OrtValues, or with `as_python` numpy arrays, lists and dicts.
        """

        def given(value: int) -> Any:
            held = arrays.get(value)
            held = objects[value] if held is None else held
            return held if not isinstance(held, np.ndarray) or as_python else ort_value(held)

        def run() -> None:
            feed = {name: given(value) for name, value in zip(self.inputs, inputs, strict=True)}
            method = self._session.run if as_python else self._session.run_with_ort_values
            with cpu_api.Denormals(kept=self._keeps_denormals):
                results = method(self.outputs, feed)
            for value, result in zip(outputs, results, strict=True):
                static = arrays.get(value)
                if static is None:
                    objects[value] = result
                else:
                    self._store(result if as_python else result.numpy(), static)

        return run

    def _store(self, result: Array, place: Array) -> None:
        """Copy a result to the place that the bundle has for it."""
        if result.shape != place.shape:
            raise DeviceError(
                f"a result of partition '{self.name}' has shape {list(result.shape)} in ONNX Runtime and "
                f"{list(place.shape)} in the bundle",
                hint="a wrong shape that the model states for it, or a heterocc bug: compile the model without the "
                "shapes of its intermediate values",
            )
        np.copyto(place, result, casting="no")


def to_python(value: Any) -> Any:
    """A dynamic value as a caller gets it: a numpy array (ml_dtypes' dtypes too), or ONNX Runtime's lists and dicts."""
    return from_ort(value) if type(value).__name__ == "OrtValue" else value


def _names(found: list[str], part: Partition, indices: Sequence[int], values: Sequence[TensorSpec]) -> list[str]:
    """The ONNX model's names in the partition's order: by name, else by position."""
    wanted = [values[v].name for v in indices]
    if set(wanted) == set(found):
        return wanted
    if len(found) != len(wanted):
        raise BundleManifestError(
            f"partition '{part.name}' has {len(wanted)} values in the manifest and {len(found)} in its ONNX model"
        )
    return found
