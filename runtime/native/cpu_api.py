"""The CPU plug-in: weights in other layouts, the threads of CPU kernels, and memory for tensors of any size.

Its pool takes the place of TVM's in each shared object that is loaded.

Generated code starts its parallel loops through a pointer of its shared object, `__TVMBackendParallelLaunch`.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from heterocc.artifacts.errors import InternalError, NativePluginError, UsageError
from heterocc.artifacts.foreign import pass_foreign
from heterocc.artifacts.manifest import MAX_BLOCK_RANK, Block, Layout
from heterocc.artifacts.weights import layouts
from heterocc.runtime import ffi as tvm_ffi
from heterocc.runtime.native.plugin import Plugin
from heterocc.runtime.native.tvm_runtime import load_tvm_runtime

PLUGIN = Plugin(
    name="cpu",
    label="CPU",
    library="libheterocc_cpu.so",
    driver_hint="",
    build_hint="",
    plugin_hint="install g++ (Debian: g++), then reinstall heterocc",
)

Array = np.ndarray[Any, Any]

_FORMATS = ("float16", "bfloat16")
"""The formats that the plug-in widens, by its numbers for them."""

MEMORY_LIMIT = "HETEROCC_MEMORY_MB"
"""The environment variable with the most MiB of a value (memory_limits.h)."""

_POINTER = "__TVMBackendParallelLaunch"
_LAUNCHER = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
_TASK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


def launch_on(path: str, threads: int) -> None:
    """Have the parallel loops of the loaded library at `path` run on up to `threads` threads, the caller included.

    Threads come from one pool of the process. Without the plug-in, loops run on the caller alone: see `problem`.
    """
    library = ctypes.CDLL(path, os.RTLD_NOLOAD | os.RTLD_LAZY)
    try:
        pointer = ctypes.c_void_p.in_dll(library, _POINTER)
    except ValueError:  # no parallel loop
        return
    finally:
        ctypes.CDLL(None).dlclose(ctypes.c_void_p(library._handle))  # only counts down: the module has it, too
    found = _library()
    pointer.value = _ALONE_ADDRESS if found is None else found.heterocc_cpu_launcher(threads)


def arrange(array: Array, layout: Layout, result: Array, threads: int) -> None:
    """Write a weight to `result`, which is flat and holds zeros, in a layout that `layout_problem` accepts.

    Uses up to `threads` threads of the pool; without the plug-in, numpy.
    """
    found = _library()
    if found is None:
        layouts.arrange(array, layout, result)
        return
    blocks = (_Block * len(layout.blocks))(*map(_Block.of, layout.blocks))
    numbers = () if layout.matrix is None else tuple(v for row in layout.matrix for v in row)
    matrix = (ctypes.c_double * len(numbers))(*numbers) if numbers else None
    source = np.ascontiguousarray(array)
    if layout.widens is not None:
        plain = _is_plain(layout, source.size)
        wide = result if plain else np.empty(source.size, np.float32)
        found.heterocc_cpu_widen(
            source.ctypes.data, wide.ctypes.data, source.size, _FORMATS.index(layout.widens), threads
        )
        if plain:
            return
        source = wide
    failed = found.heterocc_cpu_arrange(
        source.ctypes.data,
        result.ctypes.data,
        result.itemsize,
        blocks,
        len(blocks),
        matrix,
        len(layout.matrix or ()),
        threads,
    )
    if failed:
        raise InternalError(f"the CPU plug-in cannot arrange a weight of {array.dtype}")


def _is_plain(layout: Layout, size: int) -> bool:
    """Whether a layout has the elements of its weight in order."""
    if layout.matrix is not None or len(layout.blocks) != 1:
        return False
    (block,) = layout.blocks
    return (block.start, block.to, block.extents, block.strides, block.to_strides) == (0, 0, (size,), (1,), (1,))


def problem() -> str | None:
    """The reason why CPU kernels run on one thread, as the end of a sentence; None if the plug-in is loaded."""
    try:
        _load()
    except NativePluginError as error:
        return error.message
    return None


def loaded_library() -> ctypes.CDLL:
    """The plug-in, for calls without the interpreter's lock. Raises NativePluginError."""
    return _load()


def workers() -> int:
    """The number of threads that the pool has started in this process."""
    found = _library()
    return 0 if found is None else int(found.heterocc_cpu_workers())


def allocator() -> int | None:
    """The `AllocatorType` of the plug-in's heap, for virtual machines on the CPU; None without the plug-in."""
    found = _library()
    return None if found is None else int(found.heterocc_cpu_allocator())


