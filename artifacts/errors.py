"""Errors that users can meet, each with a code, one sentence, the place in the input, and a hint.

`docs/errors.md` is generated from the docstrings below (`python -m scripts.errors_page`).
"""

from __future__ import annotations

from typing import ClassVar, Self

from heterocc.artifacts.text.one_line import one_line


class Hint(str):
    """A hint in two forms: the text itself for callers from Python, `command` for the command line."""

    command: str

    def __new__(cls, python: str, command: str) -> Self:
        """Create a hint from its two forms."""
        hint = super().__new__(cls, python)
        hint.command = command
        return hint

    def __add__(self, other: str) -> Hint:
        """Both forms with text or another hint appended."""
        return Hint(str(self) + str(other), self.command + getattr(other, "command", other))

    def __radd__(self, other: str) -> Hint:
        """Both forms with text prepended."""
        return Hint(other + str(self), other + self.command)

    def __str__(self) -> str:
        """The form for Python, as plain text."""
        return self[:]

    def __reduce__(self) -> tuple[type[Hint], tuple[str, str]]:
        """Support pickling, because errors are sent between processes."""
        return Hint, (str(self), self.command)


def note_text(text: str) -> str:
    """A note in one line, with control characters escaped; a Hint keeps both forms."""
    return Hint(one_line(str(text)), one_line(text.command)) if isinstance(text, Hint) else one_line(text)


def command_form(text: str) -> str:
    """The form of a text for the command line; a text without two forms is returned unchanged."""
    return text.command if isinstance(text, Hint) else text


class HeteroccError(Exception):
    """Base class of all errors. A traceback of any other exception is a bug in heterocc.

    `message` is one sentence without a full stop, `where` the place in the user's input, and `hint` the next step. The
    last two are a `Hint` if they differ between Python and the command line. As text each is one line.
    """

    code: ClassVar[str] = "HC000"
    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, where: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        return self._text(self.where, self.hint)

    def command_text(self) -> str:
        """The error as the command line shows it."""
        return self._text(*self._command_forms())

    def to_json(self) -> dict[str, str | None]:
        """The error as `--json` prints it."""
        where, hint = self._command_forms()
        return {"code": self.code, "message": self.message, "where": where, "hint": hint}

    def _command_forms(self) -> tuple[str | None, str | None]:
        return self.where and command_form(self.where), self.hint and command_form(self.hint)

    def _text(self, where: str | None, hint: str | None) -> str:
        text = f"error[{self.code}]: {one_line(self.message)}"
        if where:
            text += f"\n  --> {one_line(where)}"
        if hint:
            text += f"\n  hint: {one_line(hint)}"
        return text


# ---- HC1xx: the user's input --------------------------------------------------------------------------------------


class InputError(HeteroccError):
    """The model or another input file is at fault."""

    code = "HC100"


class FileMissingError(InputError):
    """A file named on the command line or in a model does not exist or cannot be read."""

    code = "HC101"


class NotOnnxError(InputError):
    """The file is not an ONNX model, or it is cut short."""

    code = "HC102"


class InvalidGraphError(InputError):
    """The model breaks a rule of ONNX: an unknown operator, a cycle, a missing input, a type mismatch."""

    code = "HC103"


class DynamicShapeError(InputError):
    """A graph input still has a dynamic dimension; fix it with `--dim NAME=8` or `--shape INPUT=1,3,224,224`."""

    code = "HC104"


class ExternalDataError(InputError):
    """External tensor data is missing, too short, or outside the model's directory."""

    code = "HC105"


class ShapeOptionError(InputError):
    """`--shape` or `--dim` names an unknown input or dimension, or contradicts the model."""

    code = "HC106"
    exit_code = 2


class AffinityFileError(InputError):
    """The affinity file is not TOML, or has an unknown key or a wrong type."""

    code = "HC107"


class AffinityPatternError(InputError):
    """A pattern in the affinity file, or a node name given from Python, matches no node."""

    code = "HC108"


class DeviceFileError(InputError):
    """The device file is not TOML or JSON, or has an unknown key or a wrong type."""

    code = "HC109"


class FeedError(InputError):
    """An input given to a session has a wrong name, dtype or shape, or is missing."""

    code = "HC110"


class OutputFileError(InputError):
    """An output cannot be written: no space, no permission, or it is one of the inputs."""

    code = "HC111"


class AffinityCoverError(InputError):
    """Affinity mode `manual` is set, but no rule covers a node."""

    code = "HC112"


class CostTableError(InputError):
    """A cost table is not valid JSON, has unknown keys or values, or names unknown nodes or devices."""

    code = "HC113"


class KeyFileError(InputError):
    """A file of a key does not hold an Ed25519 key of the required kind, or its passphrase is wrong or missing."""

    code = "HC114"


