"""Parsing of untrusted manifest bytes to a `Manifest` with valid references and sizes (FORMAT.md, "Manifest")."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any, NoReturn

from heterocc.artifacts.container import name_is_safe
from heterocc.artifacts.dtypes import CARRIED, COMPUTED, NUMPY, STORAGE, container, is_value_dtype
from heterocc.artifacts.dynamic import check_dynamic, is_static
from heterocc.artifacts.errors import BundleManifestError, BundleVersionError
from heterocc.artifacts.foreign import pass_foreign
from heterocc.artifacts.manifest import (
    ARRANGED,
    CONTAINED,
    FORMAT_MAJOR,
    FORMAT_MINOR,
    FORMAT_NAME,
    PLAIN,
    RESERVED_NAMES,
    WIDENED,
    Device,
    Dim,
    Manifest,
    Partition,
    TensorSpec,
    Variant,
    Weight,
)
from heterocc.artifacts.records import MalformedError
from heterocc.artifacts.settings import MAX_THREADS
from heterocc.artifacts.weights.layouts import layout_problem
from heterocc.artifacts.weights.tensors import ALIGNMENT, aligned, tensor_bytes

_MAX_BYTES = 2**62

_HALF = re.compile(rb"\\u[dD][89a-fA-F]")
"""Escape sequences of halves of surrogate pairs, which the JSON parser accepts alone, too."""

MAX_MARKS = 2**20
"""Maximum of commas and opening brackets in a manifest, which bounds its parsed size: enough for 40,000 nodes."""


def read_version(data: bytes) -> tuple[int, int]:
    """Major and minor format version of manifest bytes, read before all other fields.

    Raises BundleVersionError (HC302) for a major version that this reader does not know, and BundleManifestError
    (HC304) for bytes that are not a manifest: not JSON, a key twice in one object, nested too deeply, too many values,
    another `format`.
    """
    if count_marks(data) > MAX_MARKS:
        raise BundleManifestError(f"the manifest has more than {MAX_MARKS} fields and elements")
    try:
        content = json.loads(data.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError:
        raise BundleManifestError("the manifest is nested too deeply") from None
    except ValueError as error:  # invalid JSON, invalid UTF-8, or an integer that is too long
        pass_foreign(error)
        raise BundleManifestError(f"the manifest is not JSON: {error}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT_NAME:
        raise BundleManifestError(f"the manifest's format is not '{FORMAT_NAME}'")
    version = content.get("version")
    numbers = (version.get("major"), version.get("minor")) if isinstance(version, dict) else (None, None)
    match numbers:
        case (bool(), _) | (_, bool()):
            pass
        case (int(major), int(minor)) if major >= 0 and minor >= 0:
            if not PLAIN[0] <= major <= FORMAT_MAJOR:
                raise BundleVersionError(
                    f"the bundle has format version {_short(major)}.{_short(minor)}, but this heterocc reads "
                    f"{PLAIN[0]}.x to {FORMAT_MAJOR}.x (it writes {PLAIN[0]}.{PLAIN[1]}, {ARRANGED[0]}.{ARRANGED[1]} "
                    f"and {FORMAT_MAJOR}.{FORMAT_MINOR})",
                    hint="compile the model again with this heterocc, or use the one that wrote the bundle",
                )
            return major, minor
    raise BundleManifestError("the manifest has no valid version")


def count_marks(data: bytes) -> int:
    """An upper bound of the number of values in JSON text, minus one; text between quotes counts too."""
    return data.count(b",") + data.count(b"[") + data.count(b"{")


def parse_manifest(data: bytes) -> Manifest:
    """The manifest in `data` with checked types; unknown fields are ignored. Call `read_version` first."""
    try:
        if _HALF.search(data) and (content := json.loads(data)):
            json.dumps(content, ensure_ascii=False).encode("utf-8")
        return Manifest.model_validate_json(data)
    except UnicodeEncodeError:
        raise BundleManifestError("the manifest is malformed: a text has half of a surrogate pair") from None
    except MalformedError as error:
        place = ".".join(map(str, error.place)) or "the top"
        raise BundleManifestError(f"the manifest is malformed at {place[:200]!r}: {error.message[:200]}") from None


def check_manifest(manifest: Manifest, members: Mapping[str, int]) -> None:
    """Check every cross reference; `members` gives the size of every member of the zip by name.

    Raises BundleManifestError (HC304) naming the record at fault. After this check, indices, member names, offsets and
    sizes in the manifest can be used without further checks.
    """
    _check_members(manifest, members)
    _check_weights(manifest, members[manifest.weights_member])
    _check_values(manifest.model.inputs, "of the model's inputs")
    _check_values(manifest.model.outputs, "of the model's outputs")
    _unique_names((t.name for t in manifest.model.inputs), "model inputs")
    _unique_names((v.name for v in manifest.variants), "variants")
    files = {m.name for m in manifest.members} - {manifest.weights_member}
    for variant in manifest.variants:
        _check_variant(manifest, variant, files)
    _check_replacing(manifest, files)
    _check_golden(manifest, files)
    _check_defaults(manifest, files)
    problem = check_dynamic(manifest)
    if problem is not None:
        _fail(problem)


def _check_members(manifest: Manifest, members: Mapping[str, int]) -> None:
    _unique_names((m.name for m in manifest.members), "members")
    listed = {m.name for m in manifest.members}
    for member in manifest.members:
        if not name_is_safe(member.name) or member.name in RESERVED_NAMES:
            _fail(f"member name {member.name!r} is not allowed")
        if member.name not in members:
            _fail(f"member '{member.name}' is not in the file")
        if member.size != members[member.name]:
            _fail(f"member '{member.name}' has {members[member.name]} bytes, but the manifest says {member.size}")
        if (member.sha256 is None) != (member.name == manifest.weights_member):
            _fail(f"member '{member.name}' must have a SHA-256, unless it is the weight file, which must have none")
    for name in members:
        if name not in listed and name not in RESERVED_NAMES:
            _fail(f"member '{name}' is in the file but not in the manifest")
    if manifest.weights_member not in listed:
        _fail(f"the weight file '{manifest.weights_member}' is not listed")


def _check_weights(manifest: Manifest, size: int) -> None:
    for index, weight in enumerate(manifest.weights):
        nbytes = tensor_bytes(weight.dtype, weight.shape)
        if nbytes is None:
            _fail(f"weight {index} has unknown dtype {weight.dtype[:40]!r}")
        if nbytes != weight.nbytes:
            _fail(f"weight {index} has {weight.nbytes} bytes, but its dtype and shape require {nbytes}")
        if math.prod(max(d, 1) for d in weight.shape) * STORAGE[weight.dtype].itemsize > _MAX_BYTES:
            _fail(f"weight {index} has dimensions that are too large")
        if weight.offset % ALIGNMENT:
            _fail(f"weight {index} is not at a {ALIGNMENT}-byte boundary")
        if weight.offset + weight.nbytes > size:
            _fail(f"weight {index} reaches outside the weight file ({size} bytes)")
    end, owner = 0, Weight(dtype="bool", shape=(0,), offset=0, nbytes=0, sha256="0" * 64)
    for weight in sorted(manifest.weights, key=lambda w: (w.offset, w.nbytes)):
        if weight.nbytes == 0 or weight.offset >= end:
            pass
        elif (weight.offset, weight.nbytes, weight.sha256) != (owner.offset, owner.nbytes, owner.sha256):
            _fail(f"two weights overlap at offset {weight.offset}")
        if weight.nbytes:
            end, owner = weight.offset + weight.nbytes, weight


def _check_replacing(manifest: Manifest, files: set[str]) -> None:
    replacing = manifest.replacing
    if replacing is None:
        return
    where = "the variant for other values"
    names = [spec.name for spec in replacing.inputs]
    _check_values(replacing.inputs, f"of the inputs of {where}")
    _unique_names((*(spec.name for spec in manifest.model.inputs), *names), f"inputs of {where}")
    _unique_names((variant.name for variant in manifest.all_variants), "variants")
    if tuple(names) != manifest.model.held:
        _fail(f"the inputs of {where} are not the model's constants that a run may replace")
    if set(replacing.defaults) != set(names):
        _fail(f"the defaults of {where} are not those of its inputs")
    for default in replacing.defaults.values():
        if isinstance(default, int):
            _in_range((default,), len(manifest.weights), f"defaults of {where}")
        elif default not in files:
            _fail(f"default member {default!r} is not in the bundle")
    variant = replacing.variant
    _check_variant(manifest, variant, files, replacing.inputs)
    if variant.shapes_of is not None or any(part.kind != "onnx" for part in variant.partitions):
        _fail(f"{where} is not for ONNX Runtime alone")


def _check_variant(manifest: Manifest, variant: Variant, files: set[str], further: Sequence[TensorSpec] = ()) -> None:
    """`further` are inputs of the variant behind those of the model."""
    where = f"variant {variant.name[:80]!r}"
    if variant.plan not in files:
        _fail(f"the plan of {where} is not a member: {variant.plan!r}")
    _unique_names((d.name for d in variant.devices), f"devices of {where}")
    _unique_names((v.name for v in variant.values), f"values of {where}")
    _unique_names((p.name for p in variant.partitions), f"partitions of {where}")
    for device in variant.devices:
        _check_properties(device, where)
    _check_values(variant.values, f"of {where}")
    _in_range(variant.inputs, len(variant.values), f"inputs of {where}")
    _in_range(variant.outputs, len(variant.values), f"outputs of {where}")
    _same_specs((*manifest.model.inputs, *further), variant, variant.inputs, f"inputs of {where}")
    _same_specs(manifest.model.outputs, variant, variant.outputs, f"outputs of {where}")
    _check_rooms(variant, where)
    ready: set[int] = set()
    _write(ready, variant.inputs, variant, f"inputs of {where}")
    _write(ready, _check_constants(manifest, variant, where), variant, f"constants of {where}")
    for part in variant.partitions:
        place = f"partition {part.name[:80]!r} of {where}"
        _in_range((part.device,), len(variant.devices), f"device of {place}")
        _in_range((*part.inputs, *part.outputs), len(variant.values), f"values of {place}")
        _in_range(part.params, len(manifest.weights), f"params of {place}")
        if part.code not in files:
            _fail(f"the code of {place} is not a member: {part.code!r}")
        if part.binaries is not None and part.binaries not in files:
            _fail(f"the binaries of {place} are not a member: {part.binaries!r}")
        if (part.kind == "onnx") != (variant.devices[part.device].backend == "ort"):
            _fail(f"{place} is of kind '{part.kind}' on a device of back end '{variant.devices[part.device].backend}'")
        if len(part.param_names) != len(part.params) and (part.kind == "onnx" or part.param_names):
            _fail(f"{place} has {len(part.params)} params but {len(part.param_names)} names for them")
        if part.layouts and (part.kind != "tvm" or manifest.version.major == PLAIN[0]):
            _fail(f"{place} has layouts, which its kind or the bundle's version does not allow")
        if part.sequences and part.kind != "tvm":
            _fail(f"{place} is not compiled code, but has sequences of its own")
        if part.kind == "tvm":
            _check_compiled(manifest, variant, part, place)
            _check_layouts(manifest, part, place)
        for index in part.inputs:
            if index not in ready:
                _fail(f"{place} reads {variant.values[index].name[:80]!r} before it is written")
        _write(ready, part.outputs, variant, place)
    for index in variant.outputs:
        if index not in ready:
            _fail(f"output {variant.values[index].name[:80]!r} of {where} is never written")


def _check_properties(device: Device, where: str) -> None:
    threads = device.properties.get("threads")
    if threads is not None and device.settings.threads is None:
        what = f"property 'threads' of device {device.name[:80]!r} of {where}"
        _fail(f"{what} is {threads[:40]!r}, not a number from 1 to {MAX_THREADS}")


def _check_values(values: Sequence[TensorSpec], where: str) -> None:
    total = 0
    for value in values:
        if not is_value_dtype(value.dtype):
            _fail(f"value {value.name[:80]!r} {where} has unknown dtype {value.dtype[:40]!r}")
        if value.elements is not None and container(value.dtype) is None:
            _fail(f"value {value.name[:80]!r} {where} is {value.dtype[:40]} and has the shape of elements")
        if math.prod(max(d, 1) for d in value.shape or () if isinstance(d, int)) > _MAX_BYTES // 16:
            _fail(f"value {value.name[:80]!r} {where} has dimensions that are too large")
        storage = NUMPY.get(value.dtype)
        if storage is not None and value.shape is not None:
            total += aligned(math.prod(d if isinstance(d, int) else 0 for d in value.shape) * storage.itemsize)
    if total > _MAX_BYTES:
        _fail(f"the values {where} have {total} bytes in total, more than {_MAX_BYTES}")


def _check_compiled(manifest: Manifest, variant: Variant, part: Partition, place: str) -> None:
    """Check that compiled code has tensors of computed dtypes; others would crash the process.

    Code may have dynamic shapes, from version 3 on; their rank must be known. For devices other than the CPU it must
    be known how many bytes such an input can have. Code for CPUs may also have dtypes that numpy lacks, and
    from version 6 on sequences and optional values.
    """
    dynamic = manifest.version.major > ARRANGED[0]
    on_cpu = variant.devices[part.device].backend == "cpu"
    if not on_cpu:
        roomless = [i for i in part.inputs if not is_static(variant.values[i]) and str(i) not in variant.rooms]
        if roomless or not variant.rooms:
            dynamic = False
    if part.sequences and not (on_cpu and manifest.version.major >= CONTAINED[0]):
        _fail(f"{place} has sequences, which its device or the bundle's version does not allow")
    for index in (*part.inputs, *part.outputs):
        value = variant.values[index]
        if part.sequences and container(value.dtype) is not None:
            continue
        if value.dtype not in COMPUTED and not (dynamic and on_cpu and value.dtype in CARRIED):
            _fail(f"{place} is compiled, but value {value.name[:80]!r} is {value.dtype[:40]}, which no device computes")
        if not (is_static(value) or (dynamic and value.shape is not None)):
            _fail(f"{place} is compiled, but value {value.name[:80]!r} has no static shape")
    for index in part.params:
        dtype = manifest.weights[index].dtype
        if dtype not in COMPUTED:
            _fail(f"{place} is compiled, but weight {index} is {dtype}, which no device computes")


def _check_layouts(manifest: Manifest, part: Partition, place: str) -> None:
    for key, layout in part.layouts.items():
        if not key.isascii() or not key.isdecimal() or len(key) > 10 or str(int(key)) != key:
            _fail(f"layouts of {place}: {key[:40]!r} is not an index")
        _in_range((int(key),), len(part.params), f"layouts of {place}")
        problem = layout_problem(manifest.weights[part.params[int(key)]], layout)
        if problem is None and layout.widens is not None and manifest.version.major < WIDENED[0]:
            problem = "widens a weight, which the bundle's version does not allow"
        if problem is not None:
            _fail(f"layout {key} of {place} {problem}")


def _check_rooms(variant: Variant, where: str) -> None:
    for key, nbytes in variant.rooms.items():
        if not key.isascii() or not key.isdecimal() or len(key) > 10 or str(int(key)) != key:
            _fail(f"rooms of {where}: {key[:40]!r} is not an index")
        _in_range((int(key),), len(variant.values), f"rooms of {where}")
        if is_static(variant.values[int(key)]) or variant.values[int(key)].dtype not in COMPUTED:
            _fail(f"rooms of {where}: value {variant.values[int(key)].name[:80]!r} is not a tensor of dynamic shape")
        if nbytes > _MAX_BYTES:
            _fail(f"rooms of {where}: value {variant.values[int(key)].name[:80]!r} has {nbytes} bytes")


def _check_constants(manifest: Manifest, variant: Variant, where: str) -> list[int]:
    indices = []
    for key, weight_index in variant.constants.items():
        if not key.isascii() or not key.isdecimal() or len(key) > 10 or str(int(key)) != key:
            _fail(f"constants of {where}: {key[:40]!r} is not an index")
        _in_range((int(key),), len(variant.values), f"constants of {where}")
        _in_range((weight_index,), len(manifest.weights), f"constants of {where}")
        value, weight = variant.values[int(key)], manifest.weights[weight_index]
        if value.dtype != weight.dtype or value.shape != weight.shape:
            _fail(f"constant {value.name[:80]!r} of {where} differs in dtype or shape from weight {weight_index}")
        indices.append(int(key))
    return indices


def _same_specs(specs: Sequence[TensorSpec], variant: Variant, indices: Sequence[int], where: str) -> None:
    if len(specs) != len(indices):
        _fail(f"{where}: {len(indices)}, but the model has {len(specs)}")
    for spec, index in zip(specs, indices, strict=True):
        value = variant.values[index]
        same = spec.dtype == value.dtype
        if spec.shape is not None and value.shape is not None:
            same = same and len(spec.shape) == len(value.shape)
            same = same and all(_may_be_equal(a, b) for a, b in zip(spec.shape, value.shape, strict=False))
        if not same:
            _fail(f"{where}: {value.name[:80]!r} differs in dtype or shape from the model's {spec.name[:80]!r}")


def _may_be_equal(one: Dim, other: Dim) -> bool:
    return one == other or not (isinstance(one, int) and isinstance(other, int))


def _write(ready: set[int], new: Iterable[int], variant: Variant, where: str) -> None:
    for index in new:
        if index in ready:
            _fail(f"{where}: {variant.values[index].name[:80]!r} is written twice")
        ready.add(index)


def _check_defaults(manifest: Manifest, files: set[str]) -> None:
    names = {t.name for t in manifest.model.inputs}
    for name, member in manifest.model.defaults.items():
        if name not in names:
            _fail(f"the default of {name[:80]!r} is not for an input of the model")
        if member not in files:
            _fail(f"default member {member!r} is not in the bundle")


def _check_golden(manifest: Manifest, files: set[str]) -> None:
    kinds = (("inputs", manifest.model.inputs), ("outputs", manifest.model.outputs))
    for golden, (kind, tensors) in product(manifest.all_goldens, kinds):
        named: Mapping[str, str] = getattr(golden, kind)
        # Outputs that are maps or sequences have no golden vectors; a run needs all inputs.
        left_out = {t.name for t in tensors} - set(named)
        if not set(named) <= {t.name for t in tensors} or (left_out and kind == "inputs"):
            _fail(f"the golden {kind} differ from those of the model")
        for name in named.values():
            if name not in files:
                _fail(f"golden member {name!r} is not in the bundle")


def _in_range(indices: Iterable[int], count: int, where: str) -> None:
    for index in indices:
        if index >= count:
            _fail(f"{where}: index {index} of {count}")


def _unique_names(names: Iterable[str], where: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            _fail(f"{where}: {name[:80]!r} appears twice")
        seen.add(name)


def _fail(message: str) -> NoReturn:
    raise BundleManifestError(message, hint="the bundle is damaged or was written by a faulty tool; compile it again")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a key appears twice")
    return content


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _short(number: int) -> str:
    return str(number) if number < 10**9 else "huge"
