"""Per-device properties: `--property GPU.precision=f16`, `CPU.threads=4`, `GPU.profile=on`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from heterocc.artifacts.errors import Hint, PropertyError
from heterocc.artifacts.settings import MAX_THREADS, parse_threads
from heterocc.compiler.devices.device import TargetAttr, TargetDevice
from heterocc.compiler.devices.host import runs_here
from heterocc.runtime.machine.ranking import Backend


@dataclass(frozen=True, slots=True)
class Property:
    """A property of some back ends.

    `parse` returns the value in its canonical form, or raises ValueError with the valid values. `runtime` properties
    are stored in the bundle; the others change the TVM target attribute of the same name. `refuse` returns the reason
    why a device cannot have a value that others of its back end can.
    """

    name: str
    backends: frozenset[Backend]
    meaning: str
    parse: Callable[[str], str]
    runtime: bool = True
    refuse: Callable[[TargetDevice, str], str | None] | None = None


def _precision(text: str) -> str:
    if text in ("f32", "fp32", "float32"):
        return "f32"
    if text in ("f16", "fp16", "float16"):
        return "f16"
    if text in ("bf16", "bfloat16"):
        return "bf16"
    raise ValueError("it must be f32, f16 or bf16")


KV_PRECISION = "kv_precision"


def _kv_precision(text: str) -> str:
    if text in ("i8", "int8", "u8", "uint8"):
        raise ValueError(
            "it must be f32, f16 or bf16; 8 bits need scales, which are inputs of an exporter's GroupQueryAttention"
        )
    return _precision(text)


def cache_type(properties: Iterable[str]) -> str | None:
    """The type of 16 bits that the last `kv_precision` asks for; None for float32, or a text that has no meaning."""
    asked = [value for _, name, value in parse_properties(properties) if name == KV_PRECISION]
    try:
        return {"f16": "float16", "bf16": "bfloat16"}.get(_kv_precision(asked[-1])) if asked else None
    except ValueError:  # which is an error where devices are resolved
        return None


def _no_precision(device: TargetDevice, value: str) -> str | None:
    if value == "f32":
        return None
    if device.backend == "cpu":
        if value == "f16":
            return "CPU kernels keep all values in float32; bf16 rounds the factors of their products"
        # Which CPU the code is for is known after all properties.
        return None
    if value == "bf16":
        return "only CPUs multiply in bfloat16; f16 has the same size and a longer significand"
    return None if "float16" in device.dtypes else "the device has no half precision"


def _threads(text: str) -> str:
    count = parse_threads(text)
    if count is None:
        raise ValueError(f"it must be a number of threads from 1 to {MAX_THREADS}")
    return str(count)


def _switch(text: str) -> str:
    word = {"on": "on", "true": "on", "1": "on", "off": "off", "false": "off", "0": "off"}.get(text.lower())
    if word is None:
        raise ValueError("it must be on or off")
    return word


def _word(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]+", text):
        raise ValueError("it must be a name that LLVM knows")
    return text


def _mattr(text: str) -> str:
    if not all(re.fullmatch(r"[+-][A-Za-z0-9._-]+", attr) for attr in text.split(",")):
        raise ValueError("it must be a comma-separated list of LLVM features, each with + or - before it")
    return text


_CPU: frozenset[Backend] = frozenset({"cpu"})
PROPERTIES: tuple[Property, ...] = (
    Property(
        "precision",
        frozenset({"cpu", "opencl", "vulkan", "cuda"}),
        "precision of weights and of values between kernels: f32, f16; bf16 (CPU): of the factors of products",
        _precision,
        refuse=_no_precision,
    ),
    Property(
        KV_PRECISION,
        _CPU,
        "type of keys and values in float32 that the model takes and returns, for all devices: f32, f16, bf16",
        _kv_precision,
        runtime=False,
    ),
    Property("threads", frozenset({"cpu", "ort"}), "number of threads", _threads),
    Property("profile", frozenset({"cpu", "opencl", "vulkan", "cuda", "ort"}), "time every kernel: on, off", _switch),
    Property(
        "binaries",
        frozenset({"opencl"}),
        "store the driver's binaries of the kernels in the bundle, which then differs from run to run: on, off",
        _switch,
    ),
    Property("fast_math", _CPU, "faster 3x3 convolutions with about three times the rounding error: on, off", _switch),
    Property(
        "denormals", frozenset({"cpu", "ort"}), "compute with denormal numbers, in place of zeros: on, off", _switch
    ),
    Property(
        "tune",
        frozenset({"opencl", "vulkan", "cuda"}),
        "choose the schedule of each kernel by timing it on the device, once, while compiling: on, off",
        _switch,
    ),
    Property("mcpu", _CPU, "CPU to compile for, as LLVM names it: x86-64-v3, cortex-a76", _word, runtime=False),
    Property("mtriple", _CPU, "target triple to compile for: aarch64-linux-gnu", _word, runtime=False),
    Property("mattr", _CPU, "CPU features to add or drop: +avx2,-fma", _mattr, runtime=False),
)


class Setting(NamedTuple):
    """A property of a device as the user gave it, and the place in the input, for messages."""

    device: str
    name: str
    value: str
    where: str


def parse_properties(specs: Iterable[str]) -> tuple[tuple[str, str, str], ...]:
    """`DEVICE.NAME=VALUE` texts as (device, name, value).

    Raises PropertyError (HC405) for a text of another form. The device may hold a dot itself (`GPU.1.profile=on`).
    """
    found: list[tuple[str, str, str]] = []
    for spec in specs:
        left, equals, value = spec.partition("=")
        device, dot, name = left.strip().rpartition(".")
        if not (equals and dot and device and name and value.strip()):
            raise PropertyError(
                f"'{spec}' is not of the form DEVICE.NAME=VALUE",
                where=Hint(f"properties=[{spec!r}]", f"--property {spec}"),
                hint=Hint("for example properties=['CPU.threads=4']", "for example --property CPU.threads=4"),
            )
        found.append((device.strip(), name.strip().lower(), value.strip()))
    return tuple(found)


def apply_properties(devices: tuple[TargetDevice, ...], specs: Iterable[str]) -> tuple[TargetDevice, ...]:
    """`devices` with each property set on the device that it names.

    Raises PropertyError (HC405): a device that is not listed, a property that its back end has not, a malformed
    value, or two values for one property.
    """
    found = []
    for label, name, text in parse_properties(specs):
        spec = f"{label}.{name}={text}"
        found.append(Setting(label, name, text, Hint(f"properties=[{spec!r}]", f"--property {spec}")))
    return apply_settings(devices, found)


def apply_settings(devices: tuple[TargetDevice, ...], settings: Iterable[Setting]) -> tuple[TargetDevice, ...]:
    """As `apply_properties`, for properties from anywhere."""
    chosen: dict[str, dict[str, str]] = {}
    for label, name, text, where in settings:
        device = next((d for d in devices if d.name.lower() == label.lower()), None)
        if device is None:
            listed = ", ".join(d.name for d in devices)
            raise PropertyError(f"device '{label}' is not listed", where=where, hint=f"the devices are {listed}")
        value = _value_for(device, name, text, where)
        if chosen.setdefault(device.name, {}).setdefault(name, value) != value:
            raise PropertyError(f"{device.name}.{name} is given twice, with different values", where=where)
    return tuple(_with(d, chosen[d.name]) if d.name in chosen else d for d in devices)


def with_fast_math(devices: tuple[TargetDevice, ...]) -> tuple[TargetDevice, ...]:
    """`devices` with `fast_math=on` for each that can have it and has no value of its own."""
    name, value = "fast_math", "on"
    able = next(p for p in PROPERTIES if p.name == name).backends
    return tuple(_with(d, {name: value}) if d.backend in able and name not in d.properties else d for d in devices)


def _value_for(device: TargetDevice, name: str, text: str, where: str) -> str:
    known = [p for p in PROPERTIES if device.backend in p.backends]
    match = next((p for p in known if p.name == name), None)
    if match is None:
        raise PropertyError(
            f"device {device.name} has no property '{name}'",
            where=where,
            hint="properties: " + "; ".join(f"{p.name} ({p.meaning})" for p in known),
        )
    try:
        value = match.parse(text)
    except ValueError as error:
        raise PropertyError(f"'{text}' is not a value of {device.name}.{name}: {error}", where=where) from None
    reason = match.refuse(device, value) if match.refuse is not None else None
    if reason is not None:
        hint = f"leave {device.name}.{name} out, or give it to a device that has it (see `heterocc devices`)"
        raise PropertyError(f"{device.name} cannot have {name}={value}: {reason}", where=where, hint=hint)
    return value


def _with(device: TargetDevice, values: Mapping[str, str]) -> TargetDevice:
    at_run_time = {p.name: values[p.name] for p in PROPERTIES if p.runtime and p.name in values}
    device = dataclasses.replace(device, properties={**device.properties, **at_run_time})
    if not any(p.name in values for p in PROPERTIES if not p.runtime):
        return device
    target: dict[str, TargetAttr] = dict(device.target)
    if "mtriple" in values or "mcpu" in values:
        # The features and the model listed so far are those of the CPU compiled for until now.
        target.pop("mattr", None)
        target.pop("model", None)
    if "mtriple" in values:
        target["mtriple"] = values["mtriple"]
        target.pop("mcpu", None)
    if "mcpu" in values:
        target["mcpu"] = values["mcpu"]
    if "mattr" in values:
        before = target.get("mattr", ())
        target["mattr"] = (*(before if isinstance(before, tuple) else (str(before),)), *values["mattr"].split(","))
    return dataclasses.replace(device, target=target, present=device.present and runs_here(target))
