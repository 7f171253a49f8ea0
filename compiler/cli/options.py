"""Options of the commands on models, and parsers of their texts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from operator import not_
from pathlib import Path
from typing import Any

from heterocc.artifacts.errors import ShapeOptionError, UsageError
from heterocc.compiler.cli.help import CHECKS, DEVICES, INSIGHT, PLACEMENT, SIZES
from heterocc.compiler.options import MOST_SEED, CompileOptions
from heterocc.runtime.cli import options
from heterocc.runtime.cli.options import Option
from heterocc.runtime.files.shape_options import parse_shapes, parse_sizes

MODEL = Option("model", "The ONNX model.", Path, completes=".onnx")
LISTED = Option(
    "--devices -d",
    "Devices by priority, high to low: CPU, OPENCL, VULKAN, CUDA, GPU (the first GPU here), GPU.1, names of "
    "device files; ORT, listed last, runs what no other device can. AUTO, AUTO:GPU,CPU, AUTO:-CPU choose one "
    "by capability; MULTI:GPU,CPU compiles a variant for each.",
    default="CPU,ORT",
    completes="devices",
)
VARIANT = Option(
    "--variant",
    "Another list like --devices, compiled into a further variant of the same bundle. AUTO chooses among the "
    "variants when the bundle is loaded; if one cannot be loaded, the next is tried. Repeatable.",
    many=True,
    metavar="DEVICES",
    panel=DEVICES,
    completes="devices",
)
SHAPE = Option(
    "--shape", "Fix a dynamic input: NAME=1,3,224,224. Repeatable.", many=True, metavar="NAME=DIMS", panel=SIZES
)
DIM = Option(
    "--dim",
    "Fix a named dimension wherever the inputs have it: batch=8, or bound it where it stays dynamic: "
    "batch=1..64; `heterocc inspect model.onnx` lists the names. Repeatable.",
    many=True,
    metavar="NAME=SIZE",
)
SHAPES = Option(
    "--shapes",
    "Compile for these shapes of inputs, too: NAME=1,3,224,224, several inputs separated by semicolons. The "
    "runtime uses the code that fits a request. Repeatable, once for each set of shapes.",
    many=True,
    metavar="NAME=DIMS;…",
    panel=SIZES,
)
HINT = Option(
    "--hint",
    "Compile for each of these sizes of a named dimension: batch=1,8. Several --hint give every combination. "
    "Repeatable.",
    many=True,
    metavar="NAME=SIZES",
)
DEVICE_FILE = Option(
    "--device-file",
    "TOML or JSON description of a device that is not on this machine: name, backend (cpu, opencl, vulkan, "
    "cuda), target, memory, …; docs/devices.md has examples. Repeatable.",
    Path,
    many=True,
    panel=DEVICES,
    completes=".toml .json",
)
PROPERTY = Option(
    "--property -p",
    "A device's property: CPU.threads=4, GPU.precision=f16, GPU.tune=on (time kernels' schedules on the "
    "device). Repeatable.",
    many=True,
    metavar="DEVICE.KEY=VALUE",
    panel=DEVICES,
)
CONFIG = Option(
    "--config",
    "TOML or JSON file with a table of properties for each device, which --property overrides; "
    "docs/devices.md has an example.",
    Path,
    panel=DEVICES,
    completes=".toml .json",
)
CPU_TARGETS = Option(
    "--cpu-targets",
    "CPUs to compile for, each in variants of its own, of which the best that fits is loaded: "
    "x86-64-v3,x86-64-v4, names of LLVM, armv8.2-a+dotprod, native.",
    metavar="NAME,…",
    panel=DEVICES,
)
WEIGHTS = Option(
    "--weights",
    "Compress the weights of a float model's large products: int4 or int8, with options as in "
    "int4:block=32,accuracy_level=4 (the level at which the other factor is rounded to int8). What each "
    "output loses is reported; products that would lose too much stay as they are.",
    metavar="FORM",
)
WEIGHTS_KEEP = Option(
    "--weights-keep",
    "Pattern of nodes or weights that --weights leaves as they are: 'lm_head*'. Repeatable.",
    many=True,
    metavar="GLOB",
)
AFFINITY = Option(
    "--affinity -a", "Affinity file (TOML): patterns of nodes → device.", Path, panel=PLACEMENT, completes=".toml"
)
POLICY = Option(
    "--policy",
    "greedy: the first device that supports a node; merge: also fewest transfers, and with ORT beside the CPU"
    " the fastest of that plan and of each alone, by timed runs (of compile); optimal: the least estimated "
    "time, whatever the order of devices; measured (of compile): the plans of the others and of each device "
    "alone are compiled and timed here, and the fastest is kept.",
    default="merge",
    panel=PLACEMENT,
    completes="policies",
)
COST_TABLE = Option(
    "--cost-table",
    "JSON file with times of nodes and links: the model is placed by it alone, as it is written, without any "
    "device; docs/placement.md describes it.",
    Path,
    panel=PLACEMENT,
    completes=".json",
)
OBJECTIVE = Option(
    "--objective",
    "What is least: latency, the time of a run one step after the other; overlap, the time of a run in which "
    "devices work at the same time; throughput, the slowest device's time for each request; transfers, the "
    "bytes between devices; memory: latency, with a search for a plan that fits in the devices' memory. All "
    "but latency choose the policy optimal.",
    default="latency",
    panel=PLACEMENT,
    completes="objectives",
)
PASSES = Option(
    "--passes", "Passes by name, instead of a policy: 'greedy,manual,merge{max-nodes=64}'.", panel=PLACEMENT
)
DOT = Option(
    "--dot", "Directory for hetero_affinity_<model>.dot and hetero_subgraphs_<model>.dot.", Path, panel=INSIGHT
)
REPORT = Option("--report", "Also write one HTML page: the model, its placement and its times. It loads nothing.", Path)
COMPARE = Option(
    "--compare",
    "With --report: also show this other report, which was written before, beside the new one.",
    Path,
    completes=".html",
)
JSON = replace(options.JSON, panel=INSIGHT)
QUIET = Option("--quiet -q", "Hide progress and notes; warnings remain.", bool, panel=INSIGHT)
DUMP_DIR = Option(
    "--dump-dir", "Directory for the plan after every pass and each partition's IR and source.", Path, panel=INSIGHT
)
PASS_LIMIT = Option("--pass-limit", "Run only this many passes (to bisect).", int, least=0, panel=INSIGHT)
TIME_PASSES = Option("--time-passes", "Print the time of every pass and stage.", bool, panel=INSIGHT)

QUERIED = (MODEL, LISTED, SHAPE, DIM, DEVICE_FILE, PROPERTY, CONFIG)
COMPILE = (
    MODEL,
    Option("--output -o", "The bundle to write.", Path, shown_default="model name with .hcb"),
    LISTED,
    DIM,
    HINT,
    REPORT,
    COMPARE,
    SHAPE,
    SHAPES,
    VARIANT,
    DEVICE_FILE,
    PROPERTY,
    CONFIG,
    Option(
        "--fast-math",
        "Faster 3x3 convolutions on CPUs, with about three times the rounding error: as CPU.fast_math=on.",
        bool,
        panel=DEVICES,
    ),
    CPU_TARGETS,
    WEIGHTS,
    WEIGHTS_KEEP,
    AFFINITY,
    POLICY,
    OBJECTIVE,
    PASSES,
    Option("--no-check", "Do not compare the partitions with ONNX Runtime.", bool, panel=CHECKS),
    Option("--recheck", "Compare again what an earlier compile of the same model found right.", bool, panel=CHECKS),
    Option("--no-measure", "Do not time plans on this machine to choose between them.", bool, panel=CHECKS),
    Option("--inputs", "Inputs (.npz) for the check, instead of seeded ones.", Path, panel=CHECKS, completes=".npz"),
    Option(
        "--seed",
        "Seed of the inputs for the check and the golden vectors.",
        int,
        default=0,
        least=0,
        most=MOST_SEED,
        panel=CHECKS,
    ),
    Option("--no-cpu-variant", "Do not add a CPU-only variant to the bundle.", bool, panel=DEVICES),
    Option("--sign", "Sign the bundle with this private key, as `heterocc keygen` writes it.", Path),
    JSON,
    QUIET,
    DOT,
    DUMP_DIR,
    Option("--stop-after", "Stop after a stage: import, partition, lower or pack.", panel=INSIGHT, completes="stages"),
    PASS_LIMIT,
    TIME_PASSES,
)
PARTITION = (
    *QUERIED,
    AFFINITY,
    POLICY,
    PASSES,
    DOT,
    Option("--write-affinity", "Write the placement as an affinity file, to edit and give to --affinity.", Path),
    Option("--plan", "Also print the nodes and values of every partition.", bool),
    DUMP_DIR,
    PASS_LIMIT,
    TIME_PASSES,
    COST_TABLE,
    OBJECTIVE,
    JSON,
    QUIET,
)
QUERY = (*QUERIED, JSON, QUIET)


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


def policy_for(options: Any) -> str:
    """The policy of a command: `optimal` if the objective needs it and `--policy` is not given."""
    policy: str = options.policy if options.objective == "latency" or "policy" in options.given else "optimal"
    return policy


def refuse_given(given: Collection[str], names: Iterable[str], why: str, hint: str, where: str | None = None) -> None:
    """Raise UsageError (HC120) for the first of these parameters that is on the command line."""
    for name in names:
        if name in given:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} has no effect {why}", where=where or option, hint=hint)


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
    "property": ("properties", _listed),
    "shape": ("shapes", parse_shapes),
    "dim": ("dims", parse_sizes),
}
"""The option of a compile that a parameter of a command sets, and how it is read; others have one name and form."""


def compile_options(options: Any, **others: Any) -> CompileOptions:
    """CompileOptions from the options of a command on a model, and from `others`, which replace them."""
    values = vars(options)
    found = {option: read(values[name]) for name, (option, read) in _READ.items() if name in values}
    alike = {option.name for option in fields(CompileOptions)} & values.keys() - _READ.keys()
    found |= {name: values[name] for name in alike}
    if "policy" in values:
        found["policy"] = policy_for(options)
    return CompileOptions(**{**found, **others})
