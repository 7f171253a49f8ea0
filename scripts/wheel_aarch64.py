"""`make wheel-aarch64`: cross-build heterocc-runtime for ARM (aarch64), and run a bundle with it in an emulator.

Usage: python scripts/wheel_aarch64.py [--output build/aarch64]
The compiler is Debian's g++ for aarch64, and the test runs Debian's Python 3.11 for it in qemu-aarch64. What is not
installed is fetched with apt-get and unpacked into OUTPUT, without installing it; TVM's libraries come from the wheels
of the package index. Without qemu-aarch64 (Debian: qemu-user) the wheel is built, but not run.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from scripts.wheels import LIMIT, RUNTIME, tagged  # noqa: E402

COMPILER = (
    "g++-12-aarch64-linux-gnu gcc-12-aarch64-linux-gnu cpp-12-aarch64-linux-gnu binutils-aarch64-linux-gnu "
    "libc6-dev-arm64-cross libc6-arm64-cross linux-libc-dev-arm64-cross libstdc++-12-dev-arm64-cross "
    "libgcc-12-dev-arm64-cross libgcc-s1-arm64-cross libstdc++6-arm64-cross"
).split()
PYTHON = (
    "python3.11-minimal libpython3.11-minimal libpython3.11-stdlib libc6 libcrypt1 libexpat1 zlib1g libssl3 libffi8 "
    "libbz2-1.0 liblzma5 libuuid1 libgcc-s1 libstdc++6"
).split()
PLATFORM = "manylinux_2_28_aarch64"

TRY = """
import platform, sys
import numpy as np
from heterocc.artifacts.reader import open_bundle
from heterocc.runtime import load
with open_bundle(sys.argv[1]) as bundle, load(sys.argv[1]) as session:
    golden = bundle.manifest.golden
    found = session.run({name: bundle.array(member) for name, member in golden.inputs.items()})
    for name, member in golden.outputs.items():
        np.testing.assert_allclose(found[name], bundle.array(member), rtol=1e-4, atol=1e-5)
    print(platform.machine(), "ran a bundle, whose results are right")
"""


def call(command: Sequence[str | Path], **options: object) -> str:
    """Run a program. Raises SystemExit with what it said."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload]
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return str(done.stdout)


def debian(packages: Sequence[str], folder: Path, architecture: str | None = None) -> Path:
    """A folder with the files of Debian packages, which are not installed."""
    if folder.is_dir():
        return folder
    work = folder.with_name(f"{folder.name}-apt")
    for name in ("lists/partial", "archives/partial", "debs"):
        (work / name).mkdir(parents=True, exist_ok=True)
    options = ["-o", "APT::Sandbox::User=root"]
    env: Mapping[str, str] = os.environ
    if architecture is not None:
        configuration = work / "apt.conf"
        text = f'APT::Architecture "{architecture}"; APT::Architectures {{ "{architecture}"; }};'
        configuration.write_text(text, encoding="utf-8")
        options += ["-o", f"Dir::State::lists={work}/lists", "-o", f"Dir::Cache={work}"]
        options += ["-o", "Dir::State::status=/dev/null"]
        env = {**os.environ, "APT_CONFIG": str(configuration)}
        call(["apt-get", *options, "update"], env=env)
    call(["apt-get", *options, "download", *packages], env=env, cwd=work / "debs")
    unpacked = folder.with_name(f"{folder.name}.new")
    for package in sorted((work / "debs").glob("*.deb")):
        call(["dpkg", "-x", package, unpacked])
    return unpacked.rename(folder)


def foreign(folder: Path, *requirements: str) -> None:
    """Unpack the wheels of packages for aarch64 into a folder."""
    wheels = folder.with_name(f"{folder.name}-wheels")
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "--python-version=3.11"]
    call([*pip, f"--platform={PLATFORM}", "-d", wheels, *requirements])
    for wheel in wheels.glob("*.whl"):
        with ZipFile(wheel) as archive:
            archive.extractall(folder)


def compiler(output: Path) -> Path:
    """The cross-compiler: Debian's installed one, or a script that calls a fetched one."""
    found = shutil.which("aarch64-linux-gnu-g++")
    if found is not None:
        return Path(found)
    root = debian(COMPILER, output / "cross")
    script = output / "bin" / "aarch64-linux-gnu-g++"
    script.parent.mkdir(exist_ok=True)
    script.write_text(
        f"#!/bin/sh\nexport LD_LIBRARY_PATH='{root}/usr/lib/x86_64-linux-gnu'\nexport PATH='{root}/usr/bin':\"$PATH\"\n"
        f"exec '{root}/usr/bin/aarch64-linux-gnu-g++-12' --sysroot='{root}' \"$@\"\n",
        encoding="utf-8",
    )
    script.chmod(0o755)
    return script


