"""The source of a model: a file, or the bytes of one in memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from heterocc.artifacts.errors import NotOnnxError, UsageError
from heterocc.artifacts.foreign import pass_foreign
from heterocc.compiler.importer.weight_form import WeightForm

if TYPE_CHECKING:  # the command line starts without onnx
    import onnx

AnyModel: TypeAlias = "str | Path | bytes | bytearray | memoryview | onnx.ModelProto"
"""A model as an argument of the public functions: a path, a ModelProto, or the bytes of one."""

_NAME = "model"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """A model that is not read yet.

    `path` is its file. If `data` has its bytes, `path` is only its name and the folder of its external data; without a
    folder (`placed` is false) external data is not allowed. `weights` is the form of its weights, if
    they are compressed, `caches` the type of 16 bits of its keys and values, if it has them in float32 and they are
    stored in another.
    """

    path: Path
    data: bytes | None = None
    placed: bool = True
    weights: WeightForm | None = None
    caches: str | None = None

    def default_output(self) -> Path:
        """The bundle's default path: the model's name, in the current directory. Raises UsageError if it has none."""
        if self.data is not None:
            raise UsageError(
                "a model without a file has no default name for the bundle",
                where="compile_model(output=…)",
                hint="give the path of the bundle as output",
            )
        # A file with this suffix is a bundle, which its reader says: its own name would be an error of the output.
        return Path(f"{self.path.name if self.path.suffix == '.hcb' else self.path.stem}.hcb")


def as_source(model: AnyModel | ModelSource, base_dir: str | Path | None = None) -> ModelSource:
    """The model as a source; `base_dir` is the folder of the external data of one without a file.

    Raises UsageError (HC120) if `model` is not a model, or for a `base_dir` beside a path, and NotOnnxError for a
    ModelProto that is too large to be written as one message.
    """
    if isinstance(model, ModelSource):
        return model
    if isinstance(model, str | Path):
        if base_dir is not None:
            raise UsageError(
                "base_dir is for a model without a file",
                where="base_dir=…",
                hint="leave it out: external data is read from the folder of the model's file",
            )
        return ModelSource(Path(model))
    folder = Path() if base_dir is None else Path(base_dir)
    return ModelSource(folder / _NAME, _bytes_of(model), placed=base_dir is not None)


def _bytes_of(model: object) -> bytes:
    if isinstance(model, bytes | bytearray | memoryview):
        return bytes(model)
    import onnx

    if not isinstance(model, onnx.ModelProto):
        raise UsageError(
            f"a model is a path, an onnx.ModelProto or the bytes of one, not {type(model).__name__}",
            hint="export the model to ONNX first",
        )
    try:
        data: bytes = model.SerializeToString(deterministic=True)
    except Exception as error:  # protobuf has one error class per implementation
        pass_foreign(error)
        raise NotOnnxError(
            "the ModelProto is larger than 2 GB, the limit of ONNX's file format",
            hint="save it with onnx.save_model(..., save_as_external_data=True) and give the path",
        ) from error
    return data
