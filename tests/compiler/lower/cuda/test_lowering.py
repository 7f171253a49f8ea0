"""CUDA kernels as machine code in bundles; runs use the emulated driver (see cuda_emulated)."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tvm_ffi
from onnx import helper, numpy_helper

from heterocc.artifacts.errors import CudaCompilerMissingError, DeviceError, LoweringError
from heterocc.artifacts.reader import open_bundle
from heterocc.compiler import compile_model
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.devices.file import read_device_file
from heterocc.compiler.lower import lowering_for
from heterocc.compiler.lower.cuda import lowering as under_test
from heterocc.compiler.lower.cuda.codegen import CREATE, captured_sources
from heterocc.compiler.lower.cuda.lowering import limits_of
from heterocc.compiler.lower.cuda.package import with_cubins
from heterocc.compiler.lower.cuda.toolchain import CudaCompiler, KernelRefusedError
from tests.compiler.lower import cuda_emulated
from tests.compiler.lower.cuda_sample import HOPPER, multiply, needs_compiler, weights
from tests.compiler.lower.lowered import job, model

pytestmark = pytest.mark.xdist_group("cuda machine code")  # one process builds what the tests share


@dataclass
class StandIn:
    """A compiler whose machine code is only a header; records its arguments."""

    name: str = "a stand-in"
    given: list[tuple[str, str]] = field(default_factory=list)

    def cubin(self, source: str, arch: str) -> bytes:
        self.given.append((source, arch))
        return cuda_emulated.machine_code(arch) + b"\0"


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    compiler = StandIn()
    monkeypatch.setattr(under_test, "find_compiler", lambda arch: compiler)
    return compiler


def small_network() -> onnx.ModelProto:
    """Convolution, pooling, matrix product, a reduction, and functions that C calls by other names."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["m"], kernel_shape=[3, 3], strides=[2, 2]),
        helper.make_node("Flatten", ["m"], ["f"]),
        helper.make_node("Gemm", ["f", "v", "b"], ["g"]),
        helper.make_node("Tan", ["g"], ["t"]),
        helper.make_node("Erf", ["t"], ["e"]),
        helper.make_node("Softmax", ["e"], ["y"]),
    ]
    constants = {"w": weights(8, 3, 3, 3), "v": weights(72, 10), "b": weights(10)}
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (1, 3, 15, 15))],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (1, 10))],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def device_file(folder: Path, arch: str = "sm_90") -> Path:
    path = folder / "gpu.toml"
    path.write_text(f'name = "CUDA"\nbackend = "cuda"\ndescription = "a GPU"\ntarget = {{arch = "{arch}"}}\n')
    return path


def compiled(folder: Path) -> Path:
    """The small network as a bundle for CUDA, with the CPU's variant."""
    onnx.save(small_network(), folder / "small.onnx")
    compile_model(folder / "small.onnx", folder / "small.hcb", devices="CUDA,CPU", device_files=(device_file(folder),))
    return folder / "small.hcb"


def architecture(code: bytes) -> int:
    """The architecture in the head of the machine code that a shared object carries."""
    start = code.index(b"\x7fELF", 4)
    (flags,) = struct.unpack_from("<I", code, start + 48)
    # The position depends on the version of the format: 8 is that of CUDA 13.
    return int(flags >> 8 & 0xFF) if code[start + 8] == 8 or not flags & 0xFF else int(flags & 0xFF)


# ---- compiling ----------------------------------------------------------------------------------------------------


@needs_compiler
def test_the_object_carries_machine_code_for_the_architecture_of_the_device_file(tmp_path: Path) -> None:
    for arch, number in (("sm_90", 90), ("sm_80", 80)):
        work = multiply()
        device = read_device_file(device_file(tmp_path, arch))
        lowered = lowering_for(device).lower(
            type(work)("p0", work.model, device, work.nodes, work.inputs, work.outputs)
        )
        assert architecture(lowered.code) == number
        assert b"__global__" not in lowered.code
        assert "__global__" in dict(lowered.dumps)["kernels.cu"]


@needs_compiler
def test_the_same_model_gives_the_same_bytes_and_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    codes = []
    for name in ("first", "second-and-longer"):
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        codes.append(lowering_for(HOPPER).lower(multiply()).code)
    assert codes[0] == codes[1]
    assert str(tmp_path).encode() not in codes[0]
    assert b"heterocc-cuda" not in codes[0]


@needs_compiler
def test_functions_of_halves_that_cuda_lacks_compile() -> None:
    x = weights(4, 8).astype(np.float16)
    nodes = [helper.make_node(op, ["x"], [op]) for op in ("Round", "Sinh", "Cosh")]
    lowered = lowering_for(HOPPER).lower(job(model(nodes, {"x": x}, ["Round", "Sinh", "Cosh"]), HOPPER))
    assert architecture(lowered.code) == 90