class ModelRunError(InputError):
    """ONNX Runtime, the reference, rejects the model at the given input shapes or fails to run it."""

    code = "HC115"


class MissingPackageError(InputError):
    """An optional package that the requested feature needs is not installed; the hint names the command."""

    code = "HC116"


class InputValueError(InputError):
    """A run ended because a node cannot compute with the values of its inputs: an index out of range, an integer
    division by 0, a step of 0, sizes that do not fit together, a result that exceeds the memory. The session can go
    on with other inputs."""

    code = "HC117"

    MARK: ClassVar[str] = "heterocc.input: "
    """Precedes the message in the text of what compiled and native code throw for such an error."""


class UsageError(InputError):
    """Options that contradict each other or have a malformed value."""

    code = "HC120"
    exit_code = 2


class PipelineSpecError(UsageError):
    """`--passes` names an unknown pass or option."""

    code = "HC121"


# ---- HC2xx: operators ---------------------------------------------------------------------------------------------


class UnsupportedOpError(HeteroccError):
    """No listed device can run a node."""

    code = "HC201"


class PinnedDeviceError(UnsupportedOpError):
    """A node is pinned to a device that cannot run it."""

    code = "HC202"


class LoweringError(UnsupportedOpError):
    """A partition could not be lowered, although each of its nodes can be lowered alone."""

    code = "HC203"


class WrongResultError(UnsupportedOpError):
    """A compiled partition's results differ from ONNX Runtime's, and no other listed device can run the node."""

    code = "HC204"


# ---- HC3xx: bundles -----------------------------------------------------------------------------------------------


class BundleError(HeteroccError):
    """The bundle is damaged, incomplete or not a bundle."""

    code = "HC301"


class BundleVersionError(BundleError):
    """The bundle's major format version differs from the one this heterocc reads."""

    code = "HC302"


class BundleHashError(BundleError):
    """A member's SHA-256 differs from the manifest: the file is damaged or was changed."""

    code = "HC303"


class BundleManifestError(BundleError):
    """The manifest is not valid: a missing field, a wrong type, a size or reference out of range."""

    code = "HC304"


class BundleChangedError(BundleError):
    """The bundle's file was overwritten or cut short while it was open; replace a bundle by renaming."""

    code = "HC305"


class UntrustedBundleError(BundleError):
    """A trusted signature is required, but the bundle is not signed, or only by keys that are not trusted."""

    code = "HC306"


class SignatureError(BundleError):
    """A bundle's signature does not match its manifest, or the member `manifest.sig` is malformed."""

    code = "HC307"


class IncompatibleBundleError(BundleError):
    """No variant of the bundle can run on this machine: another CPU, another TVM version, or a missing driver."""

    code = "HC310"


class NativeCodeError(BundleError):
    """The bundle or the requested variant contains native code, which `allow_native=False` forbids."""

    code = "HC311"


class VerifyError(BundleError):
    """`heterocc verify` found outputs that differ from the reference."""

    code = "HC320"


# ---- HC4xx: devices -----------------------------------------------------------------------------------------------


class DeviceError(HeteroccError):
    """A device failed or is not available."""

    code = "HC401"


class UnknownDeviceError(DeviceError):
    """`--devices` is empty, or names a device that neither this machine nor a device file has."""

    code = "HC402"
    exit_code = 2


class DriverMissingError(DeviceError):
    """The driver library of a device could not be loaded."""

    code = "HC403"


class DeviceMemoryError(DeviceError):
    """A device is out of memory, or an allocation exceeds its limit."""

    code = "HC404"


class PropertyError(DeviceError):
    """`--property` names an unknown property, an unlisted device or a malformed value."""

    code = "HC405"
    exit_code = 2


class LinkerMissingError(DeviceError):
    """Neither a C++ compiler nor the package `ziglang`, one of which links compiled code, was found."""

    code = "HC406"


class NativePluginError(DeviceError):
    """A native part of heterocc was not built or does not match the installed TVM, or two releases are mixed."""

    code = "HC407"


class CudaCompilerMissingError(DeviceError):
    """No compiler for CUDA kernels (the package nvidia-cuda-nvrtc, or nvcc) was found, or none supports the GPU."""

    code = "HC408"


class DeviceLostError(DeviceError):
    """A device was lost during a run: its driver reset it, it was removed, or CUDA cannot continue in the process."""

    code = "HC409"


# ---- HC9xx: our bugs ----------------------------------------------------------------------------------------------


class PassError(HeteroccError):
    """A pass failed, which is a bug in heterocc. The hint names a reproducer."""

    code = "HC901"


class InternalError(HeteroccError):
    """An internal operation failed, which is a bug in heterocc."""

    code = "HC902"


class MeaningError(InternalError):
    """The imported model computes something else than the model as it was given, which is a bug in heterocc."""

    code = "HC903"
