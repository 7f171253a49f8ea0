"""A variant that is replaced: by a better one that loads meanwhile, or by the next if its device is lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heterocc.artifacts.errors import DeviceError, DeviceLostError, UnknownDeviceError, UsageError
from heterocc.runtime import load
from heterocc.runtime.loading.loaded import Loaded
from heterocc.runtime.select import opening
from tests.runtime import standin
from tests.runtime.apis import Api

Write = Callable[..., Path]
X = np.arange(16, dtype=np.float32)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch, api: Api) -> threading.Event:
    """The loading of a device's variant waits for this event."""
    event, plain = threading.Event(), opening._load

    def load_later(bundle: Any, variant: Any, options: Any) -> Any:
        if variant.devices[0].name == api.device.name:
            assert event.wait(30)
        return plain(bundle, variant, options)

    monkeypatch.setattr(opening, "_load", load_later)
    monkeypatch.setattr("heterocc.runtime.select.select.rank", _accelerators_first)
    return event


def _accelerators_first(*, software: bool, **_: object) -> tuple[bool]:
    """A rank in which the software devices of this machine stand for GPUs."""
    return (not software,)


def right(result: dict[str, np.ndarray], x: np.ndarray = X) -> None:
    np.testing.assert_array_equal(result["v1"], x + 2)


def test_the_cpu_answers_until_the_device_is_loaded(bundle_of: Write, api: Api, gate: threading.Event) -> None:
    with load(bundle_of(standin.chain(2, device=api.letter), standin.chain(2)), "AUTO", start="CPU") as session:
        assert session.devices == ("CPU",) and not session.wait_switched(0.01)
        assert any(f"CPU runs until {api.device.name} is loaded" in note for note in session.notes)
        right(session.run({"x": X}))
        right(session.run_async({"x": X}).result())
        binding = session.bind()
        gate.set()
        assert session.wait_switched(30)
        assert session.devices == (api.device.name,)
        right(session.run({"x": X}))
        right(session.run_async({"x": X}).result())
        binding.inputs["x"][...] = X
        right(binding.run())
        assert any(f"switched from CPU to {api.device.name} after" in note for note in session.notes)


def test_no_request_fails_while_the_session_switches(bundle_of: Write, api: Api, gate: threading.Event) -> None:
    with load(bundle_of(standin.chain(2, device=api.letter), standin.chain(2)), "AUTO", start="CPU") as session:
        threading.Timer(0.02, gate.set).start()
        until = time.monotonic() + 30
        for number, result in enumerate(session.stream({"x": X + i} for i in range(100_000))):
            right(result, X + number)
            if session.devices == (api.device.name,) or time.monotonic() > until:
                break
        assert session.devices == (api.device.name,)


def test_a_device_that_cannot_be_loaded_leaves_the_session_on_the_cpu(
    bundle_of: Write, api: Api, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = opening._load

    def load_none(bundle: Any, variant: Any, options: Any) -> Any:
        if variant.devices[0].name == api.device.name:
            raise DeviceError("no memory left")
        return plain(bundle, variant, options)

    monkeypatch.setattr(opening, "_load", load_none)
    with load(bundle_of(standin.chain(2, device=api.letter), standin.chain(2)), "AUTO", start="CPU") as session:
        assert session.wait_switched(30)
        right(session.run({"x": X}))
        assert any("stays on CPU: " in note and "no memory left" in note for note in session.notes)


def test_close_waits_for_the_loading_and_a_dropped_session_is_freed(
    bundle_of: Write, api: Api, gate: threading.Event
) -> None:
    path = bundle_of(standin.chain(2, device=api.letter), standin.chain(2))
    session = load(path, "AUTO", start="CPU")
    threading.Timer(0.02, gate.set).start()
    session.close()
    with pytest.raises(UsageError, match="closed"):
        session.run({"x": X})
    del session
    session = load(path, "AUTO", start="CPU")
    del session
    for thread in [t for t in threading.enumerate() if t.name == "heterocc-load"]:
        thread.join(30)


def test_a_start_that_is_the_choice_already_needs_no_switch(bundle_of: Write) -> None:
    with load(bundle_of(standin.chain(2)), "AUTO", start="CPU") as session:
        assert session.wait_switched(0) and any("AUTO would choose CPU too" in note for note in session.notes)
        right(session.run({"x": X}))
    with pytest.raises(UsageError, match="start is the variant before that of AUTO"):
        load(bundle_of(standin.chain(2)), "CPU", start="CPU")
    with pytest.raises(UnknownDeviceError, match="no variant for VULKAN"):
        load(bundle_of(standin.chain(2)), "AUTO", start="VULKAN")


# ---- a lost device ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("devices", [None, "{0}"])
def test_a_session_goes_on_with_the_next_variant_if_its_device_is_lost(
    bundle_of: Write, api: Api, api_faults: Callable[[str], None], devices: str | None
) -> None:
    path = bundle_of(standin.chain(2, device=api.letter), standin.chain(2, device=f"c{api.letter}"), standin.chain(2))
    named = None if devices is None else devices.format(api.device.name)
    with load(path, named, fallback=True) as session:
        right(session.run({"x": X}))
        api_faults("lost:1")
        for number in range(3):
            right(session.run({"x": X + number}), X + number)
        assert session.devices == ("CPU",)
        assert any("goes on with CPU, because" in note and "(HC409)" in note for note in session.notes)


# Failed once in eight runs on Vulkan beside other tests, for a reason that is not known yet.
@pytest.mark.slow
@pytest.mark.parametrize("devices", [None, "{0}"])
def test_a_stream_goes_on_with_the_next_variant_if_the_device_is_lost(
    bundle_of: Write, api: Api, api_faults: Callable[[str], None], devices: str | None
) -> None:
    path = bundle_of(standin.chain(2, device=api.letter), standin.chain(2, device=f"c{api.letter}"), standin.chain(2))
    named = None if devices is None else devices.format(api.device.name)
    with load(path, named, fallback=True) as session:
        right(session.run({"x": X}))
        api_faults("lost:1")
        for number, result in enumerate(session.stream({"x": X + i} for i in range(20))):
            right(result, X + number)
        assert session.devices == ("CPU",)
        assert any("goes on with CPU, because" in note and "(HC409)" in note for note in session.notes)


def test_without_being_asked_a_session_does_not_go_on(
    bundle_of: Write, api: Api, api_faults: Callable[[str], None]
) -> None:
    with load(bundle_of(standin.chain(2, device=api.letter), standin.chain(2))) as session:
        right(session.run({"x": X}))
        api_faults("lost:1")
        with pytest.raises(DeviceLostError) as caught:
            session.run({"x": X})
        assert caught.value.code == "HC409" and "takes a variant without" in str(caught.value.hint)


def test_a_session_goes_on_once(bundle_of: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object) -> None:
        raise DeviceLostError("it was lost")

    with load(bundle_of(standin.chain(2), standin.chain(2)), fallback=True) as session:
        monkeypatch.setattr(Loaded, "run", lost)
        with pytest.raises(DeviceLostError):
            session.run({"x": X})
        assert sum("goes on with" in note for note in session.notes) == 1