def test_a_refused_kernel_names_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing(StandIn):
        def cubin(self, source: str, arch: str) -> bytes:
            raise KernelRefusedError("refused: no such function", f"{lowered_symbol(source)}")

    def lowered_symbol(source: str) -> str:
        return source.split(" void ")[1].split(") ", 1)[1].split("(")[0]

    monkeypatch.setattr(under_test, "find_compiler", lambda arch: Refusing())
    with pytest.raises(LoweringError, match="no such function") as caught:
        lowering_for(HOPPER).lower(multiply())
    assert caught.value.where == "node 'n0'"


def test_a_device_without_an_architecture_is_an_error() -> None:
    bare = TargetDevice("CUDA", "cuda", target={"kind": "cuda"})
    work = multiply()
    with pytest.raises(DeviceError, match="does not specify its GPU architecture") as caught:
        lowering_for(bare).lower(type(work)("p0", work.model, bare, work.nodes, work.inputs, work.outputs))
    assert "target.arch" in str(caught.value.hint)


def test_a_trial_needs_no_compiler_and_says_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(arch: str) -> CudaCompiler:
        raise CudaCompilerMissingError("no compiler")

    monkeypatch.setattr(under_test, "find_compiler", none)
    assert lowering_for(HOPPER).trial(multiply().model, "n0", HOPPER) is None
    scan = model([helper.make_node("CumSum", ["x", "a"], ["y"])], {"x": weights(64)}, ["y"], {"a": np.array(0)})
    assert "cumsum" in str(lowering_for(HOPPER).trial(scan, "n0", HOPPER))


def test_kernels_use_no_more_shared_memory_than_a_launch_gives_unasked() -> None:
    """A device file may state what the data sheet says, 227 KiB for an H200."""
    roomy = TargetDevice(
        "CUDA", "cuda", target={"kind": "cuda", "arch": "sm_90", "max_shared_memory_per_block": 232448}
    )
    assert limits_of(roomy).shared == 48 * 1024


# ---- TVM's packages -----------------------------------------------------------------------------------------------


def text(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data


def packed(form: bytes = b"cuda", code: bytes = b"source") -> bytes:
    function = text(b"k") + text(b"k") + struct.pack("<Q", 1) + bytes([3, 64, 1, 0])
    function += struct.pack("<Q", 1) + text(b"blockIdx.x") + struct.pack("<Qi", 1, 0)
    content = text(form) + struct.pack("<Q", 1) + function + text(code)
    tree = struct.pack("<4Q", 3, 0, 1, 1) + struct.pack("<2Q", 1, 1)
    body = tree + text(b"_lib") + text(b"relax.VMExecutable") + text(b"vm") + text(b"cuda") + text(content)
    return struct.pack("<Q", len(body)) + body


def test_source_is_replaced_and_all_else_stays() -> None:
    assert with_cubins(packed(), {"source": b"machine code"}.__getitem__) == packed(b"cubin", b"machine code")


@pytest.mark.parametrize(
    "data",
    [packed(form=b"ptx"), packed() + b"more", packed()[:-1], packed(code=b"x" * 9)[:-9] + bytes(9)],
    ids=["format", "longer", "shorter", "other source"],
)
def test_modules_of_another_form_are_refused(data: bytes) -> None:
    with pytest.raises((ValueError, KeyError)):
        with_cubins(data, {"source": b""}.__getitem__)


def test_a_loaded_cuda_runtime_compiles_nothing_while_sources_are_captured(stand_in: StandIn) -> None:
    calls: list[object] = []
    if tvm_ffi.get_global_func(CREATE, allow_missing=True) is not None:
        pytest.skip("TVM's CUDA runtime is loaded")
    tvm_ffi.register_global_func(CREATE, lambda *arguments: calls.append(arguments))
    try:
        lowering_for(HOPPER).lower(multiply())
        with captured_sources():
            assert tvm_ffi.get_global_func(CREATE, allow_missing=True) is None
        assert tvm_ffi.get_global_func(CREATE) is not None
    finally:
        tvm_ffi.remove_global_func(CREATE)
    assert calls == []
    assert [arch for _, arch in stand_in.given] == ["sm_90"]


# ---- bundles ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("stand_in")
def test_a_bundle_for_a_gpu_that_is_not_here_is_unchecked_and_says_why_it_cannot_run(tmp_path: Path) -> None:
    path = compiled(tmp_path)
    with open_bundle(path) as bundle:
        main, cpu = bundle.manifest.variants
    assert [p.checked for p in main.partitions] == [False]
    assert any("not checked" in note for note in main.notes)
    assert json.loads(main.devices[0].target or "")["arch"] == "sm_90"
    assert [p.checked for p in cpu.partitions] == [True]
    (tmp_path / "libcuda.so.1").write_text("no library")  # wherever the tests run, there is no driver
    printed = run(tmp_path, cuda_emulated.environment(tmp_path), "print(json.dumps(load(bundle).notes))")
    assert "device CUDA: CUDA cannot be used: libcuda.so.1 cannot be loaded: " in printed[0]
    assert printed[-1] == "runs on CPU instead"


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cuda")
    cuda_emulated.build_driver(folder)
    return folder


def run(folder: Path, variables: Mapping[str, str], code: str) -> Any:
    """The JSON that code prints in a fresh process, in which the stand-ins are the only CUDA libraries."""
    head = (
        "import json, sys, numpy as np\n"
        "from heterocc.runtime import load\n"
        "from heterocc.runtime.native import cuda_api\n"
        f"cuda_api.cudart_candidates = lambda: iter([{str(variables['LD_LIBRARY_PATH'] + '/libcudart.so.13')!r}])\n"
        f"bundle = {str(folder / 'small.hcb')!r}\n"
        "x = {'x': np.linspace(-1, 1, 675, dtype=np.float32).reshape(1, 3, 15, 15)}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", head + code],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


COMPARE = """
session, cpu = load(bundle), load(bundle, 'CPU')
got = session.run(x)['y']
again = session.run(x)['y']
allocated = session.allocations
session.run(x)
expected = cpu.run(x)['y']
print(json.dumps({'notes': session.notes, 'error': float(abs(got - expected).max()),
                  'same': bool((got == again).all()), 'allocations': session.allocations - allocated,
                  'tvm': 'tvm' in sys.modules}))
"""


def test_machine_code_is_loaded_and_its_source_computes_what_the_cpu_does(
    stand_in: StandIn, emulator: Path, tmp_path: Path
) -> None:
    compiled(tmp_path)
    kernels = cuda_emulated.build_kernels(stand_in.given[0][0], emulator)
    variables = cuda_emulated.environment(emulator, kernels)
    printed = run(tmp_path, variables, COMPARE)
    assert printed["notes"] == ["runs on CUDA"]
    assert printed["error"] < 1e-6
    assert (printed["same"], printed["allocations"], printed["tvm"]) == (True, 0, False)
    seen = cuda_emulated.log(emulator)
    assert seen.count("load elf=1 arch=90") == 1
    launches = [line for line in seen if line.startswith("launch ")]
    assert len(launches) % 3 == 0  # each kernel in each of three runs
    assert len(launches) >= 15


@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"major": 8}, "the code for CUDA is for sm_90, but Emulated GPU is sm_80"),
        ({"version": 12080}, "the driver serves CUDA 12.8, TVM's runtime needs 13.0"),
        ({"count": 0}, "the driver has no device"),
        ({"init": 100}, "cuInit says 'emulated failure'"),
    ],
    ids=["architecture", "old driver", "no device", "no init"],
)
def test_what_keeps_machine_code_from_running_is_said(
    emulator: Path, tmp_path: Path, settings: Mapping[str, object], reason: str
) -> None:
    compiled(tmp_path)
    printed = run(tmp_path, cuda_emulated.environment(emulator, **settings), "print(json.dumps(load(bundle).notes))")
    assert reason in printed[0]
    assert printed[-1] == "runs on CPU instead"


