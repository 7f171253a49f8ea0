"""Creation of all ONNX Runtime sessions: on the CPU, without their own log on standard error.

ONNX Runtime writes its log straight to standard error, past Python's logging, and in colour. Whatever matters is in its
exceptions too, which become errors or notes of heterocc. To see its log, give the Python logger
`heterocc.onnxruntime` a level: sessions made after that log from there on (`logging.WARNING`, …).
"""

from __future__ import annotations

import functools
import os
import platform
import re
import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Literal

import numpy as np

from heterocc.artifacts.foreign import handlers_wait, pass_foreign
from heterocc.runtime.native.processor import cpuinfo

Optimise = Literal["all", "basic", "none"]

_EXACT = "session.x64quantprecision"
"""ONNX Runtime's option for exact products of 8-bit integers: it changes constant weights of int8 to uint8."""

_FOLDED = "optimization.constant_folding_max_output_size_in_bytes"
_LEAST_FOLDED = 1 << 24

_LOCK = threading.Lock()

_SEVERITIES = ((50, 4), (40, 3), (30, 2), (20, 1))
"""Levels of Python's logging from CRITICAL to INFO, and what ONNX Runtime calls them."""


def onnxruntime_package() -> Any:
    """The onnxruntime package; heterocc imports it only here. Raises ImportError if it is missing.

    Its telemetry is off unless the environment says otherwise: merely importing it leaves a file of events in TMPDIR.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    if "onnxruntime" not in sys.modules:
        with handlers_wait():
            import_module("onnxruntime")
    import onnxruntime

    return onnxruntime


_SHARED = "session.use_env_allocators"

_limit: int | None = None


def bound_memory(limit: int | None) -> None:
    """Give sessions that are made from now on one arena, of at most `limit` bytes, without weights.

    An arena keeps what its largest run took, and ONNX Runtime asks for whatever sizes a model computes from a request.
    A run for which the arena has no room fails: DeviceMemoryError. The limit of a process is that of its first session;
    None: sessions have arenas of their own.
    """
    global _limit
    _limit = limit


def most_memory() -> int:
    """The bytes that one value in ONNX Runtime can have: those of `bound_memory`, else of the machine."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if _limit is None else _limit


