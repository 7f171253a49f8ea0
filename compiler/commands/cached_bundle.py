"""The bundle of a model in the cache, for commands that are given a model where they need a bundle."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import onnx

from heterocc.artifacts.files.filetype import is_file
from heterocc.compiler.api.progress import Reporter
from heterocc.compiler.devices.host import host_cpu
from heterocc.compiler.files.private import objection_to
from heterocc.compiler.files.records import cache_dir, toolchain_digest
from heterocc.compiler.files.scratch import scratch_folder
from heterocc.compiler.options import CompileOptions
from heterocc.compiler.pipeline.compile import compile_model

MOST_KEPT = 8
"""The bundles that are kept; those that were not used for the longest time are removed."""

SOURCES = ("compiler/build", "compiler/checking", "compiler/pipeline", "compiler/placement", "compiler/sizes")
"""What a bundle depends on beside the sources of the toolchain."""


@contextmanager
def cached_bundle(model: Path, devices: Sequence[str] | None, reporter: Reporter) -> Iterator[Path]:
    """The bundle of a model for a list of devices, the default one for None, compiled if it is not in the cache.

    Without a cache it is in a temporary folder. Raises the errors of a compile.
    """
    options = CompileOptions() if devices is None else CompileOptions(devices)
    root = cache_dir()
    key = _key(model, options) if root is not None and objection_to(root) is None else None
    if root is None or key is None:
        with scratch_folder("bench") as folder:
            compile_model(model, folder / "model.hcb", options, reporter)
            yield folder / "model.hcb"
        return
    path = root / "bundles-v1" / f"{key}.hcb"
    if path.is_file():
        os.utime(path)
    else:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        compile_model(model, path, options, reporter)
        _drop_oldest(path.parent)
    yield path


def _key(model: Path, options: CompileOptions) -> str | None:
    """A digest of what the bundle depends on; None for a file that cannot be read, which the compile reports."""
    if not is_file(model):
        return None
    try:
        data = model.read_bytes()
        proto = onnx.load_from_string(data)
    except Exception:  # protobuf has several classes of errors
        return None
    outside = {e.value for t in proto.graph.initializer for e in t.external_data if e.key == "location"}
    states = [(name, _state(model.parent / name)) for name in sorted(outside)]
    cpu = host_cpu()
    facts = (options.devices, states, cpu.name, sorted(cpu.features), os.environ.get("HETEROCC_CALIBRATION"))
    text = f"bundle\n{toolchain_digest(*SOURCES)}\n{json.dumps(facts)}\n"
    return hashlib.sha256(text.encode() + data).hexdigest()


def _state(path: Path) -> tuple[int, int] | None:
    """The size and time of change of a file with weights; None if there is none."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return found.st_size, found.st_mtime_ns


def _drop_oldest(folder: Path) -> None:
    """Remove bundles beyond MOST_KEPT; a session that has one open keeps its file."""
    ages: list[tuple[int, str]] = []
    for file in folder.glob("*.hcb"):
        with contextlib.suppress(OSError):
            ages.append((file.stat().st_mtime_ns, str(file)))
    for _, name in sorted(ages)[:-MOST_KEPT]:
        with contextlib.suppress(OSError):
            Path(name).unlink()
