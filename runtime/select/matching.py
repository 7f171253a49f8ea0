"""Which variant of a bundle a list of devices means."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from heterocc.artifacts.manifest import Device, Variant
from heterocc.runtime.select.ranking import GPU_BACKENDS, label_of

_FIRST = re.compile(r"(GPU|OPENCL|VULKAN|CUDA|CPU|ORT)\.0")


def match_variants(variants: Sequence[Variant], wanted: Sequence[str]) -> tuple[tuple[Variant, ...], str | None]:
    """The variants that a list of devices means, and what there is to say where they are not for these very devices.

    None where nothing fits; more than one where the list is ambiguous. Case does not matter, and `GPU.0` is `GPU`. The
    first of these rules that some variant meets decides:

    1. its labels are these, in this order;
    2. its labels are these, in another order: the order of the compile holds, which is said;
    3. the list is one word, and the variant's name is that (`main`, `cpu`);
    4. its devices are these, by what they are: a device goes by its label, by its back end and number (`OPENCL.1`), and
       one of a GPU's back ends as `GPU`. `OPENCL` therefore means a variant that was compiled for `GPU` and OpenCL;
    5. as 1, 2 and 4, but the variant also needs ORT, the device of last resort;
    6. its devices are some of these, and the first listed is among them: on the others the compile placed nothing.
    """
    names = [_plain(name) for name in wanted]
    rules: tuple[tuple[Callable[[Variant], bool], str | None], ...] = (
        (lambda v: _labels(v.devices) == names, None),
        (lambda v: sorted(_labels(v.devices)) == sorted(names), "in the order that it was compiled for"),
        (lambda v: len(names) == 1 and v.name.upper() == names[0], None),
        (lambda v: _are(v.devices, names), "which is what that means in this bundle"),
        (lambda v: _are(_without_ort(v.devices), names), "for this variant needs ONNX Runtime for the rest"),
        (lambda v: _within(v.devices, names), "for nothing was placed on the others"),
    )
    for fits, remark in rules:
        found = tuple(v for v in variants if fits(v))
        if found:
            return found, remark
    return (), None


def answers(device: Device, name: str) -> bool:
    """Whether a device goes by a name: its label, its back end and number, or, any of a GPU's back ends, `GPU`."""
    return any(_plain(name) in group for group in _groups(device))


def _plain(name: str) -> str:
    upper = name.upper()
    found = _FIRST.fullmatch(upper)
    return upper if found is None else found[1]


def _labels(devices: Sequence[Device]) -> list[str]:
    return [_plain(d.name) for d in devices]


def _groups(device: Device) -> tuple[frozenset[str], ...]:
    """Names of a device, those that mean it most first."""
    return (
        frozenset([_plain(device.name)]),
        frozenset([label_of(device.backend, device.index)]),
        frozenset(["GPU"] if device.backend in GPU_BACKENDS else []),
    )


def _are(devices: Sequence[Device], names: Sequence[str]) -> bool:
    """Whether each name stands for another one of the devices, and every device has a name."""
    return len(devices) == len(names) and _left(devices, names) == []


def _within(devices: Sequence[Device], names: Sequence[str]) -> bool:
    """Whether the devices are some of those named, the first among them."""
    if not devices or len(devices) >= len(names) or not any(answers(d, names[0]) for d in devices):
        return False
    left = _left(devices, names)
    return left is not None and len(left) == len(names) - len(devices)


def _left(devices: Sequence[Device], names: Sequence[str]) -> list[str] | None:
    """The names that no device has got; None where a device has got none. Each name goes to one device at most."""
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