def arena_bytes() -> int:
    """The bytes that the arena of `bound_memory` has asked the system for; 0 if there is none.

    It asks for powers of two, and at the machine's memory are only pages that a run has used. ONNX Runtime's Python
    package has no statistics of arenas; what is left of a limit is in the error of a run that asks for more than that.
    """
    if _arena is None:
        return 0
    limit, empty = _arena
    try:
        empty.run(None, {"n": np.array([limit // 4 + 1])})
    except Exception as error:
        pass_foreign(error)
        left = re.search(r"Available memory of (\d+)", str(error))
        return limit - int(left[1]) if left else 0
    return 0


def shrink_arena() -> None:
    """Give the system back what no run uses of the arena of `bound_memory`, but for its first piece."""
    if _arena is None:
        return
    options = onnxruntime_package().RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    _arena[1].run(None, {"n": np.array([0])}, options)


_ZEROS = (
    b'\x08\x08:7\n\x17\n\x01n\x12\x01y"\x0fConstantOfShape\x12\x00Z\x0f\n\x01n\x12\n\n\x08\x08\x07\x12\x04\n\x02\x08\x01'
    b"b\t\n\x01y\x12\x04\n\x02\x08\x01B\x04\n\x00\x10\x11"
)
"""An ONNX model of one node: ConstantOfShape makes so many zeros of float32 as its input `n` says."""

_arena: tuple[int, Any] | None = None
"""The limit of the arena of `bound_memory`, and a session of `_ZEROS` that uses this arena."""


@functools.cache
def _share_arena() -> None:
    global _arena
    ort = onnxruntime_package()
    place = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    ort.create_and_register_allocator(place, ort.OrtArenaCfg({"max_mem": _limit}))
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.add_session_config_entry(_SHARED, "1")
    assert _limit is not None
    _arena = _limit, _open(_ZEROS, options, ())


def severity() -> int:
    """The lowest severity that ONNX Runtime logs: 0 (verbose) to 4 (fatal), the default."""
    level = _level()
    return next((severity for least, severity in _SEVERITIES if level >= least), 0) if level else 4


def _level() -> int:
    """The level of the logger; 0 if it has none."""
    import logging  # not at the top: a bundle without ONNX needs none of it

    return logging.getLogger("heterocc.onnxruntime").level


def session_options(*, threads: int | None = None, optimise: Optimise = "all", exact: bool = True) -> Any:
    """Fresh options of a session: quiet, with `threads` workers (None: as many as cores).

    `exact` keeps the sums of integer products of constant weights from saturating in 16 bits, where they do by ONNX
    Runtime's default; it works if the session optimises "all".

    Where the process is the command line's own, ONNX Runtime's default logger is quiet from then on too; in others it
    is the application's.
    """
    onnxruntime = onnxruntime_package()
    if _level():
        onnxruntime.set_default_logger_severity(severity())
    levels = onnxruntime.GraphOptimizationLevel
    options = onnxruntime.SessionOptions()
    options.log_severity_level = severity()
    if exact and optimise == "all" and products_saturate():
        options.add_session_config_entry(_EXACT, "1")
    if _limit is not None:
        _share_arena()
        options.add_session_config_entry(_SHARED, "1")
        options.add_session_config_entry("session.use_device_allocator_for_initializers", "1")
    if threads is not None:
        options.intra_op_num_threads = threads
    if optimise != "all":
        options.graph_optimization_level = levels.ORT_ENABLE_BASIC if optimise == "basic" else levels.ORT_DISABLE_ALL
    return options


@functools.cache
def products_saturate() -> bool:
    """Whether ONNX Runtime's products of 8-bit integers may saturate on this machine: on x86 without VNNI.

    Elsewhere the option for exact ones only takes time, and keeps weights of int8 from kernels that need them.
    """
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return False
    return re.search(r"\bavx(512)?_vnni\b", cpuinfo()) is None


def limit_folding(options: Any, weights: int) -> None:
    """Keep a session from computing constants that are larger than all weights together, which have so many bytes.

    A few nodes that double a vector make gigabytes of it.
    """
    options.add_session_config_entry(_FOLDED, str(max(_LEAST_FOLDED, weights)))


def open_session(model: bytes | str, options: Any, *, without: Sequence[str] = (), most: int | None = None) -> Any:
    """A session on the CPU for a model's bytes, or for its path, `without` the optimisers of these names.

    Its option for exact products makes ONNX Runtime refuse some models, which then run without it. With `most`, runs
    whose values have more bytes than that at a time fail; what texts hold is not counted.

    Raises the errors of ONNX Runtime.
    """
    if most is None:
        return _open(model, options, without)
    with _LOCK:  # the allocator that is registered when a session is created is that of the session
        _register_allocator(most)
        options.add_session_config_entry(_SHARED, "1")
        return _open(model, options, without)


def _register_allocator(most: int) -> None:
    """Make ONNX Runtime's allocator for sessions that ask for it a new one, which gives at most so many bytes."""
    onnxruntime = onnxruntime_package()
    kinds, places = onnxruntime.OrtAllocatorType, onnxruntime.OrtMemType
    where = onnxruntime.OrtMemoryInfo("Cpu", kinds.ORT_ARENA_ALLOCATOR, 0, places.DEFAULT)
    as_asked = 1  # memory grows by what is asked for, not by powers of two
    onnxruntime.create_and_register_allocator(where, onnxruntime.OrtArenaCfg(most, as_asked, -1, -1))


def _open(model: bytes | str, options: Any, without: Sequence[str]) -> Any:
    left_out = {"disabled_optimizers": list(without)} if without else {}
    create = functools.partial(onnxruntime_package().InferenceSession, providers=["CPUExecutionProvider"], **left_out)
    if not _is_exact(options):
        return create(model, options)
    try:
        return create(model, options)
    except Exception as error:  # ONNX Runtime's exception classes have no public base
        pass_foreign(error)
        options.add_session_config_entry(_EXACT, "0")
        return create(model, options)


def _is_exact(options: Any) -> bool:
    try:
        return bool(options.get_session_config_entry(_EXACT) == "1")
    except RuntimeError:  # it has no value
        return False


def load_only(model: bytes, options: Any) -> Any:
    """A session that has loaded a model's bytes and inferred its types, but cannot run.

    Raises the errors of ONNX Runtime.
    """
    return onnxruntime_package().capi.onnxruntime_pybind11_state.InferenceSession(options, model, False, False)
