"""The options of a compile."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypedDict, TypeVar, get_type_hints

from heterocc.artifacts.errors import Hint, ShapeOptionError, UsageError
from heterocc.artifacts.manifest import Range
from heterocc.artifacts.signing.keys import SigningKey
from heterocc.compiler.api.keywords import keywords_of, refuse_unknown
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.devices.lists import parse_list
from heterocc.passes.affinity import Affinity
from heterocc.runtime.files.shape_options import MAX_ELEMENTS
from heterocc.runtime.select.request import DeviceRequest

Stage = Literal["import", "partition", "lower", "pack"]

MOST_SEED = 2**31 - 1
"""The largest seed that a bundle can name."""

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """Options of one compile, with the meaning of the command line's flags.

    `devices` is in order of priority, as in `--devices`: "GPU,CPU" or ["GPU", "CPU"]. `variants` are further such
    lists, each a separate variant of the bundle after the main one; a single string is one list. `shapes` fixes dynamic
    inputs by name, `dims` dimensions by name, in all inputs that have them: to a size, or to (least, largest). With
    `shape_sets`, each a mapping as `shapes`, and `hints`, sizes by name of dimension, the bundle has code for each set
    with each combination of sizes.
    `affinity` is an affinity file or a mapping from node name to device, such as the result of `query_model`; a variant
    ignores entries for devices that only other variants list. `passes` overrides `policy`.
    An `objective` other than latency needs the policy `optimal`.
    `config` is a TOML or JSON file with a table of properties for each device, which `properties` override.
    `weights`, `int4` or `int8` with options such as `int4:block=32`, compresses the weights of large products of a
    float model; `weights_keep` are patterns of the names of nodes or weights that stay as they are.
    `fast_math` sets the property of that name, which allows larger rounding errors, for all devices that have it.
    `cpu_targets` are CPUs to compile for, each in variants of its own: `x86-64-v3`, `armv8.2-a+dotprod`.
    `sign` is the private key, or its file, that signs the bundle.
    `inputs` is an .npz file with inputs for the check and the golden vectors, instead of seeded ones. `recheck` repeats
    the check of code that an earlier compile found right on the same inputs. `measure` has the choice between our code
    and ONNX Runtime decided by timing, once, if there is a cache; without it the bundle depends on no timing, unless a
    device's property `tune` is on. A path may be a string, and a single file or property needs no sequence. `report` is
    the path of an HTML page that explains the main variant's placement, `compare` that of a page written before, which
    the new one shows beside it.

    `lists` are the lists of devices, parsed: that of the main variant, then those of the others.

    Raises UsageError (HC120) for a value of a wrong type, ShapeOptionError (HC106) for bounds that cannot be, and
    UnknownDeviceError (HC402) for a list of devices that is empty or has an empty name.
    """

    devices: Sequence[str] = ("CPU", "ORT")
    variants: Sequence[str | Sequence[str]] = ()
    device_files: Sequence[Path | TargetDevice] = ()
    properties: Sequence[str] = ()
    config: Path | None = None
    fast_math: bool = False
    weights: str | None = None
    weights_keep: Sequence[str] = ()
    cpu_targets: Sequence[str] = ()
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    dims: Mapping[str, int | Range] = field(default_factory=dict)
    shape_sets: Sequence[Mapping[str, Sequence[int]]] = ()
    hints: Mapping[str, Sequence[int]] = field(default_factory=dict)
    affinity: Path | Mapping[str, str] | Affinity | None = None
    policy: str = "merge"
    objective: str = "latency"
    passes: str | None = None
    check: bool = True
    recheck: bool = False
    measure: bool = True
    cpu_variant: bool = True
    inputs: Path | None = None
    seed: int = 0
    stop_after: Stage | None = None
    dump_dir: Path | None = None
    dot_dir: Path | None = None
    report: Path | None = None
    compare: Path | None = None
    pass_limit: int | None = None
    sign: Path | SigningKey | None = None
    lists: tuple[DeviceRequest, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the types, and normalise strings and sequences to tuples and paths."""
        self._set("devices", _names("devices", self.devices))
        self._set("variants", tuple(_names("variants", v) for v in _listed("variants", self.variants)))
        self._set("lists", tuple(map(parse_list, (self.devices, *self.variants))))
        self._set("properties", _names("properties", self.properties))
        self._set("weights_keep", _names("weights_keep", self.weights_keep))
        if self.weights is not None:
            _require("weights", self.weights, str, "a form of weights such as 'int4:block=32'")
        targets = _names("cpu_targets", self.cpu_targets)
        self._set("cpu_targets", tuple(name for text in targets for name in text.split(",")))
        described = _listed(
            "device_files", (self.device_files,) if isinstance(self.device_files, TargetDevice) else self.device_files
        )
        self._set(
            "device_files", tuple(v if isinstance(v, TargetDevice) else _path("device_files", v) for v in described)
        )
        if not isinstance(self.affinity, (Mapping, Affinity)):
            self._set("affinity", _path("affinity", self.affinity))
        if not isinstance(self.sign, SigningKey):
            self._set("sign", _path("sign", self.sign))
        for name in ("config", "inputs", "dump_dir", "dot_dir", "report", "compare"):
            self._set(name, _path(name, getattr(self, name)))
        _require_shapes("shapes", self.shapes)
        _require("dims", self.dims, Mapping, "a mapping of dimension name to size")
        self._set("dims", {name: _size_or_range(name, size) for name, size in self.dims.items()})
        sets = (self.shape_sets,) if isinstance(self.shape_sets, Mapping) else _listed("shape_sets", self.shape_sets)
        self._set("shape_sets", sets)
        for number, shapes in enumerate(sets):
            _require_shapes(f"shape_sets[{number}]", shapes)
        _require("hints", self.hints, Mapping, "a mapping of dimension name to sizes")
        for name, sizes in self.hints.items():
            if isinstance(sizes, (str, bytes)) or not isinstance(sizes, Sequence) or not sizes:
                raise _wrong(f"hints[{name!r}]", sizes, "a sequence of integers, such as (1, 8)")
        _require("policy", self.policy, str, "the name of a policy")
        _require("objective", self.objective, str, "the name of an objective")
        for name in ("check", "recheck", "measure", "cpu_variant", "fast_math"):
            _require(name, getattr(self, name), bool, "True or False")
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or not 0 <= self.seed <= MOST_SEED:
            raise _wrong("seed", self.seed, f"an integer from 0 to {MOST_SEED}")

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


