"""Reports of the bundle commands: outputs, the contents of a bundle, whether it can run on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.markup import escape
from rich.table import Table

from heterocc.artifacts.dtypes import is_narrow
from heterocc.artifacts.errors import BundleError, HeteroccError, IncompatibleBundleError, command_form
from heterocc.artifacts.manifest import TensorSpec, Variant
from heterocc.artifacts.one_line import one_line
from heterocc.artifacts.reader import Bundle, open_bundle
from heterocc.compiler.checking.ort_trial import refusals
from heterocc.compiler.cli.console import err, out, print_line, print_plain
from heterocc.runtime.execute.executable import is_detail
from heterocc.runtime.select.compat import host, why_not
from heterocc.runtime.select.devices import driver_reason
from heterocc.runtime.select.ranking import CPU_PROPERTY
from heterocc.runtime.select.select import is_automatic, select_variants


def print_notes(notes: Sequence[str], devices: str | None) -> None:
    """Print a session's notes, except details, if there are several or the variant was chosen by AUTO."""
    shown = [note for note in notes if not is_detail(note)]
    if len(shown) > 1 or is_automatic(devices):
        for note in shown:
            err.print(f"[cyan]note:[/] {escape(one_line(command_form(note)))}")


def outputs_table(results: Mapping[str, Any]) -> Table:
    """Name, type and a few statistics of each output."""
    table = Table(box=None, pad_edge=False)
    for column in ("output", "type", "min", "max", "mean", "first values"):
        table.add_column(column, justify="left" if column in ("output", "type", "first values") else "right")
    for name, value in results.items():
        if not isinstance(value, np.ndarray):
            table.add_row(name, type(value).__name__, "", "", "", repr(value)[:60])
            continue
        stats = ["", "", ""]
        if value.size and (value.dtype.kind in "fiub" or is_narrow(value)):
            wide = value.astype(np.float64)
            stats = [f"{wide.min():.6g}", f"{wide.max():.6g}", f"{wide.mean():.6g}"]
        first = ", ".join(f"{v:.6g}" if value.dtype.kind == "f" else str(v) for v in value.ravel()[:4])
        table.add_row(name, f"{value.dtype}{list(value.shape)}", *stats, first + (" …" if value.size > 4 else ""))
    return table


def outputs_json(session: Any, results: Mapping[str, Any], profile: bool) -> dict[str, object]:
    """Outputs as `heterocc run --json` prints them, with the values of tensors of up to 10,000 elements."""
    shown: dict[str, object] = {}
    for name, value in results.items():
        if isinstance(value, np.ndarray):
            plain = value.astype(np.float32) if is_narrow(value) else value
            data = plain.tolist() if value.size <= 10_000 else None
            shown[name] = {"dtype": str(value.dtype), "shape": list(value.shape), "data": _finite(data)}
        else:
            shown[name] = {"dtype": type(value).__name__, "data": _finite(_plain(value))}
    report: dict[str, object] = {"variant": session.variant.name, "devices": list(session.devices), "outputs": shown}
    report["notes"] = [command_form(note) for note in session.notes]
    if profile:
        report["profile"] = session.profile().to_json()
    return report


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    return value


def _finite(value: Any) -> Any:
    """Replace NaN and infinities, which JSON cannot represent, by text."""
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    if isinstance(value, list):
        return [_finite(v) for v in value]
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    return value


def spec_text(spec: TensorSpec) -> str:
    """A tensor's type as text: `float32[1, 3, 224, 224]`."""
    if spec.shape is None:
        return spec.dtype
    return f"{spec.dtype}[{', '.join('?' if d is None else str(d) for d in spec.shape)}]"


