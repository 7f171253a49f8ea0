"""Device files: descriptions of absent devices in TOML or JSON; docs/devices.md has examples."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from heterocc.artifacts.dtypes import CARRIED, NUMERIC_DTYPES
from heterocc.artifacts.errors import DeviceFileError, FileMissingError
from heterocc.artifacts.files.filetype import EMPTY, TEXT, file_kind
from heterocc.artifacts.files.opening import open_file
from heterocc.artifacts.files.source import reading_hint
from heterocc.artifacts.files.texts import parse_json, parse_toml
from heterocc.artifacts.foreign import pass_foreign
from heterocc.compiler.devices.device import TargetAttr, TargetDevice
from heterocc.compiler.devices.host import host_cpu, runs_here
from heterocc.passes.cost import Link, PartitionRules
from heterocc.runtime.machine.found import GENERIC_GPU_DTYPES
from heterocc.runtime.machine.ranking import Backend, Unit

MAX_FILE_BYTES = 1 << 20

VULKAN_SUPPORTS: tuple[tuple[tuple[str, ...], frozenset[str]], ...] = (
    (("supports_float64",), frozenset(["float64"])),
    (("supports_int64",), frozenset(["int64", "uint64"])),
    (("supports_float16", "supports_16bit_buffer"), frozenset(["float16"])),
    (("supports_int16", "supports_16bit_buffer"), frozenset(["int16", "uint16"])),
    (("supports_int8", "supports_8bit_buffer"), frozenset(["int8", "uint8", "bool"])),
)
"""Attributes of a Vulkan target, and the dtypes that a device with all of them stores and computes."""

VULKAN_NAN = frozenset(["supports_nan16", "supports_nan32", "supports_nan64"])
"""Attributes of a Vulkan target besides TVM's: code may require that NaN, infinities and signed zeros are preserved."""

_TARGET_KIND: dict[Backend, str] = {"cpu": "llvm", "opencl": "opencl", "vulkan": "vulkan", "cuda": "cuda"}
_TARGET_KEYS: dict[Backend, frozenset[str]] = {
    "cpu": frozenset(["kind", "mtriple", "mcpu", "mattr", "mabi", "mfloat-abi", "num-cores", "keys", "model"]),
    "opencl": frozenset(
        [
            "kind",
            "max_num_threads",
            "max_threads_per_block",
            "max_shared_memory_per_block",
            "thread_warp_size",
            "texture_spatial_limit",
            "texture_depth_limit",
            "max_function_args",
            "image_base_address_alignment",
            "keys",
        ]
    ),
    "vulkan": frozenset(
        [
            "kind",
            "max_num_threads",
            "max_threads_per_block",
            "max_block_size_x",
            "max_block_size_y",
            "max_block_size_z",
            "max_shared_memory_per_block",
            "max_push_constants_size",
            "max_storage_buffer_range",
            "max_per_stage_descriptor_storage_buffer",
            "supported_subgroup_operations",
            "thread_warp_size",
            "keys",
            *(key for keys, _ in VULKAN_SUPPORTS for key in keys),
            *VULKAN_NAN,
        ]
    ),
    "cuda": frozenset(
        [
            "kind",
            "arch",
            "max_num_threads",
            "max_threads_per_block",
            "max_shared_memory_per_block",
            "thread_warp_size",
            "registers_per_block",
            "l2_cache_size_bytes",
            "keys",
        ]
    ),
}
_AS_LARGE_AS_GROUPS = frozenset(["max_threads_per_block", "max_block_size_x", "max_block_size_y"])
_RESERVED = frozenset(["AUTO", "ORT"])

CUDA_ARCH = re.compile(r"sm_[0-9]{2,3}[af]?")
"""nvcc's name of a real architecture, such as `sm_90`; with suffix `a` or `f`, for this one or its family only."""