def straight(executable: Any, name: str, weights: Any, machine: Any) -> tuple[Any, frozenset[int]]:
    """The function `name` of a loaded executable as one that needs no virtual machine, which takes the same arguments.

    `weights` are its last argument. `machine` is the function in a virtual machine, which is called for inputs of other
    types and shapes, to say what is wrong with them, and returned without the plug-in and for code that has something
    that only the machine knows. The numbers are those of inputs that code lengthens where they are: tensors that
    `holds_rows` is true for.
    """
    if _library() is None:
        return machine, frozenset()
    found = _function("straight")(executable, name, weights, machine)
    return (machine, frozenset()) if found is None else (found[0], frozenset(found[1]))


def bound(function: Any, arguments: Sequence[Any]) -> Callable[[], Any]:
    """A function that `straight` returned with its arguments, which it reads anew in each call."""
    found: Callable[[], Any] = _function("bound")(function, tvm_ffi.Array(list(arguments)))
    return found


def with_denormals(function: Callable[..., Any], *, kept: bool) -> Callable[..., Any]:
    """The function with a mode of the processor for its calls: denormal numbers are kept, or taken for zeros.

    The caller's mode is the same before and after a call, also if it fails. `function` is one of tvm_ffi, or one that
    it converts. Without the plug-in the function itself.
    """
    if _library() is None:
        return function
    found: Callable[..., Any] = _function("with_denormals")(function, kept)
    return found


def kernels_only(observer: Callable[..., int]) -> Callable[..., int]:
    """An observer of a virtual machine that hears of kernels, and not of the machine's own functions.

    A run calls thousands of these, and to pass a call to Python takes longer than many kernels. Without the plug-in the
    observer itself.
    """
    if _library() is None:
        return observer
    found: Callable[..., int] = _function("kernels_only")(observer)
    return found


def kernel_times(most: int) -> tuple[Callable[..., int], Callable[[], KernelTimes]] | None:
    """An observer of a virtual machine that times kernels of the CPU, and a function that takes their times so far.

    It keeps at most `most` calls one by one. None without the plug-in. Both are for one thread at a time.
    """
    if _library() is None:
        return None
    observe, take = _function("kernel_times")(most)

    def taken() -> KernelTimes:
        symbols, sums, calls = take()
        return KernelTimes(tuple(map(str, symbols)), _rows(sums, 2), _rows(calls, 3))

    return observe, taken


class KernelTimes(NamedTuple):
    """Times of kernels in nanoseconds of the host's clock, as `perf_counter_ns` has them.

    `sums` has a row for each symbol: its time, and its calls. `calls` has one for each call: the number of the symbol,
    begin and end.
    """

    symbols: tuple[str, ...]
    sums: list[list[int]]
    calls: list[list[int]]


def _rows(numbers: bytes, width: int) -> list[list[int]]:
    found: list[list[int]] = np.frombuffer(numbers, np.int64).reshape(-1, width).tolist()
    return found


class Denormals:
    """A block in which this thread keeps denormal numbers or takes them for zeros; its mode is the same afterwards.

    Without the plug-in the mode does not change. It is no generator, because one that an exception of a signal handler
    leaves is closed later, where such an exception is lost.
    """

    def __init__(self, *, kept: bool) -> None:
        self._kept = kept
        self._library = _library()
        self._before: int | None = None

    def __enter__(self) -> None:
        if self._library is not None:
            self._before = self._library.heterocc_cpu_keep_denormals(self._kept)

    def __exit__(self, *_: object) -> None:
        if self._library is not None and self._before is not None:
            self._library.heterocc_cpu_set_mode(self._before)


def denormal_mode(*, kept: bool) -> tuple[Callable[[], int], Callable[[int], None]]:
    """The calls that a Denormals block makes, for code that has no microsecond to lose.

    The first sets the thread's mode and returns the one before, to which the second sets it back.
    """
    library = _library()
    if library is None:
        return lambda: 0, lambda mode: None
    return partial(library.heterocc_cpu_keep_denormals, int(kept)), library.heterocc_cpu_set_mode


def appendable(array: Array) -> Array | None:
    """A view of an array such that code that appends rows to it makes memory with room for further ones.

    It must not be written afterwards. None if it is in such memory already, and without the plug-in.
    """
    if _library() is None:
        return None
    found = _function("appendable")(tvm_ffi.from_dlpack(array))
    return None if found is None else np.from_dlpack(found)


def holds_rows(tensor: Any) -> bool:
    """Whether a tensor is made of the first rows of memory with room for further ones."""
    found: bool = _function("holds_rows")(tensor)
    return found