def print_bundle(bundle: Bundle, *, plan: bool, members: bool, kernels: bool) -> None:
    """Print the contents of a bundle."""
    manifest = bundle.manifest
    made = ", ".join(f"{k} {v}" for k, v in manifest.producer.model_dump().items() if v)
    print_line(f"model     {manifest.model.name}  (SHA-256 {manifest.model.sha256[:16]}…)")
    print_line(f"format    {manifest.version.major}.{manifest.version.minor}, written by {made}")
    warning = manifest.faults_warning()
    if warning is not None:
        print_plain(f"warning   {warning}")
    for label, specs in (("input", manifest.model.inputs), ("output", manifest.model.outputs)):
        for spec in specs:
            print_line(f"{label:<9} {spec.name}: {spec_text(spec)}")
    weights = sum({(w.offset, w.nbytes): w.nbytes for w in manifest.weights}.values())
    print_plain(f"weights   {len(manifest.weights)} tensors, {weights / 1e6:.1f} MB")
    print_plain(f"golden    {'none' if manifest.golden is None else f'seed {manifest.golden.seed}'}")
    for variant in manifest.variants:
        print_plain("")
        _print_variant(variant, kernels=kernels)
        if plan:
            print_plain("")
            print_plain(bundle.text(variant.plan))
    if members:
        table = Table(box=None, pad_edge=False)
        table.add_column("member")
        table.add_column("bytes", justify="right")
        table.add_column("SHA-256")
        for member in manifest.members:
            table.add_row(member.name, str(member.size), member.sha256 or "by tensor")
        print_plain("")
        out.print(table)


def _print_variant(variant: Variant, *, kernels: bool) -> None:
    print_line(f"variant   {variant.name}: {variant.summary}")
    for device in variant.devices:
        precision = device.properties.get("precision", "f32")
        needs = [device.properties.get(CPU_PROPERTY, ""), device.arch or "", *device.cpu_features, *device.requires]
        needs += [f"precision={precision}"] if precision != "f32" else []
        print_line(
            f"  device  {device.name} ({device.backend}.{device.index}) {' '.join(n for n in needs if n)}".rstrip()
        )
    for note in variant.notes:
        print_line(f"  note    {note}")
    for part in variant.partitions:
        label = variant.devices[part.device].name
        state = "checked" if part.checked else "not checked"
        print_line(f"  {part.name:<7} {label}: {len(part.nodes)} nodes, {len(part.kernels)} kernels, {state}")
        if kernels:
            for kernel in part.kernels:
                print_line(f"          {kernel.symbol}: {', '.join(kernel.nodes)}")


def check_bundle(path: Path, devices: str | None = None) -> dict[str, Any]:
    """The answer of `heterocc check`: whether each variant can run on this machine, with reasons if not, the order in
    which variants would be tried, and whether all hashes match."""
    with open_bundle(path) as bundle:
        damage: HeteroccError | None = None
        try:
            bundle.verify()
        except BundleError as error:
            damage = error
        here = host()
        onnx = damage is None and any(p.kind == "onnx" for v in bundle.manifest.variants for p in v.partitions)
        refused = refusals(path) if onnx and here.onnxruntime else {}
        variants = []
        for variant in bundle.manifest.variants:
            reasons = list(why_not(variant, bundle.manifest.producer, here, driver_reason))
            if any(part.kind == "onnx" for part in variant.partitions):
                reasons += [refused[name] for name in (variant.name, "") if name in refused]
            cpus = [d.properties[CPU_PROPERTY] for d in variant.devices if CPU_PROPERTY in d.properties]
            about = {"cpus": cpus} if cpus else {}
            variants.append(
                {"name": variant.name, **about, "summary": variant.summary, "runs": not reasons, "reasons": reasons}
            )
        try:
            able = [v["name"] for v in variants if v["runs"]]
            chosen = select_variants(bundle.manifest, devices, str(path)).variants
            order = [variant.name for variant in chosen if variant.name in able]
        except IncompatibleBundleError:
            order = []
        return {
            "bundle": str(path),
            "intact": damage is None,
            "damage": None if damage is None else damage.to_json(),
            "warning": bundle.manifest.faults_warning(),
            "variants": variants,
            "order": order,
            "runs": damage is None and bool(order),
        }


def print_check(report: Mapping[str, Any]) -> None:
    """Print the answer of `heterocc check`."""
    if report["intact"]:
        print_plain("intact: all hashes match")
    else:
        print_line(f"damaged: {report['damage']['message']}")
    if report["warning"] is not None:
        print_plain(f"warning: {report['warning']}")
    for variant in report["variants"]:
        cpus = f" ({', '.join(variant['cpus'])})" if "cpus" in variant else ""
        print_line(f"variant {variant['name']}{cpus}: {'can run here' if variant['runs'] else 'cannot run here'}")
        for reason in variant["reasons"]:
            print_line(f"  - {reason}")
    if report["order"]:
        first, *others = report["order"]
        print_line(f"loads {first}" + (f"; if that fails, {', then '.join(others)}" if others else ""))
