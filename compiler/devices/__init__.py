"""Devices as the compiler sees them: names, targets, properties, device files."""

from heterocc.compiler.devices.device import Device
from heterocc.compiler.devices.file import read_device_file
from heterocc.compiler.devices.names import DEFAULT_DEVICES, host_device, known_devices, ort_device, resolve_devices

__all__ = [
    "DEFAULT_DEVICES",
    "Device",
    "host_device",
    "known_devices",
    "ort_device",
    "read_device_file",
    "resolve_devices",
]