def toolchain(output: Path, program: Path) -> Path:
    """CMake's description of the compiler."""
    file = output / "aarch64.cmake"
    lines = (
        "set(CMAKE_SYSTEM_NAME Linux)",
        "set(CMAKE_SYSTEM_PROCESSOR aarch64)",
        f'set(CMAKE_CXX_COMPILER "{program}")',
    )
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def headers(output: Path) -> Path:
    """The headers of OpenCL and Vulkan without the others beside them, which are this processor's."""
    folder = output / "headers"
    folder.mkdir(exist_ok=True)
    for name in ("CL", "vulkan", "vk_video"):
        if Path("/usr/include", name).is_dir() and not (folder / name).is_symlink():
            (folder / name).symlink_to(Path("/usr/include", name))
    return folder


def build(output: Path, program: Path) -> Path:
    """The wheel, compiled with this compiler."""
    packages = output / "tvm"
    if not packages.is_dir():
        names = ("apache-tvm", "apache-tvm-ffi")
        foreign(packages, *(f"{name}=={metadata.version(name)}" for name in names))
    include = headers(output)
    given = {
        "CMAKE_TOOLCHAIN_FILE": toolchain(output, program),
        "TVM_DIR": packages / "tvm",
        "TVM_FFI_DIR": packages / "tvm_ffi",
        "OPENCL_INCLUDE_DIR": include,
        "VULKAN_INCLUDE_DIR": include,
    }
    env = {
        **os.environ,
        "CMAKE_ARGS": " ".join(f"-D{name}={value}" for name, value in given.items()),
        "_PYTHON_HOST_PLATFORM": "linux-aarch64",  # the tag of the wheel
    }
    for old in output.glob("heterocc_runtime-*.whl"):
        old.unlink()
    pip: list[str | Path] = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w"]
    call([*pip, output, RUNTIME], env=env)
    (wheel,) = output.glob("heterocc_runtime-*.whl")
    return tagged(wheel)


def check(wheel: Path) -> None:
    """Raise SystemExit unless the plug-ins and TVM's libraries are in the wheel, for aarch64."""
    with ZipFile(wheel) as archive:
        libraries = [n for n in archive.namelist() if n.endswith(".so")]
        other = [n for n in libraries if archive.read(n)[18:20] != b"\xb7\x00"]  # e_machine: EM_AARCH64
        native = [n for n in archive.namelist() if n.endswith("native_build.txt")]
        missing = [line for line in archive.read(native[0]).decode().splitlines() if not line.endswith(": built")]
        size = sum(info.file_size for info in archive.infolist())
    if other or missing or size > LIMIT:
        raise SystemExit(f"{wheel.name}: for another processor {other}; {missing}; {size / 1e6:.1f} MB")
    print(f"  {wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB, installed {size / 1e6:.1f} MB")


def bundle(output: Path, program: Path) -> Path:
    """A small model compiled for aarch64 on this machine, and linked by the cross-compiler."""
    from heterocc.compiler import compile_model
    from tests.compiler.small import conv_net

    device = output / "arm.toml"
    device.write_text(
        'name = "CPU"\nbackend = "cpu"\n[target]\nmtriple = "aarch64-linux-gnu"\nmcpu = "generic"\n',
        encoding="utf-8",
    )
    os.environ["PATH"] = f"{program.parent}:{os.environ['PATH']}"
    made = output / "arm.hcb"
    compile_model(conv_net(output / "arm.onnx"), made, devices="CPU", device_files=[device])
    return made


def emulate(output: Path, wheel: Path, made: Path) -> None:
    """Run the bundle with the wheel in the emulator."""
    root = debian(PYTHON, output / "python", "arm64")
    packages = output / "packages"
    if not packages.is_dir():
        needs = ("numpy", "apache-tvm-ffi", "typing-extensions")
        foreign(packages, *(f"{name}=={metadata.version(name)}" for name in needs))
    for old in ("artifacts", "runtime"):
        shutil.rmtree(packages / "heterocc" / old, ignore_errors=True)
    with ZipFile(wheel) as archive:
        archive.extractall(packages)
    program: list[str | Path] = ["qemu-aarch64", "-L", root, root / "usr" / "bin" / "python3.11", "-c", TRY, made]
    env = {"PYTHONHOME": str(root / "usr"), "PYTHONPATH": str(packages), "HOME": str(output), "PATH": "/usr/bin"}
    print("  " + call(program, env=env, cwd=output).strip())


def main() -> None:
    """Build, look, run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "aarch64")
    output = parser.parse_args().output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    program = compiler(output)
    wheel = build(output, program)
    check(wheel)
    if shutil.which("qemu-aarch64") is None:
        print("  not run: qemu-aarch64 is not installed (Debian: qemu-user)")
        return
    emulate(output, wheel, bundle(output, program))


if __name__ == "__main__":
    main()