DType = Literal[
    "float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool"
]
Bytes = Annotated[int, Field(gt=0, le=2**63 - 1)]
Name = Annotated[str, Field(min_length=1)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class LinkRecord(_Record):
    """The cost of a transfer to another device: `latency` in seconds, `bandwidth` in bytes/s."""

    latency: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1e-5
    bandwidth: Rate = 1e10


class PartitionsRecord(_Record):
    """Constraints on the device's partitions, as in `PartitionRules`.

    `never_first` and `never_last` are operator types with which no partition may start or end, `only_beside` operator
    types with the types of which a neighbour must be in the same partition (an empty list: any). `min_nodes`,
    `min_seconds` (estimated) and `max_count` bound the size and the number of partitions.
    """

    never_first: list[Name] = []
    never_last: list[Name] = []
    only_beside: dict[Name, list[Name]] = {}
    min_nodes: Annotated[int, Field(ge=1, le=2**31)] = 1
    min_seconds: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] = 0.0
    max_count: Annotated[int, Field(ge=1, le=2**31)] | None = None

    def rules(self) -> PartitionRules:
        """The constraints for placement."""
        return PartitionRules(
            tuple(self.never_first),
            tuple(self.never_last),
            tuple((op_type, tuple(near)) for op_type, near in self.only_beside.items()),
            self.min_nodes,
            self.min_seconds,
            self.max_count,
        )


class DeviceFile(_Record):
    """A device file.

    `name` is the label for `--devices`; it may be `CPU`, to compile for another CPU than this machine's. `target` are
    TVM target attributes. `refuses` are operator types (`Softmax`, `com.microsoft::FusedMatMul`) not to be placed on
    the device. `memory` and `max_buffer` are in bytes, `flops` in FLOP/s, `bandwidth` in bytes/s. `links` has the
    costs of transfers to other devices, by their names, `partitions` the constraints on its partitions. `dtypes` are
    those that the device stores and computes; the default is all numeric ones, except float64 and float16 on a GPU of a
    back end other than cuda. A CUDA device needs `target.arch`, such as `sm_90`. For a Vulkan device,
    `target.supports_…` add dtypes or remove them, the default of a limit is the minimum that the Vulkan specification
    guarantees, and each axis of a work group may be as long as the group.
    """

    name: Annotated[str, Field(pattern=r"^\p{L}[\p{L}\p{M}\p{N}_-]{0,31}(\.[0-9]{1,3})?$")]
    backend: Literal["cpu", "opencl", "vulkan", "cuda"]
    description: str = ""
    unit: Unit | None = None
    target: dict[str, str | int | bool | list[str]] = {}
    memory: Bytes | None = None
    max_buffer: Bytes | None = None
    dtypes: Annotated[list[DType], Field(min_length=1)] | None = None
    refuses: list[str] = []
    flops: Rate | None = None
    bandwidth: Rate | None = None
    links: dict[str, LinkRecord] = {}
    partitions: PartitionsRecord = PartitionsRecord()

    @model_validator(mode="after")
    def _check_target(self) -> DeviceFile:
        if self.name.upper() in _RESERVED:
            raise ValueError(f"'{self.name}' is reserved")
        known = _TARGET_KEYS[self.backend]
        for key in self.target:
            if key not in known:
                raise ValueError(f"target has no attribute '{key}'; it has {', '.join(sorted(known))}")
            value = self.target[key]
            if key.startswith("supports_") and not isinstance(value, bool):
                raise ValueError(f"target.{key} must be true or false")
            if key.startswith(("max_", "thread_")) and (type(value) is not int or value < 1):
                raise ValueError(f"target.{key} must be an integer, 1 or more")
        kind = self.target.get("kind", _TARGET_KIND[self.backend])
        if kind != _TARGET_KIND[self.backend]:
            raise ValueError(
                f"target.kind is '{kind}', but back end {self.backend} requires '{_TARGET_KIND[self.backend]}'"
            )
        arch = self.target.get("arch")
        if self.backend == "cuda" and not (isinstance(arch, str) and CUDA_ARCH.fullmatch(arch)):
            raise ValueError('target.arch must name the GPU\'s architecture, such as "sm_90"')
        return self

    def device(self) -> TargetDevice:
        """The described device. A CPU counts as present if this machine can run its code."""
        target: dict[str, TargetAttr] = {"kind": _TARGET_KIND[self.backend]}
        for key, value in self.target.items():
            target[key] = tuple(value) if isinstance(value, list) else value
        present = False
        if self.backend == "cpu":
            target.setdefault("mtriple", f"{host_cpu().arch}-linux-gnu")
            if isinstance(attrs := target.get("mattr"), str):
                target["mattr"] = tuple(attrs.split(","))
            present = runs_here(target)
        elif "max_num_threads" in target:
            for key in _AS_LARGE_AS_GROUPS & _TARGET_KEYS[self.backend]:
                target.setdefault(key, target["max_num_threads"])
        elif self.backend == "opencl":
            target.update(GENERIC_OPENCL_TARGET | target)
        default = NUMERIC_DTYPES if self.backend in ("cpu", "cuda") else GENERIC_GPU_DTYPES
        if self.backend == "cpu":
            default = default | CARRIED.keys()
        if self.backend == "vulkan":
            default = _vulkan_dtypes(target)
        return TargetDevice(
            name=self.name,
            backend=self.backend,
            target=target,
            present=present,
            description=self.description,
            dtypes=frozenset(self.dtypes) if self.dtypes else default,
            refuses=frozenset(self.refuses),
            memory=self.memory,
            max_buffer=self.max_buffer,
            flops=self.flops,
            bandwidth=self.bandwidth,
            unit=self.unit or ("cpu" if self.backend == "cpu" else "other"),
            partitions=self.partitions.rules(),
            links={name: Link(link.latency, link.bandwidth) for name, link in self.links.items()},
        )


