"""Typed errors, with partition and device, for what TVM, OpenCL, Vulkan and ONNX Runtime raise."""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Sequence

from heterocc.artifacts.errors import (
    DeviceError,
    DeviceLostError,
    DeviceMemoryError,
    HeteroccError,
    Hint,
    InputValueError,
)
from heterocc.artifacts.files.sealed import MORE_FILES
from heterocc.artifacts.foreign import pass_foreign
from heterocc.runtime.execute.ort_session import most_memory
from heterocc.runtime.native import typed_error

_MEMORY_WORDS = (
    "CL_MEM_OBJECT_ALLOCATION_FAILURE",
    "CL_OUT_OF_HOST_MEMORY",
    "CL_OUT_OF_RESOURCES",
    "CL_INVALID_BUFFER_SIZE",
    "VK_ERROR_OUT_OF_",
    "out of memory",
    "bad_alloc",
    "Failed to allocate memory",
    "Available memory of",
)
_LOST_WORDS = ("VK_ERROR_DEVICE_LOST", "was lost")
_CUDA_FATAL = (
    r"(?i)CUDA_?ERROR_?(ILLEGAL_?ADDRESS|LAUNCH_?(FAILED|FAILURE|TIMEOUT)|ASSERT|HARDWARE_?STACK_?ERROR|ILLEGAL_?INSTRUCTION"
    r"|MISALIGNED_?ADDRESS|INVALID_?(ADDRESS_?SPACE|PC)|(ECC|NVLINK)_?UNCORRECTABLE)"
)
"""Errors that a CUDA context does not recover from, by the driver's and the runtime's names. Source: CUDA Driver API,
"CUresult": "the process must be terminated and relaunched"."""


_NODE = "Non-zero status code returned while running "
_BEHIND_NAME = "' Status Message: "
_ORT_NODE = (
    rf"{_NODE}(?P<operator>\w+) node\. "
    rf"Name:'(?P<node>.*?){_BEHIND_NAME}(?P<reason>.*)"
)
_ORT_PLACE = r"^(/\S+:\d+ .*? was false\.|\S+\.cc:\d+ ([\w:*&<>~ ]*\([^)]*\) |\S+ ))\s*"
"""What ONNX Runtime puts before a reason: its source, its function, and the condition that does not hold."""
_INVALID = "INVALID_ARGUMENT : "
_NO_ARRAY = ("array is too big", "number of dimensions must be within")
"""What numpy says of a result with too many dimensions, or whose sizes have too large a product, 0 left out."""


_OTHER_INPUTS = "change the inputs; the session and its devices can go on"


_loss_lock = threading.Lock()
_loss_noted = False
_any_lost = False


def take_device_loss() -> bool:
    """Whether a device has been lost since the last call; one caller gets True for a loss.

    TVM's pools may then hold memory of the lost device: that caller releases them. Safe to call from any thread.
    """
    global _loss_noted
    with _loss_lock:
        taken, _loss_noted = _loss_noted, False
        return taken


def any_device_lost() -> bool:
    """Whether this process has ever lost a device."""
    return _any_lost


def _note_device_loss() -> None:
    global _loss_noted, _any_lost
    with _loss_lock:
        _loss_noted = _any_lost = True


def first_line(error: BaseException) -> str:
    """The first line of an exception's text that is not empty or TVM's framing."""
    for line in str(error).splitlines():
        text = line.strip()
        if text and not text.startswith(("Traceback", "File ", "Stack trace", "[bt]")):
            return text.rstrip(".")
    return type(error).__name__


def _input_fault(error: BaseException, doing: str) -> InputValueError | None:
    """The error of a node that cannot compute with its inputs; None for other failures.

    Code for CPUs marks its own, and so do the names of nodes that the compiler adds for ONNX Runtime. That names the
    node in the errors of its kernels, or says that an argument is invalid; those that lack memory are not the input's,
    unless no machine like this one has that memory.
    """
    text = str(error)
    _, mark, marked = text.partition(InputValueError.MARK)
    if mark:
        message = marked.splitlines()[0].partition(_BEHIND_NAME)[0].rstrip(".")
    elif isinstance(error, ValueError) and any(words in text for words in _NO_ARRAY):
        message = f"a result cannot be an array: {first_line(error)}"
    elif _lacks_means(text):
        return None
    elif found := re.search(_ORT_NODE, text, re.DOTALL):
        message = f"{found['operator']} '{found['node']}': {_reason(found['reason'])}"
    elif _INVALID in text:
        message = _reason(text.partition(_INVALID)[2])
    else:
        return None
    return InputValueError(message, where=doing.removeprefix("running "), hint=_OTHER_INPUTS)


def _reason(text: str) -> str:
    return " ".join(re.sub(_ORT_PLACE, "", text, flags=re.DOTALL).split()).rstrip(".")


def _lacks_means(text: str) -> bool:
    """Whether an error of ONNX Runtime is about memory that the machine may lack.

    It may be about memory for a result of another shape, too, which the bundle has from a model that states this; but
    that of a node in the body of another one is ONNX Runtime's own.
    """
    if "OrtValue provided for output" in text:
        return text.count(_NODE) < 2
    asked = re.search(r"requested (?:buffer of size|bytes of) (\d+)", text)
    if asked is not None:
        return int(asked[1]) <= most_memory()
    return any(word in text for word in _MEMORY_WORDS)


def device_fault(error: BaseException, doing: str, device: str) -> HeteroccError:
    """The typed error for a failure of `device` while `doing` ("running partition 'p1'"); typed errors pass through.

    Raises exceptions that are not the device's, such as those of signal handlers, unchanged.
    """
    if isinstance(error, HeteroccError):
        return error
    pass_foreign(error)
    caused = _input_fault(error, doing)
    if caused is not None:
        return caused
    lost = any(word in str(error) for word in _LOST_WORDS)
    if lost:
        _note_device_loss()
    native = typed_error(error)
    if native is not None:
        if lost and type(native) is DeviceError:
            native = DeviceLostError(native.message, hint=native.hint)
        native.message = f"{device} failed while {doing}: {native.message}"
        native.where = f"device {device}"
        return native
    detail = first_line(error)
    where = f"device {device}"
    if isinstance(error, MemoryError) or any(word in str(error) for word in _MEMORY_WORDS):
        return DeviceMemoryError(
            f"{device} is out of memory while {doing}: {detail}",
            where=where,
            hint="close other sessions",
        )
    if re.search(_CUDA_FATAL, str(error)):
        return DeviceLostError(
            f"{device} failed while {doing}, for good: {detail}",
            where=where,
            hint="CUDA cannot be used in this process any more: start it again",
        )
    if os.strerror(errno.EMFILE) in str(error):
        return DeviceError(f"{device} failed while {doing}: {detail}", where=where, hint=MORE_FILES)
    return (DeviceLostError if lost else DeviceError)(
        f"{device} failed while {doing}: {detail}",
        where=where,
        hint=Hint("heterocc.compiler.verify_bundle", "`heterocc verify`") + " checks whether the bundle is at fault",
    )


def offer(error: DeviceError, own: Sequence[str], lists: Sequence[str]) -> None:
    """Add to the hint of a failure the first of `lists`, the devices of other variants that can run here.

    A list that names the device that failed, one of the variant's `own`, is passed over: it would fail again.
    """
    device = (error.where or "").removeprefix("device ")
    if device not in own:
        return
    for devices in lists:
        if device not in devices.split(","):
            text = Hint(f"load(path, devices='{devices}')", f"-d {devices}") + f" takes a variant without {device}"
            error.hint = (error.hint + "; " if error.hint else "") + text
            return
