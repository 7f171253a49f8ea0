"""What `heterocc devices` shows: the devices here, what GPU and AUTO stand for, and why others are missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from heterocc.artifacts.errors import HeteroccError
from heterocc.compiler.devices.names import known_devices, resolve_devices
from heterocc.runtime.devices import inventory


def device_report() -> dict[str, Any]:
    """Devices with their capabilities, aliases, and back ends that are absent, as `--json` prints them."""
    here = inventory()
    known = {d.name: d for d in known_devices()}
    devices = []
    for record in here.devices:
        data = record.to_json()
        device = known.get(record.label)
        if device is not None:
            data["dtypes"] = sorted(device.dtypes)
            data["max_buffer"] = device.max_buffer
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
    try:
        devices, notes = resolve_devices(name)
    except HeteroccError as error:
        return {"device": None, "present": False, "note": error.message}
    chosen = devices[0]
    return {"device": chosen.description, "present": chosen.present, "note": "; ".join(notes) or None}


def device_table(report: Mapping[str, Any]) -> Group:
    """As a terminal shows it."""
    table = Table(box=None, pad_edge=False)
    for column in ("device", "what", "kind", "memory", "cores", "dtypes", "driver"):
        table.add_column(column, justify="right" if column in ("memory", "cores") else "left")
    for device in report["devices"]:
        memory = "" if device["memory"] is None else f"{device['memory'] / 2**30:.1f} GiB"
        kind = f"{device['type']}, software" if device["software"] else device["type"]
        table.add_row(
            device["label"],
            device["description"],
            kind,
            memory,
            str(device["cores"] or ""),
            _short_dtypes(device.get("dtypes", [])),
            device["driver"],
        )
    lines = [Text("")]
    for name, alias in report["aliases"].items():
        note = f" ({alias['note']})" if alias["note"] else ""
        lines.append(Text(f"{name} is {alias['device'] or 'nothing here'}{note}"))
    lines += [Text(f"{entry['backend'].upper()} is not here: {entry['reason']}") for entry in report["absent"]]
    return Group(table, *lines)


def _short_dtypes(dtypes: list[str]) -> str:
    """Floating-point types by name and the rest in a word: the column would be too wide otherwise."""
    floats = [d.replace("float", "f") for d in dtypes if d.startswith("float")]
    return " ".join([*sorted(floats), "ints"] if any("int" in d for d in dtypes) else floats)
