"""Kernels and modules, the same on every API: launches, threads, and modules that are damaged."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from heterocc.artifacts.errors import BundleError
from heterocc.runtime.native import typed_error

N = 64

REFUSED = {"opencl": 400, "vulkan": 300}
"""Of some 700 and 460 changes to a header: the rest are equal bytes, letters of a name, types, or sizes."""


def test_a_kernel_gets_its_buffers_and_scalars(sample: Any) -> None:
    x = np.arange(N, dtype="float32")
    found = sample.run_scale(sample.load(sample.module_bytes()), x, 0.5, -3)
    assert np.array_equal(found, x * np.float32(0.5) - 3)


def test_a_launch_over_an_empty_range_does_nothing(sample: Any) -> None:
    target = sample.to_device(np.ones(N, "float32"))
    kernel = sample.load(sample.module_bytes()).get_function("scale")
    kernel(sample.pointer(target), sample.pointer(target), 2.0, 0, 0, 8)
    assert (sample.to_host(target) == 1).all()


def test_many_threads_may_call_one_kernel(sample: Any) -> None:
    module = sample.load(sample.module_bytes())
    wrong: list[str] = []

    def work(seed: int) -> None:
        x = np.full(N, seed, "float32")
        for step in range(50):
            if not np.array_equal(sample.run_scale(module, x, float(step), seed), x * step + seed):
                wrong.append(f"thread {seed}, step {step}")

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_kernel_called_with_too_few_arguments_is_refused(sample: Any) -> None:
    tensor = sample.empty((N,))
    kernel = sample.load(sample.module_bytes()).get_function("scale")
    with pytest.raises(ValueError, match="with 2 arguments, not 6"):
        kernel(sample.pointer(tensor), sample.pointer(tensor))


def test_a_kernel_called_with_a_number_for_a_buffer_is_refused(sample: Any) -> None:
    tensor = sample.empty((N,))
    kernel = sample.load(sample.module_bytes()).get_function("scale")
    with pytest.raises(ValueError, match="argument 1 of kernel 'scale' is not a buffer"):
        kernel(sample.pointer(tensor), 4096, 1.0, 0, 8, 8)


def test_a_module_cut_short_anywhere_is_refused(sample: Any) -> None:
    data = sample.module_bytes()
    for size in range(len(data)):
        with pytest.raises(ValueError) as caught:
            sample.load(data[:size])
        assert isinstance(typed_error(caught.value), BundleError)


def test_a_module_with_any_header_byte_changed_loads_or_is_refused(sample: Any, backend: str) -> None:
    data = sample.module_bytes()
    refused = 0
    for place in range(sample.header_size()):
        for value in (0x00, 0x01, 0x7F, 0xFF):
            damaged = bytearray(data)
            damaged[place] = value
            try:
                sample.load(bytes(damaged))
            except ValueError as error:
                assert isinstance(typed_error(error), BundleError)
                refused += 1
    assert refused > REFUSED[backend]


def test_bytes_after_the_end_are_refused(sample: Any) -> None:
    with pytest.raises(ValueError, match="bytes after the end"):
        sample.load(sample.module_bytes() + b"\0")