class Options(TypedDict, total=False):
    """The options as keywords, with the types that CompileOptions accepts."""

    devices: str | Sequence[str]
    variants: str | Sequence[str | Sequence[str]]
    device_files: str | Path | TargetDevice | Sequence[str | Path | TargetDevice]
    properties: str | Sequence[str]
    config: str | Path | None
    fast_math: bool
    weights: str | None
    weights_keep: str | Sequence[str]
    cpu_targets: str | Sequence[str]
    shapes: Mapping[str, Sequence[int]]
    dims: Mapping[str, int | tuple[int, int] | Range]
    shape_sets: Mapping[str, Sequence[int]] | Sequence[Mapping[str, Sequence[int]]]
    hints: Mapping[str, Sequence[int]]
    affinity: str | Path | Mapping[str, str] | Affinity | None
    policy: str
    objective: str
    passes: str | None
    check: bool
    recheck: bool
    measure: bool
    cpu_variant: bool
    inputs: str | Path | None
    seed: int
    stop_after: Stage | None
    dump_dir: str | Path | None
    dot_dir: str | Path | None
    report: str | Path | None
    compare: str | Path | None
    pass_limit: int | None
    sign: str | Path | SigningKey | None


def named_options(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function that takes Options as keywords: its signature and help name each of them."""
    signature = inspect.signature(function)
    types = get_type_hints(Options)
    options = [
        inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=_default(f), annotation=types[f.name])
        for f in fields(CompileOptions)
        if f.init
    ]
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    described = inspect.cleandoc(CompileOptions.__doc__ or "").partition("\n\n")[2]
    function.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\n{described}"
    function.__signature__ = signature.replace(parameters=[*own, *options])  # type: ignore[attr-defined]
    return function


def _default(option: Field[Any]) -> Any:
    return option.default if option.default_factory is MISSING else option.default_factory()


def with_overrides(
    function: Callable[..., Any], options: CompileOptions | None, overrides: Mapping[str, object]
) -> CompileOptions:
    """`options`, or the defaults for None, with `overrides`, the keywords that `function` does not name itself.

    Raises UsageError (HC120) for a keyword that is not a field of CompileOptions.
    """
    if not isinstance(options, CompileOptions | None):
        raise UsageError(
            f"options must be CompileOptions, not {type(options).__name__}",
            where=f"{function.__name__}(options=…)",
            hint="give single options as keywords, such as devices='GPU,CPU'",
        )
    own = [name for name in keywords_of(function) if name not in ("model", "options")]
    refuse_unknown(
        function.__name__, overrides, dict.fromkeys([*(f.name for f in fields(CompileOptions) if f.init), *own])
    )
    changes: dict[str, Any] = dict(overrides)
    return CompileOptions(**changes) if options is None else replace(options, **changes)


def _names(name: str, value: Any) -> tuple[str, ...]:
    """A single name, or a sequence of names, as a tuple."""
    names = _listed(name, value)
    for item in names:
        if not isinstance(item, str):
            raise _wrong(name, item, 'a string such as "GPU,CPU" or a sequence such as ["GPU", "CPU"]')
    return names


def _listed(name: str, value: Any) -> tuple[Any, ...]:
    if isinstance(value, (str, os.PathLike)):
        return (value,)
    if isinstance(value, (bytes, Mapping)) or not isinstance(value, Sequence):
        raise _wrong(name, value, "a string or a sequence")
    return tuple(value)


def _path(name: str, value: Any) -> Path | None:
    if value is None or isinstance(value, Path):
        return value
    if not isinstance(value, (str, os.PathLike)):
        raise _wrong(name, value, "a path")
    return Path(value)


def _size_or_range(name: str, given: Any) -> Any:
    """A range for two bounds, which is the one form that the compile has; another value as it is given."""
    ends: Any = (given.min, given.max) if isinstance(given, Range) else given
    if not isinstance(ends, (tuple, list)):
        return given
    if len(ends) == 2 and all(isinstance(end, int) for end in ends) and 0 <= ends[0] <= ends[1] <= MAX_ELEMENTS:
        return given if isinstance(given, Range) else Range(min=ends[0], max=ends[1])
    raise ShapeOptionError(
        f"the bounds of dimension '{name}' cannot be {ends!r}"[:120],
        where=Hint("dims=…", "--dim"),
        hint=Hint("give the least and the largest size: (1, 64)", "give the least and the largest size: 1..64"),
    )


def _require_shapes(name: str, shapes: Any) -> None:
    _require(name, shapes, Mapping, "a mapping of input name to dimensions")
    for source, shape in shapes.items():
        if isinstance(shape, (str, bytes)) or not isinstance(shape, Sequence):
            raise _wrong(f"{name}[{source!r}]", shape, "a sequence of integers, such as (1, 3, 224, 224)")


def _require(name: str, value: Any, kind: type, what: str) -> None:
    if not isinstance(value, kind):
        raise _wrong(name, value, what)


def _wrong(name: str, value: Any, what: str) -> UsageError:
    return UsageError(f"{name} must be {what}, not {type(value).__name__}", where=f"{name}={value!r}"[:80])