GENERIC_OPENCL_TARGET: dict[str, TargetAttr] = {
    "kind": "opencl",
    "max_num_threads": 256,
    "max_threads_per_block": 256,
    "max_shared_memory_per_block": 16384,
    "thread_warp_size": 1,
}
"""The features of every OpenCL GPU of the last decade, without sub-groups."""


def _vulkan_dtypes(target: Mapping[str, TargetAttr]) -> frozenset[str]:
    """The generic dtypes, plus those that the target's attributes add and minus those that they remove."""
    dtypes = set(GENERIC_GPU_DTYPES)
    for keys, names in VULKAN_SUPPORTS:
        given = [bool(target[key]) for key in keys if key in target]
        if not all(given):
            dtypes -= names
        elif len(given) == len(keys):
            dtypes |= names
    return frozenset(dtypes)


def read_device_file(path: Path) -> TargetDevice:
    """Read the device from a TOML or JSON file (by suffix).

    Raises FileMissingError (HC101), and DeviceFileError (HC109) with the place of an unknown key or invalid value.
    """
    raw = read_data(path, "device file", "describes a device")
    try:
        return DeviceFile.model_validate(raw).device()
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(p) for p in first["loc"])
        what = first["msg"].removeprefix("Value error, ")
        if first["type"] == "extra_forbidden":
            what, hint = "unknown key", f"keys: {', '.join(DeviceFile.model_fields)}"
            if len(first["loc"]) > 1:
                hint = "see the keys in `python -m heterocc.compiler.devices.schema`"
        else:
            hint = "see `python -m heterocc.compiler.devices.schema` for the form of a device file"
        at = f"{place}: " if place else ""
        raise DeviceFileError(f"{at}{what}", where=f"{path}: {place}" if place else str(path), hint=hint) from None


def read_data(path: Path, role: str, does: str) -> Any:
    """The contents of a TOML or JSON file (by suffix); `role` and `does` describe it in messages.

    Raises FileMissingError (HC101) and DeviceFileError (HC109).
    """
    try:
        with open_file(path) as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        pass_foreign(error)
        what = f"cannot read {role} '{path}': {error.strerror}"
        raise FileMissingError(what, where=str(path), hint=reading_hint(error)) from None
    if len(data) > MAX_FILE_BYTES:
        raise DeviceFileError(f"the {role} has more than {MAX_FILE_BYTES} bytes", where=str(path))
    suffix = path.suffix.lower()
    if suffix not in (".toml", ".json"):
        kind = file_kind(data)
        what = f"the {role} is {kind}" if kind not in (None, TEXT, EMPTY) else f"the {role} is neither .toml nor .json"
        raise DeviceFileError(what, where=str(path), hint=f"name a .toml or .json file that {does}")
    try:
        text = data.decode("utf-8")
        return parse_toml(text) if suffix == ".toml" else parse_json(text)
    except UnicodeDecodeError:
        raise DeviceFileError(f"the {role} is not UTF-8 text", where=str(path)) from None
    except ValueError as error:
        pass_foreign(error)
        kind = suffix[1:].upper()
        raise DeviceFileError(f"the {role} is not valid {kind}: {error}", where=str(path)) from None


def device_file_schema() -> dict[str, Any]:
    """The JSON schema of a device file, equal to `device-file.schema.json` in this folder."""
    schema = {**DeviceFile.model_json_schema(), "title": "heterocc device file"}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
