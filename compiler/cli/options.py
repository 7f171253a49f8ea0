"""Options of the commands on models, and parsers of their texts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from heterocc.artifacts.errors import ShapeOptionError
from heterocc.compiler.importer.shapes.shape_rules import check_dims
from heterocc.compiler.options import CompileOptions

Model = Annotated[Path, typer.Argument(help="The ONNX model.", show_default=False)]
Devices = Annotated[
    str,
    typer.Option(
        "--devices",
        "-d",
        help="Devices by priority, high to low: CPU, OPENCL, VULKAN, CUDA, GPU (the first GPU here), GPU.1, names of "
        "device files; ORT, listed last, runs what no other device can. AUTO, AUTO:GPU,CPU, AUTO:-CPU choose one by "
        "capability; MULTI:GPU,CPU compiles a variant for each.",
    ),
]
Variant = Annotated[
    list[str] | None,
    typer.Option(
        "--variant",
        help="Another list like --devices, compiled into a further variant of the same bundle. AUTO chooses among the "
        "variants when the bundle is loaded; if one cannot be loaded, the next is tried. Repeatable.",
        metavar="DEVICES",
    ),
]
Shape = Annotated[
    list[str] | None,
    typer.Option("--shape", help="Fix a dynamic input: NAME=1,3,224,224. Repeatable.", metavar="NAME=DIMS"),
]
DeviceFile = Annotated[
    list[Path] | None,
    typer.Option(
        "--device-file",
        help="TOML or JSON description of a device that is not on this machine: name, backend (cpu, opencl, vulkan, "
        "cuda), target, memory, …; docs/devices.md has examples. Repeatable.",
    ),
]
Property = Annotated[
    list[str] | None,
    typer.Option(
        "--property",
        "-p",
        help="A device's property: CPU.threads=4, GPU.precision=f16, GPU.tune=on (time kernels' schedules on the "
        "device). Repeatable.",
        metavar="DEVICE.KEY=VALUE",
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="TOML or JSON file with a table of properties for each device, which --property overrides; "
        "docs/devices.md has an example.",
    ),
]
CpuTargets = Annotated[
    str | None,
    typer.Option(
        "--cpu-targets",
        help="CPUs to compile for, each in variants of its own, of which the best that fits is loaded: "
        "x86-64-v3,x86-64-v4, names of LLVM, armv8.2-a+dotprod, native.",
        metavar="NAME,…",
    ),
]
Affinity = Annotated[
    Path | None, typer.Option("--affinity", "-a", help="Affinity file (TOML): patterns of nodes → device.")
]
Policy = Annotated[
    str,
    typer.Option(
        "--policy",
        help="greedy: the first device that supports a node; merge: also fewest transfers; optimal: the least "
        "estimated time, whatever the order of devices.",
    ),
]
CostTable = Annotated[
    Path | None,
    typer.Option(
        "--cost-table",
        help="JSON file with times of nodes and links: the model is placed by it alone, as it is written, without any "
        "device; docs/placement.md describes it.",
    ),
]
Objective = Annotated[str, typer.Option("--objective", help="What is least: latency, the time of one run.")]
Passes = Annotated[
    str | None,
    typer.Option("--passes", help="Passes by name, instead of a policy: 'greedy,manual,merge{max-nodes=64}'."),
]
DotDir = Annotated[
    Path | None,
    typer.Option("--dot", help="Directory for hetero_affinity_<model>.dot and hetero_subgraphs_<model>.dot."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Hide progress and notes; warnings remain.")]
DumpDir = Annotated[
    Path | None,
    typer.Option("--dump-dir", help="Directory for the plan after every pass and each partition's IR and source."),
]
PassLimit = Annotated[int | None, typer.Option("--pass-limit", min=0, help="Run only this many passes (to bisect).")]
TimePasses = Annotated[bool, typer.Option("--time-passes", help="Print the time of every pass and stage.")]


def parse_shapes(options: list[str] | None) -> dict[str, tuple[int, ...]]:
    """Parse `--shape` options `NAME=1,3,224,224`. The name may contain `=` and `:`; `NAME=` is a scalar.

    Raises ShapeOptionError (HC106) for malformed text.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for option in options or ():
        name, sign, dims = option.rpartition("=")
        where = f"--shape {option}"
        if not sign or not name:
            raise ShapeOptionError(
                f"'{option}' is not of the form NAME=1,3,224,224", where=where, hint="dimensions are integers"
            )
        listed = [d.strip() for d in dims.strip("[]() ").replace("x", ",").split(",") if d.strip()]
        for index, text in enumerate(listed):
            if not (text.isascii() and text.isdigit() and len(text) < 20):
                raise ShapeOptionError(
                    f"dimension {index} of '{name}' cannot be '{text[:40]}'",
                    where=where,
                    hint="dimensions are integers, 0 or more",
                )
        shape = tuple(int(text) for text in listed)
        check_dims(name, shape, where)
        if name in shapes:
            raise ShapeOptionError(f"input '{name}' is given twice", where=f"--shape {option}")
        shapes[name] = shape
    return shapes


def split_devices(text: str) -> tuple[str, ...]:
    """Split `--devices` at commas, except after a word with a colon (`AUTO:`), which concerns the rest of the text."""
    if ":" in text:
        return (text,)
    return tuple(part.strip() for part in text.split(","))


def compile_options(
    devices: str, files: list[Path] | None, properties: list[str] | None, shapes: list[str] | None, **others: Any
) -> CompileOptions:
    """CompileOptions from the options of every command on a model, and from `others` unchanged."""
    return CompileOptions(
        devices=split_devices(devices),
        device_files=tuple(files or ()),
        properties=tuple(properties or ()),
        shapes=parse_shapes(shapes),
        **others,
    )
