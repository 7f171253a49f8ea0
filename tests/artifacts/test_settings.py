"""The properties of a device, parsed once."""

from __future__ import annotations

from heterocc.artifacts.manifest import Device
from heterocc.artifacts.settings import Settings, settings_of
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.devices.properties import PROPERTIES


def test_texts_become_values() -> None:
    texts = {"precision": "bf16", "threads": "4", "profile": "on", "tune": "off", "cpu": "x86-64-v3"}
    assert settings_of(texts) == Settings(precision="bf16", threads=4, profile=True, cpu="x86-64-v3")


def test_texts_of_an_unknown_form_are_the_default() -> None:
    assert settings_of({"precision": "f8", "threads": "many", "tune": "maybe", "other": "on"}) == Settings()


def test_a_target_and_a_device_of_a_bundle_have_the_same_settings() -> None:
    texts = {"denormals": "on", "threads": "2"}
    target, device = TargetDevice("CPU", "cpu", properties=texts), Device(name="CPU", backend="cpu", properties=texts)
    assert target.settings == device.settings == Settings(denormals=True, threads=2)
    assert not target.flushes_denormals


def test_every_property_that_a_run_needs_is_a_setting() -> None:
    values = {"precision": "f16", "threads": "3"}
    for known in PROPERTIES:
        if known.runtime:
            assert settings_of({known.name: values.get(known.name, "on")}) != Settings(), known.name
