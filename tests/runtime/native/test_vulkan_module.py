"""Vulkan kernels: launches, threads, and malformed modules."""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from heterocc.artifacts.errors import BundleError, DeviceError
from heterocc.runtime.native import typed_error, vulkan_devices
from heterocc.runtime.native.vulkan_api import statistics
from tests.fresh_process import fresh
from tests.runtime.native import vulkan_sample as sample
from tests.runtime.native.vulkan_sample import (
    FLOAT32,
    INT32,
    empty,
    kernel_bytes,
    load,
    module_bytes,
    plugin,
    pointer,
    run_scale,
)

pytestmark = pytest.mark.vulkan

HERE = Path(__file__).parent

N = 64


def with_word(place: int, value: int) -> list[int]:
    """The sample's SPIR-V with one word changed."""
    words = sample.scale_words()
    words[place] = value
    return words


def test_the_kernel_of_these_tests_is_valid(tmp_path: Path) -> None:
    validator = shutil.which("spirv-val")
    if validator is None:
        pytest.skip("spirv-val is not installed (Debian: spirv-tools)")
    words = sample.scale_words()
    (tmp_path / "scale.spv").write_bytes(struct.pack(f"<{len(words)}I", *words))
    done = subprocess.run(
        [validator, "--target-env", "vulkan1.2", tmp_path / "scale.spv"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_an_integer_may_be_passed_for_a_real_scalar() -> None:
    x = np.arange(N, dtype="float32")
    assert np.array_equal(run_scale(load(module_bytes()), x, 3, 1), x * 3 + 1)


def test_bindings_and_scalars_go_to_the_places_in_the_module() -> None:
    """The same kernel, its arguments in another order."""
    arguments = ((*INT32, 4), (0, 0, 0, 1), (*FLOAT32, 0), (0, 0, 0, 0))
    module = load(module_bytes(kernel_bytes(arguments=arguments, tags=("threadIdx.x", "blockIdx.x"))))
    x = np.arange(N, dtype="float32")
    source, target = sample.to_device(x), empty((N,))
    module.get_function("scale")(7, pointer(source), 2.0, pointer(target), 8, N // 8)
    assert np.array_equal(sample.to_host(target), x * 2 + 7)


def test_a_kernel_may_be_entered_by_any_name() -> None:
    words = sample.scale_words(entry="some_other_kernel")
    x = np.arange(N, dtype="float32")
    assert np.array_equal(run_scale(load(module_bytes(kernel_bytes(words=words))), x, 2.0, 0), x * 2)


def test_a_launch_over_an_empty_range_is_no_command() -> None:
    target = empty((N,))
    before = statistics().kernels
    load(module_bytes()).get_function("scale")(pointer(target), pointer(target), 2.0, 0, 0, 8)
    assert statistics().kernels == before


def test_commands_that_depend_on_each_other_run_in_order() -> None:
    """More of them than one submission or one batch holds."""
    kernel = load(module_bytes()).get_function("scale")
    a, b = sample.to_device(np.zeros(N, "float32")), empty((N,))
    for _ in range(300):
        kernel(pointer(b), pointer(a), 1.0, 1, N // 8, 8)
        sample.copy(b, a)
    assert (sample.to_host(a) == 300).all()


def test_only_commands_that_depend_on_each_other_get_a_barrier() -> None:
    kernel = load(module_bytes()).get_function("scale")
    x = sample.to_device(np.ones(N, "float32"))
    targets = [empty((N,)) for _ in range(8)]
    sample.synchronize()
    kernel(pointer(targets[0]), pointer(x), 1.0, 0, N // 8, 8)  # behind whatever these buffers were used for before
    kernel(pointer(targets[0]), pointer(x), 1.0, 0, N // 8, 8)
    before = statistics()
    for target in targets[1:]:
        kernel(pointer(target), pointer(x), 2.0, 0, N // 8, 8)
    independent = statistics()
    kernel(pointer(x), pointer(targets[3]), 2.0, 0, N // 8, 8)
    dependent = statistics()
    assert independent.kernels - before.kernels == 7
    assert independent.barriers == before.barriers
    assert dependent.barriers == independent.barriers + 1
    assert (sample.to_host(x) == 4).all()


def test_all_kernels_can_be_built_before_the_first_run() -> None:
    module = load(module_bytes(kernel_bytes("scale"), kernel_bytes("again")))
    assert module.get_function("heterocc_build")(0) == 2


def test_a_kernel_that_the_driver_refuses_is_named() -> None:
    module = load(module_bytes())
    plugin("fault")("build:1")
    with pytest.raises(RuntimeError, match="vkCreateShaderModule gave VK_ERROR_INVALID_SHADER_NV") as caught:
        module.get_function("heterocc_build")(0)
    error = typed_error(caught.value)
    assert isinstance(error, DeviceError)
    assert error.message.startswith("kernel 'scale' on '")
    assert module.get_function("heterocc_build")(0) == 1


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"shared": 1 << 30}, r"1073741824 bytes of shared memory, the device has \d+"),
        ({"push": 1 << 14}, r"16384 bytes of push constants, the device has \d+"),
        ({"group": (1 << 16, 1, 1), "words": sample.scale_words(1 << 16)}, r"65536 work items in a group, .* has \d+"),
        (
            {"buffers": 1000, "arguments": (*((0, 0, 0, i) for i in range(1000)), (*FLOAT32, 0), (*INT32, 4))},
            r"1000 storage buffers, the device has \d+",
        ),
    ],
    ids=["shared memory", "push constants", "group", "buffers"],
)
def test_a_kernel_over_a_limit_of_the_device_is_refused_when_it_is_built(change: dict[str, int], words: str) -> None:
    module = load(module_bytes(kernel_bytes(**change)))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="kernel 'scale' cannot run on .*" + words) as caught:
        module.get_function("heterocc_build")(0)
    assert isinstance(typed_error(caught.value), DeviceError)


def test_a_grid_over_the_limit_is_refused() -> None:
    limit = vulkan_devices()[0].max_group_counts[1]
    module = load(module_bytes(kernel_bytes(tags=("blockIdx.x", "blockIdx.y", "threadIdx.x"))))
    target = empty((N,))
    with pytest.raises(RuntimeError, match=rf"{limit + 1} work groups in dimension 1, .* takes {limit}"):
        module.get_function("scale")(pointer(target), pointer(target), 1.0, 0, 1, limit + 1, 8)


def test_a_launch_with_another_group_than_the_kernels_is_refused() -> None:
    with pytest.raises(ValueError, match="is for work groups of 8x1x1 and was launched with another size"):
        run_scale(load(module_bytes()), np.ones(N, "float32"), 1.0, 1, group=16)


def test_a_launch_with_more_shared_memory_than_the_kernels_is_refused() -> None:
    tags = ("blockIdx.x", "threadIdx.x", "tirx.use_dyn_shared_memory")
    kernel = load(module_bytes(kernel_bytes(tags=tags, shared=64))).get_function("scale")
    target = empty((N,))
    kernel(pointer(target), pointer(target), 1.0, 0, 1, 8, 64)
    with pytest.raises(ValueError, match="more shared memory than it has"):
        kernel(pointer(target), pointer(target), 1.0, 0, 1, 8, 65)


def test_a_simulated_failure_is_a_typed_error_and_passes() -> None:
    module = load(module_bytes())
    x = np.ones(N, "float32")
    plugin("fault")("launch:1")
    with pytest.raises(RuntimeError, match="vkCmdDispatch failed with VK_ERROR_UNKNOWN") as caught:
        run_scale(module, x, 1.0, 1)
    assert isinstance(typed_error(caught.value), DeviceError)
    assert np.array_equal(run_scale(module, x, 2.0, 0), x * 2)


def test_a_kernel_called_with_none_for_a_buffer_is_refused() -> None:
    tensor = empty((N,))
    with pytest.raises(ValueError, match="argument 1 of kernel 'scale' is not a buffer"):
        load(module_bytes()).get_function("scale")(pointer(tensor), None, 1.0, 0, 8, 8)


def test_a_module_keeps_its_bytes_and_lists_its_kernels() -> None:
    module = load(module_bytes(kernel_bytes(features=1)))
    assert str(module.inspect_source()).startswith("scale: 2 buffers, 8 bytes of push constants, groups of 8x1x1, ")
    assert "needs int64" in str(module.inspect_source())
    assert module.kind == "vulkan"
    with pytest.raises(AttributeError):
        module.get_function("nothing")


def test_capabilities_of_the_code_count_as_features() -> None:
    module = load(module_bytes(kernel_bytes(words=sample.scale_words(capabilities=(11, 4448)))))
    assert "needs int64, storage8" in str(module.inspect_source())
    module = load(module_bytes(kernel_bytes(words=sample.scale_words(keeps_nan=(16, 32, 64)))))
    assert "needs nan16, nan32, nan64" in str(module.inspect_source())


KEEPS_NAN = """
import sys
import numpy as np
from tests.runtime.native.vulkan_sample import kernel_bytes, load, module_bytes, run_scale, scale_words
from heterocc.runtime.native import typed_error
x = np.arange(64, dtype="float32")
try:
    words = scale_words(keeps_nan=(32,))
    print(np.array_equal(run_scale(load(module_bytes(kernel_bytes(words=words))), x, 2.0, 1), x * 2 + 1))
except RuntimeError as error:
    print(repr(typed_error(error)))
"""


def test_a_kernel_that_asks_for_nan_runs_only_on_a_device_that_keeps_it() -> None:
    if vulkan_devices()[0].nan32:
        assert fresh(KEEPS_NAN).strip() == "True"
    refused = fresh(KEEPS_NAN, HETEROCC_VULKAN_FAULT="no-nan")
    assert refused.startswith("DeviceError(")
    assert "the device does not keep NaN and infinity" in refused


def test_spirv_with_any_word_changed_loads_or_is_refused() -> None:
    """Accepted modules are not run, because drivers trust SPIR-V."""
    words = sample.scale_words()
    refused = 0
    for place in range(len(words)):
        for value in (0, 1, 0xFFFFFFFF, words[place] ^ 0x10000):
            damaged = [*words]
            damaged[place] = value
            try:
                load(module_bytes(kernel_bytes(words=damaged)))
            except ValueError as error:
                assert isinstance(typed_error(error), BundleError)
                refused += 1
    assert refused > 200


@pytest.mark.parametrize("count", [2, 1 << 20, (1 << 32) - 1])
def test_a_count_larger_than_the_module_is_refused(count: int) -> None:
    data = module_bytes()
    damaged = data[:8] + struct.pack("<I", count) + data[12:]
    with pytest.raises(ValueError, match=r"damaged|cut short"):
        load(damaged)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tags": ("blockIdx.w",)}, "an unknown launch tag"),
        ({"tags": ("blockIdx.x", "blockIdx.x")}, "a launch tag given twice"),
        ({"arguments": ((1, 2, 8, 0),), "buffers": 0}, "argument has a type"),
        ({"arguments": ((1, 0, 24, 0),), "buffers": 0}, "argument has a type"),
        ({"arguments": ((2, 0, 32, 0),)}, "an argument of an unknown kind"),
        ({"arguments": ((0, 0, 0, 0), (0, 0, 0, 0))}, "given twice"),
        ({"arguments": ((0, 0, 0, 0), (0, 0, 0, 2))}, "out of range"),
        ({"arguments": ((0, 0, 0, 0),)}, "a binding without an argument"),
        ({"arguments": ((0, 0, 0, 0), (0, 0, 0, 1), (1, 0, 32, 6))}, "outside its block"),
        ({"arguments": ((0, 0, 0, 0), (0, 0, 0, 1), (1, 0, 64, 4))}, "outside its block"),
        ({"arguments": ((0, 0, 0, 0), (0, 0, 0, 1), (1, 0, 32, 0xFFFFFFFC))}, "outside its block"),
        ({"group": (0, 1, 1), "words": sample.scale_words(8)}, "a work group without work items"),
        ({"group": (16, 1, 1), "words": sample.scale_words(8)}, "two sizes of one work group"),
        ({"features": 1 << 20}, "features that this version does not know"),
        ({"name": ""}, "a kernel without a name"),
        ({"buffers": 1, "arguments": ((0, 0, 0, 0),)}, "a buffer that the host code does not pass"),
        ({"words": ()}, "does not begin as SPIR-V does"),
        ({"words": with_word(3, 0)}, "SPIR-V is damaged: 0 ids"),
        ({"words": with_word(3, 0xFFFFFFFF)}, "4294967295 ids"),
        ({"words": with_word(-1, 1 << 16 | 253)}, "a function without an end"),
        ({"words": with_word(-1, 9 << 16 | 56)}, "longer than the module"),
        ({"words": with_word(-2, 1 << 16 | 56)}, "an end without a function"),
        (
            {"words": with_word(sample.scale_words().index(6 << 16 | 15) + 2, 2)},
            "entry point that is not a function",
        ),
        ({"words": sample.scale_words(capabilities=(2,))}, "capability 2, which is not supported"),
        ({"words": sample.scale_words(keeps_nan=(8,))}, "floats of 8 bits"),
    ],
)
def test_a_module_that_contradicts_itself_is_refused(change: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        load(module_bytes(kernel_bytes(**change)))  # type: ignore[arg-type]
    assert isinstance(typed_error(caught.value), BundleError)


def test_two_kernels_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two kernels have one name"):
        load(module_bytes(kernel_bytes(), kernel_bytes()))


def test_a_module_of_another_format_or_version_is_refused() -> None:
    with pytest.raises(ValueError, match="does not begin with 'HCVK'"):
        load(b"HCVL" + module_bytes()[4:])
    with pytest.raises(ValueError, match="of version 2, and this heterocc reads 1"):
        load(module_bytes(version=2))