@pytest.mark.usefixtures("stand_in")
def test_a_missing_cuda_runtime_library_is_said_with_the_package_that_has_it(emulator: Path, tmp_path: Path) -> None:
    compiled(tmp_path)
    code = (
        "cuda_api.cudart_candidates = lambda: iter(['libcudart-that-is-not-there.so'])\n"
        "try:\n    cuda_api.load_cuda()\nexcept Exception as error:\n"
        "    print(json.dumps([type(error).__name__, error.message, error.hint, load(bundle).notes[0]]))\n"
    )
    kind, message, hint, note = run(tmp_path, cuda_emulated.environment(emulator), code)
    assert kind == "NativePluginError"
    assert message.startswith("libcudart.so.13 cannot be loaded")
    assert "nvidia-cuda-runtime" in hint
    assert message in note


@pytest.mark.usefixtures("stand_in")
def test_a_device_out_of_memory_is_a_memory_error(emulator: Path, tmp_path: Path) -> None:
    compiled(tmp_path)
    code = (
        "try:\n    load(bundle, 'CUDA')\nexcept Exception as error:\n"
        "    print(json.dumps([type(error).__name__, error.message]))\n"
    )
    kind, message = run(tmp_path, cuda_emulated.environment(emulator, memory=8), code)
    assert kind == "DeviceMemoryError"
    assert "cuda:0" in message


def test_the_compiler_finds_a_gpu_and_prefers_it(emulator: Path, tmp_path: Path) -> None:
    code = (
        "from heterocc.compiler.devices.names import resolve_devices\n"
        "from heterocc.runtime.machine.devices import inventory\n"
        "(gpu, cuda), notes = resolve_devices('GPU,CPU')[0][:1] + resolve_devices('CUDA')[0], None\n"
        "print(json.dumps([gpu.backend, gpu.present, cuda.target_json(), cuda.unit, cuda.flops, cuda.bandwidth,\n"
        "                  [d.label for d in inventory().devices]]))\n"
    )
    backend, present, target, unit, flops, bandwidth, labels = run(
        tmp_path, cuda_emulated.environment(emulator, minor=0), code
    )
    assert (backend, present, unit) == ("cuda", True, "discrete")
    assert json.loads(target)["arch"] == "sm_90"
    assert flops == pytest.approx(2 * 8 * 128 * 1.5e9)
    assert bandwidth == pytest.approx(2 * 2e9 * 256 / 8)
    assert "CUDA" in labels
