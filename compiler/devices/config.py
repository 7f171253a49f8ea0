"""The file of `--config`: the properties of all devices, for several compiles."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from heterocc.artifacts.errors import DeviceFileError
from heterocc.compiler.devices.file import read_data
from heterocc.compiler.devices.properties import Setting, parse_properties


def read_config(path: Path) -> tuple[Setting, ...]:
    """The properties in a TOML or JSON file (by suffix) with a table for each device.

    A value is text, a number, or true and false for on and off. Raises FileMissingError (HC101) and DeviceFileError
    (HC109).
    """
    data = read_data(path, "configuration file", "has a table of properties for each device")
    example = 'for example a table [GPU] with the line precision = "f16"'
    if not isinstance(data, dict):
        raise DeviceFileError("the configuration file is not a mapping of devices", where=str(path), hint=example)
    found: list[Setting] = []
    for device, table in data.items():
        if not isinstance(table, dict):
            raise DeviceFileError(f"'{device}' is not a table of properties", where=f"{path}: {device}", hint=example)
        for name, value in table.items():
            where = f"{path}: [{device}] {name}"
            if not isinstance(value, (str, bool, int)) or value == "":
                raise DeviceFileError(
                    f"{device}.{name} must be text, an integer, true or false", where=where, hint=example
                )
            text = {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
            found.append(Setting(device, name.lower(), text, where))
    return tuple(found)


def config_texts(path: Path | None) -> tuple[str, ...]:
    """The properties of a configuration file in the form of `--property`."""
    return () if path is None else tuple(f"{s.device}.{s.name}={s.value}" for s in read_config(path))


def settings_for(
    config: Sequence[Setting], names: Iterable[str], properties: Iterable[str]
) -> tuple[tuple[Setting, ...], tuple[str, ...]]:
    """The settings of a configuration for the listed devices, without those that `--property` overrides, and notes."""
    listed = {name.lower() for name in names}
    given = {(device.lower(), name) for device, name, _ in parse_properties(properties)}
    kept = tuple(s for s in config if s.device.lower() in listed and (s.device.lower(), s.name) not in given)
    unused = dict.fromkeys(s.device for s in config if s.device.lower() not in listed)
    notes = () if not unused else (f"the configuration file's properties of {', '.join(unused)} are not used",)
    return kept, notes
