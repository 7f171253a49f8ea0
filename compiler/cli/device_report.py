"""The report of `heterocc devices`: devices of this machine, the meaning of GPU and AUTO, and missing back ends.

docs/devices.md documents the JSON.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from heterocc.artifacts.errors import HeteroccError, command_form
from heterocc.compiler.devices.names import SEE_DEVICES, known_devices, resolve_devices
from heterocc.runtime.machine.devices import inventory
from heterocc.runtime.machine.ranking import kind_text, label_of

_SHOWN_DTYPES = (
    "float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool"
)  # fmt: skip
_VALUE_WIDTH = 56
"""Columns of the longest value; with the names before it, a line fits into 80."""

_VECTOR_FEATURES = ("avx", "amx", "fma", "f16c", "sse4.2", "neon", "sve", "sme", "dotprod", "i8mm", "bf16", "fullfp16")


def device_report() -> dict[str, Any]:
    """Devices with their capabilities, aliases, and missing back ends, as `--json` prints them."""
    here = inventory()
    known = {d.name: d for d in known_devices()}
    devices = []
    for record in here.devices:
        data = record.to_json()
        device = known.get(record.label)
        if device is not None:
            data["flops_estimate"] = device.flops
            data["bandwidth_estimate"] = device.bandwidth
            data["target"] = None if device.target_json() is None else dict(device.target)
        devices.append(data)
    return {
        "devices": devices,
        "aliases": {name: _alias(name) for name in ("GPU", "AUTO")},
        "absent": [absent.to_json() for absent in here.absent],
    }


def _alias(name: str) -> dict[str, Any]:
    """The device that a name means when a float32 model is compiled on this machine, and the reason."""
    try:
        (chosen, *_), notes = resolve_devices(name)
    except HeteroccError as error:
        return {"label": None, "device": None, "present": False, "why": error.message}
    kind = kind_text(chosen.unit, software=chosen.software)
    why = (
        "; ".join(map(command_form, notes)).removesuffix(SEE_DEVICES)
        or f"{name} is the first {kind}: CUDA comes before Vulkan, Vulkan before OpenCL"
    )
    label = label_of(chosen.backend, chosen.index) if chosen.present else None
    return {"label": label, "device": chosen.description, "present": chosen.present, "why": why}


def device_table(report: Mapping[str, Any]) -> Table:
    """The report as a table with a block per device, readable at 80 columns."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", max_width=_VALUE_WIDTH)
    for device in report["devices"]:
        _add_block(table, device["label"], _facts(device))
    for name, alias in report["aliases"].items():
        _add_block(table, name, [("is", alias["label"] or alias["device"] or "not available"), ("why", alias["why"])])
    for absent in report["absent"]:
        facts = [("missing", absent["reason"])]
        _add_block(table, absent["backend"].upper(), facts + ([("install", absent["hint"])] if absent["hint"] else []))
    return table


def _add_block(table: Table, label: str, facts: list[tuple[str, str]]) -> None:
    if table.row_count:
        table.add_row("", "", "")
    for number, (name, value) in enumerate(facts):
        table.add_row(Text("" if number else label, style="bold"), Text(name, style="dim"), Text(value))


def _facts(device: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and values of the known properties of a device."""
    limits = device["limits"]
    kind = kind_text(device["unit"], software=device["software"])
    if device["cores"]:
        kind += f", {device['cores']} {'cores' if device['type'] == 'cpu' else 'compute units'}"
    found = [("is", device["description"]), ("kind", kind), ("driver", f"{device['driver']}; {device['api']}")]
    if device["memory"] is not None:
        largest = f", {human(limits['buffer'])} in one buffer" if limits["buffer"] else ""
        found.append(("memory", human(device["memory"]) + largest))
    dtypes = [
        d.replace("uint", "u").replace("int", "i").replace("float", "f") for d in _SHOWN_DTYPES if d in device["dtypes"]
    ]
    found.append(("computes", " ".join(dtypes)))
    for name, value in (("work group", _group(limits)), ("kernel", _kernel(limits))):
        if value:
            found.append((name, value))
    features = [f for f in device["features"] if device["backend"] != "cpu" or f.startswith(_VECTOR_FEATURES)]
    if features:
        found.append(("features", " ".join(features)))
    return found


def _group(limits: Mapping[str, Any]) -> str:
    return ", ".join(
        _known(
            (limits["group_size"], "{} items"),
            (limits["group_sizes"] and " x ".join(map(str, limits["group_sizes"])), "at most {}"),
            (limits["shared_memory"] and human(limits["shared_memory"]), "{} shared"),
            (limits["subgroup_size"], "subgroups of {}"),
        )
    )


def _kernel(limits: Mapping[str, Any]) -> str:
    return ", ".join(
        _known(
            (limits["storage_buffers"], "{} storage buffers"),
            (limits["storage_range"] and human(limits["storage_range"]), "{} of each"),
            (limits["push_constants"] and human(limits["push_constants"]), "{} of push constants"),
        )
    )


def _known(*entries: tuple[Any, str]) -> Iterator[str]:
    return (text.format(value) for value, text in entries if value)


def human(nbytes: int) -> str:
    """A number of bytes as text: `128 B`, `32 KiB`, `23.5 GiB`."""
    size, units = float(nbytes), ["B", "KiB", "MiB", "GiB"]
    while size >= 1024 and len(units) > 1:
        size /= 1024
        units.pop(0)
    return f"{size:.4g} {units[0]}"
