"""Options of the commands on models, and parsers of their texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from operator import not_
from pathlib import Path
from typing import Annotated, Any

import typer

from heterocc.artifacts.errors import ShapeOptionError, UsageError
from heterocc.compiler.cli import completion
from heterocc.compiler.cli.help import DEVICES, INSIGHT, PLACEMENT, SIZES
from heterocc.compiler.options import CompileOptions
from heterocc.runtime.files.shape_options import parse_shapes, parse_sizes

Model = Annotated[
    Path, typer.Argument(help="The ONNX model.", show_default=False, autocompletion=completion.files(".onnx"))
]
Devices = Annotated[
    str,
    typer.Option(
        "--devices",
        "-d",
        help="Devices by priority, high to low: CPU, OPENCL, VULKAN, CUDA, GPU (the first GPU here), GPU.1, names of "
        "device files; ORT, listed last, runs what no other device can. AUTO, AUTO:GPU,CPU, AUTO:-CPU choose one by "
        "capability; MULTI:GPU,CPU compiles a variant for each.",
        autocompletion=completion.devices,
    ),
]
Variant = Annotated[
    list[str] | None,
    typer.Option(
        "--variant",
        help="Another list like --devices, compiled into a further variant of the same bundle. AUTO chooses among the "
        "variants when the bundle is loaded; if one cannot be loaded, the next is tried. Repeatable.",
        metavar="DEVICES",
        rich_help_panel=DEVICES,
        autocompletion=completion.devices,
    ),
]
Shape = Annotated[
    list[str] | None,
    typer.Option(
        "--shape", help="Fix a dynamic input: NAME=1,3,224,224. Repeatable.", metavar="NAME=DIMS", rich_help_panel=SIZES
    ),
]
Dim = Annotated[
    list[str] | None,
    typer.Option(
        "--dim",
        help="Fix a named dimension wherever the inputs have it: batch=8, or bound it where it stays dynamic: "
        "batch=1..64; `heterocc inspect model.onnx` lists the names. Repeatable.",
        metavar="NAME=SIZE",
    ),
]
Shapes = Annotated[
    list[str] | None,
    typer.Option(
        "--shapes",
        help="Compile for these shapes of inputs, too: NAME=1,3,224,224, several inputs separated by semicolons. The "
        "runtime uses the code that fits a request. Repeatable, once for each set of shapes.",
        metavar="NAME=DIMS;…",
        rich_help_panel=SIZES,
    ),
]
HintedSizes = Annotated[
    list[str] | None,
    typer.Option(
        "--hint",
        help="Compile for each of these sizes of a named dimension: batch=1,8. Several --hint give every combination. "
        "Repeatable.",
        metavar="NAME=SIZES",
    ),
]
DeviceFile = Annotated[
    list[Path] | None,
    typer.Option(
        "--device-file",
        help="TOML or JSON description of a device that is not on this machine: name, backend (cpu, opencl, vulkan, "
        "cuda), target, memory, …; docs/devices.md has examples. Repeatable.",
        rich_help_panel=DEVICES,
        autocompletion=completion.files(".toml", ".json"),
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
        rich_help_panel=DEVICES,
    ),
]
Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        help="TOML or JSON file with a table of properties for each device, which --property overrides; "
        "docs/devices.md has an example.",
        rich_help_panel=DEVICES,
        autocompletion=completion.files(".toml", ".json"),
    ),
]
CpuTargets = Annotated[
    str | None,
    typer.Option(
        "--cpu-targets",
        help="CPUs to compile for, each in variants of its own, of which the best that fits is loaded: "
        "x86-64-v3,x86-64-v4, names of LLVM, armv8.2-a+dotprod, native.",
        metavar="NAME,…",
        rich_help_panel=DEVICES,
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(
        "--weights",
        help="Compress the weights of a float model's large products: int4 or int8, with options as in "
        "int4:block=32,accuracy_level=4 (the level at which the other factor is rounded to int8). What each output "
        "loses is reported; products that would lose too much stay as they are.",
        metavar="FORM",
    ),
]
WeightsKeep = Annotated[
    list[str] | None,
    typer.Option(
        "--weights-keep",
        help="Pattern of nodes or weights that --weights leaves as they are: 'lm_head*'. Repeatable.",
        metavar="GLOB",
    ),
]
Affinity = Annotated[
    Path | None,
    typer.Option(
        "--affinity",
        "-a",
        help="Affinity file (TOML): patterns of nodes → device.",
        rich_help_panel=PLACEMENT,
        autocompletion=completion.files(".toml"),
    ),
]
Policy = Annotated[
    str,
    typer.Option(
        "--policy",
        help="greedy: the first device that supports a node; merge: also fewest transfers, and with ORT beside the "
        "CPU the fastest of that plan and of each alone, by timed runs (of compile); optimal: the least "
        "estimated time, whatever the order of devices; measured (of compile): the plans of the others and of each "
        "device alone are compiled and timed here, and the fastest is kept.",
        rich_help_panel=PLACEMENT,
        autocompletion=completion.policies,
    ),
]
CostTable = Annotated[
    Path | None,
    typer.Option(
        "--cost-table",
        help="JSON file with times of nodes and links: the model is placed by it alone, as it is written, without any "
        "device; docs/placement.md describes it.",
        rich_help_panel=PLACEMENT,
        autocompletion=completion.files(".json"),
    ),
]
Objective = Annotated[
    str,
    typer.Option(
        "--objective",
        help="What is least: latency, the time of a run one step after the other; overlap, the time of a run in which "
        "devices work at the same time; throughput, the slowest device's time for each request; transfers, the bytes "
        "between devices; memory: latency, with a search for a plan that fits in the devices' memory. All but latency "
        "choose the policy optimal.",
        rich_help_panel=PLACEMENT,
        autocompletion=completion.objectives,
    ),
]
Passes = Annotated[
    str | None,
    typer.Option(
        "--passes",
        help="Passes by name, instead of a policy: 'greedy,manual,merge{max-nodes=64}'.",
        rich_help_panel=PLACEMENT,
    ),
]
DotDir = Annotated[
    Path | None,
    typer.Option(
        "--dot",
        help="Directory for hetero_affinity_<model>.dot and hetero_subgraphs_<model>.dot.",
        rich_help_panel=INSIGHT,
    ),
]
Report = Annotated[
    Path | None,
    typer.Option(
        "--report", help="Also write one HTML page: the model, its placement and its times. It loads nothing."
    ),
]
Compare = Annotated[
    Path | None,
    typer.Option(
        "--compare",
        help="With --report: also show this other report, which was written before, beside the new one.",
        autocompletion=completion.files(".html"),
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.", rich_help_panel=INSIGHT)]
Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Hide progress and notes; warnings remain.", rich_help_panel=INSIGHT)
]
DumpDir = Annotated[
    Path | None,
    typer.Option(
        "--dump-dir",
        help="Directory for the plan after every pass and each partition's IR and source.",
        rich_help_panel=INSIGHT,
    ),
]
PassLimit = Annotated[
    int | None,
    typer.Option("--pass-limit", min=0, help="Run only this many passes (to bisect).", rich_help_panel=INSIGHT),
]
TimePasses = Annotated[
    bool, typer.Option("--time-passes", help="Print the time of every pass and stage.", rich_help_panel=INSIGHT)
]


def parse_shape_sets(options: list[str] | None) -> tuple[dict[str, tuple[int, ...]], ...]:
    """Parse `--shapes` options `NAME=1,3,224,224;NAME=1`. Raises ShapeOptionError (HC106) for malformed text."""
    sets = []
    for option in options or ():
        found = parse_shapes([text.strip() for text in option.split(";") if text.strip()])
        if not found:
            raise ShapeOptionError(
                "a set of shapes is empty", where=f"--shapes {option}", hint="write --shapes NAME=1,3,224,224"
            )
        sets.append(found)
    return tuple(sets)


def parse_hints(options: list[str] | None) -> dict[str, tuple[int, ...]]:
    """Parse `--hint` options `NAME=1,8`. Raises ShapeOptionError (HC106) for malformed text."""
    hints: dict[str, tuple[int, ...]] = {}
    for option in options or ():
        name, sign, texts = option.rpartition("=")
        where = f"--hint {option}"
        sizes = [text.strip() for text in texts.split(",")]
        if not sign or not name or not all(t.isascii() and t.isdigit() and len(t) < 20 for t in sizes):
            raise ShapeOptionError(
                f"'{option}' is not of the form NAME=1,8", where=where, hint="one name and whole numbers"
            )
        if name in hints:
            raise ShapeOptionError(
                f"dimension '{name}' has hints twice", where=where, hint=f"write --hint {name}=… once, with all sizes"
            )
        hints[name] = tuple(map(int, sizes))
    return hints


def policy_for(context: typer.Context, policy: str, objective: str) -> str:
    """The policy of a command: `optimal` if the objective needs it and `--policy` is not given."""
    return policy if objective == "latency" or is_given(context, "policy") else "optimal"


def refuse_given(context: typer.Context, names: Iterable[str], why: str, hint: str, where: str | None = None) -> None:
    """Raise UsageError (HC120) for the first of these parameters that is on the command line."""
    for name in names:
        if is_given(context, name):
            option = f"--{name.rstrip('_').replace('_', '-')}"
            raise UsageError(f"{option} has no effect {why}", where=where or option, hint=hint)


def is_given(context: typer.Context, name: str) -> bool:
    """Return whether the parameter is on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _listed(values: Sequence[Any] | None) -> tuple[Any, ...]:
    return tuple(values or ())


_READ: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "variant": ("variants", _listed),
    "shapes": ("shape_sets", parse_shape_sets),
    "hint": ("hints", parse_hints),
    "weights_keep": ("weights_keep", _listed),
    "cpu_targets": ("cpu_targets", lambda text: () if text is None else (text,)),
    "no_check": ("check", not_),
    "no_measure": ("measure", not_),
    "no_cpu_variant": ("cpu_variant", not_),
    "dot": ("dot_dir", lambda path: path),
    "device_file": ("device_files", _listed),
    "property_": ("properties", _listed),
    "shape": ("shapes", parse_shapes),
    "dim": ("dims", parse_sizes),
}
"""The option of a compile that a parameter of a command sets, and how it is read; others have one name and form."""


def compile_options(context: typer.Context, **others: Any) -> CompileOptions:
    """CompileOptions from the parameters of a command on a model, and from `others`, which replace them."""
    given = context.params
    options = {option: read(given[name]) for name, (option, read) in _READ.items() if name in given}
    alike = {option.name for option in fields(CompileOptions)} & given.keys() - _READ.keys()
    options |= {name: given[name] for name in alike}
    if "policy" in given:
        options["policy"] = policy_for(context, given["policy"], given["objective"])
    return CompileOptions(**{**options, **others})
