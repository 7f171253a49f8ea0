"""The devices that the kernel suite schedules for, each with limits that differ, and how kernels run on them."""

from __future__ import annotations

import atexit
import dataclasses
import functools
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi

from heterocc.artifacts.dtypes import NUMERIC_DTYPES
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.lower.backend import PartitionJob
from heterocc.compiler.lower.codegen.link import link
from heterocc.compiler.lower.codegen.shared_object import _without_scopes
from heterocc.compiler.lower.cuda import lowering as cuda
from heterocc.compiler.lower.cuda.codegen import captured_sources, packed_cubins
from heterocc.compiler.lower.cuda.lowering import cuda_target
from heterocc.compiler.lower.cuda.toolchain import find_compiler
from heterocc.compiler.lower.opencl import lowering as opencl
from heterocc.compiler.lower.opencl.lowering import opencl_target
from heterocc.compiler.lower.opencl.source import completed_source
from heterocc.compiler.lower.pipeline import KernelModule
from heterocc.compiler.lower.vulkan import lowering as vulkan
from heterocc.compiler.lower.vulkan.codegen import generating
from heterocc.compiler.lower.vulkan.target import GUARANTEED, limits_of, vulkan_target
from heterocc.runtime.native import cuda_unavailable_reason, load_opencl, opencl_unavailable_reason
from heterocc.runtime.native.cuda_api import load_cuda
from heterocc.runtime.native.vulkan_api import load_vulkan, vulkan_unavailable_reason
from tests.compiler.lower import cuda_emulated, opencl_run, vulkan_run
from tests.compiler.lower.gpu_run import Runner
from tests.device_run import download

Array = np.ndarray[Any, Any]
Launch = tuple[str, Sequence[Array], Sequence[Array]]
"""A kernel, its inputs, and the initial contents of its outputs."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A device for schedules; None keeps the driver's value. `emulated` means CUDA's stand-ins, which need no GPU."""

    name: str
    backend: str
    software: bool | None = None
    target: tuple[tuple[str, int], ...] = ()
    emulated: bool = False

    @property
    def missing(self) -> str | None:
        """The reason why it cannot run here, or None."""
        if self.emulated:
            return None
        reasons = {
            "opencl": opencl_unavailable_reason,
            "vulkan": vulkan_unavailable_reason,
            "cuda": cuda_unavailable_reason,
        }
        return reasons[self.backend]()

    @property
    def device(self) -> TargetDevice:
        """The driver's device with the setting's values."""
        if self.emulated:
            # The stand-ins for CUDA's headers have no halves.
            dtypes = NUMERIC_DTYPES - {"float16"}
            return TargetDevice("CUDA", "cuda", target={"kind": "cuda", "arch": "sm_90"}, present=False, dtypes=dtypes)
        runners = {"opencl": opencl_run.RUNNER, "vulkan": vulkan_run.RUNNER, "cuda": _CUDA}
        real = runners[self.backend].first_device()
        changes: dict[str, Any] = {"target": {**real.target, **dict(self.target)}}
        if self.software is not None:
            changes |= {"software": self.software, "unit": "cpu" if self.software else "discrete"}
        return dataclasses.replace(real, **changes)

    def scheduled(self, job: PartitionJob) -> tuple[KernelModule, KernelModule]:
        """The job's kernels before and after scheduling, as the back end would compile them."""
        if self.backend == "opencl":
            stages = opencl._stages(job, opencl_target(job.device))
        elif self.backend == "cuda":
            stages = cuda._stages(job, cuda_target(job.device))
        else:
            stages = vulkan._stages(job, vulkan_target(job.device), limits_of(job.device))
        return stages.module, stages.scheduled

    def run(self, functions: Mapping[str, Any], launches: Sequence[Launch]) -> list[list[Array]]:
        """The results of scheduled kernels."""
        runner: Mapping[str, Callable[..., list[list[Array]]]] = {
            "opencl": _run_opencl,
            "vulkan": _run_vulkan,
            "cuda": _run_emulated if self.emulated else _run_cuda,
        }
        return runner[self.backend](functions, launches, self.device)


def _limited(group: int, shared: int) -> tuple[tuple[str, int], ...]:
    return (("max_num_threads", group), ("max_shared_memory_per_block", shared))


