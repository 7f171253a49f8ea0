"""Matching of a list of devices with the variants of a bundle."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from heterocc.artifacts.manifest import Device, Variant
from heterocc.runtime.machine.ranking import GPU_BACKENDS, label_of

_FIRST = r"(GPU|OPENCL|VULKAN|CUDA|CPU|ORT)\.0"


def match_variants(variants: Sequence[Variant], wanted: Sequence[str]) -> tuple[tuple[Variant, ...], str | None]:
    """The variants that match a list of devices, and a remark if they match only in part.

    Empty if none matches; more than one if the list is ambiguous. Case does not matter, and `GPU.0` is `GPU`. The first
    of these rules that matches any variant applies:

    1. the variant's labels are the listed names, in this order;
    2. the variant's labels are the listed names, in another order: the order of the compile applies, with a remark;
    3. the list is one word, and it is the variant's name (`main`, `cpu`);
    4. each device has one of the names: its label, its back end and number (`OPENCL.1`), or `GPU` for a GPU's back end.
       Thus `OPENCL` matches a variant that was compiled for `GPU` if that was an OpenCL device;
    5. as 1, 2 and 4, but the variant also needs ORT, the device of last resort;
    6. the variant's devices are a part of the list with its first: the compile placed nothing on the others.
    """
    names = [_plain(name) for name in wanted]
    rules: tuple[tuple[Callable[[Variant], bool], str | None], ...] = (
        (lambda v: _labels(v.devices) == names, None),
        (lambda v: sorted(_labels(v.devices)) == sorted(names), "in the order that it was compiled for"),
        (lambda v: len(names) == 1 and v.name.upper() == names[0], None),
        (lambda v: _are(v.devices, names), "which is the matching variant of this bundle"),
        (lambda v: _are(_without_ort(v.devices), names), "for this variant needs ONNX Runtime for the rest"),
        (lambda v: _within(v.devices, names), "for nothing was placed on the others"),
    )
    for fits, remark in rules:
        found = tuple(v for v in variants if fits(v))
        if found:
            return found, remark
    return (), None


def answers(device: Device, name: str) -> bool:
    """Return whether a device has a name: its label, its back end and number, or `GPU` for a GPU's back end."""
    return any(_plain(name) in group for group in _groups(device))


def _plain(name: str) -> str:
    upper = name.upper()
    found = re.fullmatch(_FIRST, upper)
    return upper if found is None else found[1]


def _labels(devices: Sequence[Device]) -> list[str]:
    return [_plain(d.name) for d in devices]


def _groups(device: Device) -> tuple[frozenset[str], ...]:
    """The names of a device in groups, the most specific first."""
    return (
        frozenset([_plain(device.name)]),
        frozenset([label_of(device.backend, device.index)]),
        frozenset(["GPU"] if device.backend in GPU_BACKENDS else []),
    )


def _are(devices: Sequence[Device], names: Sequence[str]) -> bool:
    """Return whether names and devices can be paired, each with one of the other."""
    return len(devices) == len(names) and _left(devices, names) == []


def _within(devices: Sequence[Device], names: Sequence[str]) -> bool:
    """Return whether each device has a name in the list and the first name has a device."""
    if not devices or len(devices) >= len(names) or not any(answers(d, names[0]) for d in devices):
        return False
    left = _left(devices, names)
    return left is not None and len(left) == len(names) - len(devices)


def _left(devices: Sequence[Device], names: Sequence[str]) -> list[str] | None:
    """The names that remain after each device was assigned a different one; None if a device has none."""
    left, open_ = list(names), list(devices)
    for closeness in range(3):
        for device in tuple(open_):
            name = next((n for n in left if n in _groups(device)[closeness]), None)
            if name is not None:
                left.remove(name)
                open_.remove(device)
    return None if open_ else left


def _without_ort(devices: Sequence[Device]) -> tuple[Device, ...]:
    rest = tuple(d for d in devices if d.backend != "ort")
    return rest if rest and len(rest) < len(devices) else ()