def add_sequence_functions() -> None:
    """Make known the functions that code for sequences and optional values calls. Raises NativePluginError."""
    if not _load().heterocc_cpu_add_sequences():
        raise NativePluginError("TVM refuses the CPU plug-in's functions of sequences", hint=PLUGIN.plugin_hint)


def heap_bytes() -> int:
    """Bytes that the heap has from the system; pages that were never written take no memory."""
    found = _library()
    return 0 if found is None else int(found.heterocc_cpu_heap_bytes())


@cache
def _function(name: str) -> Any:
    """A function of the loaded plug-in."""
    return tvm_ffi.get_global_func(f"heterocc.cpu.{name}")


def processor() -> str:
    """The fields of /proc/cpuinfo that the processor itself can tell; empty without the plug-in."""
    found = _library()
    if found is None:
        return ""
    found.heterocc_cpu_processor.restype = ctypes.c_char_p
    return bytes(found.heterocc_cpu_processor()).decode("ascii", "replace")


def require_limit() -> None:
    """Raise UsageError if `HETEROCC_MEMORY_MB`, which the plug-in reads once, is not a number of MiB."""
    given = os.environ.get(MEMORY_LIMIT, "")
    if given and not (given.isascii() and given.isdecimal() and 0 < int(given[:20]) < 1 << 40):
        raise UsageError(
            f"{MEMORY_LIMIT} is '{given[:40]}', which is not a number of MiB",
            where="the environment",
            hint=f"set it to a whole number of 1 or more, such as {MEMORY_LIMIT}=4096, or unset it",
        )


def _library() -> ctypes.CDLL | None:
    try:
        return _load()
    except NativePluginError:
        return None


@cache
def _load() -> ctypes.CDLL:
    require_limit()
    path = PLUGIN.find_library()
    load_tvm_runtime()
    try:
        library = ctypes.CDLL(str(path), ctypes.RTLD_LOCAL)
    except OSError as error:
        pass_foreign(error)
        raise NativePluginError(f"{path.name} cannot be loaded: {error}", hint=PLUGIN.plugin_hint) from error
    library.heterocc_cpu_launcher.restype = ctypes.c_void_p
    library.heterocc_cpu_launcher.argtypes = [ctypes.c_int32]
    library.heterocc_cpu_widen.restype = None
    library.heterocc_cpu_widen.argtypes = [
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_int64,
        ctypes.c_int32,
        ctypes.c_int32,
    ]
    library.heterocc_cpu_keep_denormals.restype = ctypes.c_uint64
    library.heterocc_cpu_keep_denormals.argtypes = [ctypes.c_int32]
    library.heterocc_cpu_set_mode.restype = None
    library.heterocc_cpu_set_mode.argtypes = [ctypes.c_uint64]
    library.heterocc_cpu_heap_bytes.restype = ctypes.c_uint64
    library.heterocc_cpu_arrange.restype = ctypes.c_int32
    library.heterocc_cpu_arrange.argtypes = [
        ctypes.c_void_p,
        ctypes.c_void_p,
        ctypes.c_int32,
        ctypes.c_void_p,
        ctypes.c_int32,
        ctypes.c_void_p,
        ctypes.c_int32,
        ctypes.c_int32,
    ]
    return library


class _Block(ctypes.Structure):
    """A block of a layout; see arrange.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("rank", "start", "to", "planes")),
        *((name, ctypes.c_int64 * MAX_BLOCK_RANK) for name in ("extents", "strides", "to_strides")),
    )

    @classmethod
    def of(cls, block: Block) -> _Block:
        """The block as the plug-in takes it."""
        row = ctypes.c_int64 * MAX_BLOCK_RANK
        lists = (row(*numbers) for numbers in (block.extents, block.strides, block.to_strides))
        return cls(len(block.extents), block.start, block.to, block.planes, *lists)


class _RegionSize(ctypes.Structure):
    """TVM's TVMParallelGroupEnv."""

    _fields_ = (("barrier", ctypes.c_void_p), ("tasks", ctypes.c_int32))


def _run_alone(task: int, closure: int | None, tasks: int) -> int:
    """A region on the calling thread; see thread_pool.h."""
    size = _RegionSize(None, max(tasks, 1))
    run = _TASK(task)
    return next((r for i in range(size.tasks) if (r := run(i, ctypes.addressof(size), closure))), 0)


_ALONE = _LAUNCHER(_run_alone)
_ALONE_ADDRESS = ctypes.cast(_ALONE, ctypes.c_void_p).value