SETTINGS = (
    Setting("pocl", "opencl"),
    Setting("opencl-gpu", "opencl", False, _limited(256, 32768)),
    Setting("opencl-least", "opencl", False, _limited(64, 16384)),
    Setting("lavapipe", "vulkan"),
    Setting("vulkan-gpu", "vulkan", False, _limited(1024, 32768)),
    Setting("vulkan-least", "vulkan", False, tuple(GUARANTEED.items())),
    Setting("cuda", "cuda", emulated=True),
)
"""The drivers here as they are, passed off as graphics cards, and as the least that the specifications promise."""

NVIDIA = Setting("nvidia", "cuda")
"""CUDA on the first GPU here."""

_CUDA = Runner("cuda", cuda.CudaLowering(), load_cuda)


def _module(functions: Mapping[str, Any]) -> tvm.IRModule:
    return _without_scopes(tvm.IRModule({n: f.with_attr("global_symbol", n) for n, f in functions.items()}))


def _run_opencl(functions: Mapping[str, Any], launches: Sequence[Launch], device: TargetDevice) -> list[list[Array]]:
    load_opencl()
    with completed_source():
        built = tvm.compile(_module(functions), opencl_target(device))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernels.so"
        _export(built, path)
        library = tvm_ffi.get_global_func("ffi.Module.load_from_file.so")(str(path), "so")
    return [_launch(library.get_function(name), given, wrote, opencl_run.RUNNER) for name, given, wrote in launches]


def _run_vulkan(functions: Mapping[str, Any], launches: Sequence[Launch], device: TargetDevice) -> list[list[Array]]:
    load_vulkan()
    with generating(limits_of(device)):
        built = tvm.compile(_module(functions), vulkan_target(device))
    return [_launch(built[name], given, wrote, vulkan_run.RUNNER) for name, given, wrote in launches]


def _launch(function: Any, given: Sequence[Array], wrote: Sequence[Array], on: Runner) -> list[Array]:
    tensors = [on.upload(np.array(a, order="C")) for a in (*given, *wrote)]
    function(*tensors)
    return [download(t) for t in tensors[len(given) :]]


def _run_cuda(functions: Mapping[str, Any], launches: Sequence[Launch], device: TargetDevice) -> list[list[Array]]:
    load_cuda()
    with captured_sources() as sources:
        built = tvm.compile(_module(functions), cuda_target(device))
    arch = str(device.target["arch"])
    machine_code = {source: find_compiler(arch).cubin(source, arch) for source in sources}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernels.so"
        with packed_cubins(machine_code):
            _export(built, path)
        library = tvm_ffi.get_global_func("ffi.Module.load_from_file.so")(str(path), "so")
    return [_launch(library.get_function(name), given, wrote, _CUDA) for name, given, wrote in launches]


def _run_emulated(functions: Mapping[str, Any], launches: Sequence[Launch], device: TargetDevice) -> list[list[Array]]:
    """Run on the emulated driver, in a separate process, in which the stand-ins replace CUDA."""
    with captured_sources() as sources:
        built = tvm.compile(_module(functions), cuda_target(device))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with packed_cubins(dict.fromkeys(sources, _HEAD)):
            _export(built, folder / "host.so")
        for file in _driver().iterdir():
            (folder / file.name).symlink_to(file)
        kernels = cuda_emulated.build_kernels(sources[0], folder)
        arrays = {}
        for i, (_, given, wrote) in enumerate(launches):
            arrays.update({f"{i}/g{j:03}": a for j, a in enumerate(given)})
            arrays.update({f"{i}/w{j:03}": a for j, a in enumerate(wrote)})
        np.savez(folder / "given.npz", *[], **arrays)
        (folder / "names.txt").write_text("\n".join(name for name, _, _ in launches))
        done = subprocess.run(
            [sys.executable, str(Path(__file__).with_name("kernel_cuda.py")), str(folder)],
            env={**os.environ, **cuda_emulated.environment(folder, kernels)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        with np.load(folder / "wrote.npz") as found:
            return [[found[f"{i}/w{j:03}"] for j in range(len(wrote))] for i, (_, _, wrote) in enumerate(launches)]


_HEAD = b"\x7fELF" + bytes(44) + struct.pack("<I", 90 << 8) + bytes(12)
"""As much of machine code for sm_90 as the emulated driver looks at."""


@functools.cache
def _driver() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="heterocc-test-cuda-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    cuda_emulated.build_driver(folder)
    return folder


def _export(built: Any, path: Path) -> None:
    def compile_objects(_name: str, files: list[str], **_options: Any) -> None:
        path.write_bytes(link({f"part{i}.o": Path(f).read_bytes() for i, f in enumerate(files)}, None))

    module = getattr(built, "mod", built)
    module.export_library(str(path), fcompile=compile_objects, workspace_dir=str(path.parent))
