"""What the caller of a compile can choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Stage = Literal["import", "partition", "lower", "pack"]


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """Options of one compile; the command line's flags, one to one.

    `devices` as in `--devices`, high to low priority. `variants` are further such lists, each a variant of its own in
    the same bundle, after the main one. `shapes` fixes dynamic inputs by name. `affinity` is an affinity file, or a
    mapping node name → device (what `query_model` gives, changed or not); a variant passes over what it says of devices
    that only other variants list. `passes` overrides `policy`. `inputs` is an .npz file with inputs for the check and
    the golden vectors, in place of seeded ones.
    """

    devices: Sequence[str] = ("CPU", "ORT")
    variants: Sequence[str | Sequence[str]] = ()
    device_files: Sequence[Path] = ()
    properties: Sequence[str] = ()
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    affinity: Path | Mapping[str, str] | None = None
    policy: str = "merge"
    passes: str | None = None
    check: bool = True
    cpu_variant: bool = True
    inputs: Path | None = None
    seed: int = 0
    stop_after: Stage | None = None
    dump_dir: Path | None = None
    dot_dir: Path | None = None
    pass_limit: int | None = None
    time_passes: bool = False
