"""Reports of the commands on bundles: outputs, the contents of a bundle, whether it can run on this machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from heterocc.artifacts.bundle import Bundle
from heterocc.artifacts.dtypes import is_narrow
from heterocc.artifacts.dynamic import is_dynamic
from heterocc.artifacts.errors import BundleError, HeteroccError, IncompatibleBundleError, command_form
from heterocc.artifacts.manifest import Manifest, TensorSpec, Variant
from heterocc.artifacts.reader import open_bundle
from heterocc.artifacts.text.one_line import one_line
from heterocc.runtime.cli.output import print_line, print_plain
from heterocc.runtime.cli.table import TextTable
from heterocc.runtime.execute.executable import is_detail
from heterocc.runtime.machine.compat import has_onnxruntime, host, why_not
from heterocc.runtime.machine.devices import driver_reason
from heterocc.runtime.machine.ort_trial import refusals
from heterocc.runtime.select.request import parse_request
from heterocc.runtime.select.select import select_variants
from heterocc.runtime.shapes import shapes_text
from heterocc.runtime.sizes import input_places


def notes_to_show(notes: Sequence[str], devices: str | None) -> list[str]:
    """A session's notes, except details, if there are several or the variant was chosen by AUTO; each one line."""
    shown = [note for note in notes if not is_detail(note)]
    return (
        [one_line(command_form(note)) for note in shown]
        if len(shown) > 1 or parse_request(devices).is_automatic
        else []
    )


def outputs_table(results: Mapping[str, Any]) -> TextTable:
    """Name, type and a few statistics of each output."""
    rows: list[tuple[str, ...]] = []
    for name, value in results.items():
        if not isinstance(value, np.ndarray):
            rows.append((name, type(value).__name__, "", "", "", repr(value)[:60]))
            continue
        stats = ["", "", ""]
        if value.size and (value.dtype.kind in "fiub" or is_narrow(value)):
            wide = value.astype(np.float64)
            stats = [f"{wide.min():.6g}", f"{wide.max():.6g}", f"{wide.mean():.6g}"]
        first = ", ".join(f"{v:.6g}" if value.dtype.kind == "f" else str(v) for v in value.ravel()[:4])
        more = " …" if value.size > 4 else ""
        rows.append((name, f"{value.dtype}{list(value.shape)}", *stats, first + more))
    titles = ("output", "type", "min", "max", "mean", "first values")
    return TextTable(titles, tuple(rows), frozenset([2, 3, 4]))


def outputs_json(session: Any, results: Mapping[str, Any], profile: bool) -> dict[str, object]:
    """Outputs as `run --json` prints them, with the values of tensors of up to 10,000 elements."""
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
    """A tensor's type as text: `float32[1, 3, 224, 224]`; that of a sequence: `seq(tensor(float)) of [?, 3]`."""
    if spec.elements is not None:
        return f"{spec.dtype} of [{', '.join('?' if d is None else str(d) for d in spec.elements)}]"
    if spec.shape is None:
        return spec.dtype
    return f"{spec.dtype}[{', '.join('?' if d is None else str(d) for d in spec.shape)}]"


_MOST_CLASSES = 20

_NOT_CHECKED = "no result of this bundle was compared with ONNX Runtime when it was compiled"


def _any_checked(manifest: Manifest) -> bool:
    """Whether a partition was checked, or there is none."""
    parts = [part for variant in manifest.variants for part in variant.partitions]
    return not parts or any(part.checked for part in parts)


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
        for place, spec in enumerate(specs):
            sizes = _sizes(manifest, place) if label == "input" else ""
            optional = " (may be left out)" if label == "input" and spec.name in manifest.model.defaults else ""
            print_line(f"{label:<9} {spec.name}: {spec_text(spec)}{sizes}{optional}")
    if manifest.replacing is not None:
        names = [spec.name for spec in manifest.replacing.inputs]
        shown = ", ".join(names[:_MOST_CLASSES]) + (", …" if len(names) > _MOST_CLASSES else "")
        print_line(f"constants that a run may replace, in ONNX Runtime: {shown}")
    for name, classes in manifest.model.classes.items():
        shown = ", ".join(map(str, classes[:_MOST_CLASSES])) + (", …" if len(classes) > _MOST_CLASSES else "")
        print_line(f"classes   {name}: {shown}")
    weights = sum({(w.offset, w.nbytes): w.nbytes for w in manifest.weights}.values())
    found = manifest.model.compressed
    kept = f" except of {', '.join(found.keep)}" if found is not None and found.keep else ""
    form = "" if found is None else f", compressed to {found.form}{kept}"
    tensors = "1 tensor" if len(manifest.weights) == 1 else f"{len(manifest.weights)} tensors"
    print_line(f"weights   {tensors}, {_amount(weights)}{form}")
    goldens = manifest.all_goldens
    more = f", for {len(goldens)} shapes of inputs" if len(goldens) > 1 else ""
    print_plain(f"golden    {f'seed {goldens[0].seed}{more}' if goldens else 'none'}")
    if not _any_checked(manifest):
        print_plain(f"warning   {_NOT_CHECKED}")
    for variant in manifest.variants:
        print_plain("")
        _print_variant(manifest, variant, kernels=kernels)
        if plan:
            print_plain("")
            print_plain(bundle.text(variant.plan))
    if members:
        rows = tuple((member.name, str(member.size), member.sha256 or "by tensor") for member in manifest.members)
        print_plain("")
        print_plain(TextTable(("member", "bytes", "SHA-256"), rows, frozenset([1])).text())


def _amount(count: int) -> str:
    """A number of bytes in a unit of which there is at least 1: `64 B`, `1.2 kB`, `3.4 MB`."""
    if count < 1000:
        return f"{count} B"
    return f"{count / 1e3:.1f} kB" if count < 1e6 else f"{count / 1e6:.1f} MB"


def _print_variant(manifest: Manifest, variant: Variant, *, kernels: bool) -> None:
    print_line(f"variant   {variant.name}: {variant.summary}")
    if is_dynamic(manifest):
        print_line(f"  shapes  {_shapes_of(manifest, variant)}")
    for device in variant.devices:
        precision = device.settings.precision
        needs = [device.settings.cpu or "", device.arch or "", *device.cpu_features, *device.requires]
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


def _sizes(manifest: Manifest, place: int) -> str:
    """The sizes that dynamic dimensions of an input may have, on the first choice of devices."""
    group, spec = manifest.with_shapes(manifest.choices[0]), manifest.model.inputs[place]
    found = enumerate(input_places(group, place, spec.shape) or ())
    sizes = [f"{p.dim or f'dimension {index}'} {p.sizes}" for index, p in found if p.sizes is not None]
    return f" ({', '.join(sizes)})" if sizes else ""


def _shapes_of(manifest: Manifest, variant: Variant) -> str:
    """The shapes of a variant's inputs, with bounds of dynamic dimensions."""
    text = shapes_text(variant, [spec.name for spec in manifest.model.inputs])
    bounds = [
        f"{name} {found.min} to {'any size' if found.max is None else found.max}"
        + (f" by {found.step}" if found.step > 1 else "")
        for name, found in variant.bounds.items()
    ]
    return f"{text} ({', '.join(bounds)})" if bounds else text


def check_bundle(
    path: Path, devices: str | None = None, trusted_keys: Sequence[str] | None = None, require_signature: bool = False
) -> dict[str, Any]:
    """The answer of `check`: whether each variant can run on this machine, with reasons if not, the order in
    which variants would be tried, and whether all hashes match. Trust is as for `open_bundle`."""
    with open_bundle(path, trusted_keys=trusted_keys, require_signature=require_signature) as bundle:
        damage: HeteroccError | None = None
        try:
            bundle.verify()
        except BundleError as error:
            damage = error
        here = host()
        onnx = damage is None and any(p.kind == "onnx" for v in bundle.manifest.variants for p in v.partitions)
        refused = refusals(path, bundle.digest) if onnx and has_onnxruntime() else {}
        variants = []
        for variant in bundle.manifest.variants:
            reasons = list(why_not(variant, bundle.manifest.producer, here, driver_reason))
            reasons += _cannot_load(bundle, variant) if damage is None else []
            if any(part.kind == "onnx" for part in variant.partitions):
                reasons += [refused[name] for name in (variant.name, "") if name in refused]
            cpus = [d.settings.cpu for d in variant.devices if d.settings.cpu is not None]
            about: dict[str, Any] = {"cpus": cpus} if cpus else {}
            if is_dynamic(bundle.manifest):
                about["shapes"] = _shapes_of(bundle.manifest, variant)
            variants.append(
                {"name": variant.name, **about, "summary": variant.summary, "runs": not reasons, "reasons": reasons}
            )
        try:
            able = [v["name"] for v in variants if v["runs"]]
            chosen = select_variants(bundle.manifest, parse_request(devices), str(path)).variants
            order = [variant.name for variant in chosen if variant.name in able]
        except IncompatibleBundleError:
            order = []
        return {
            "bundle": str(path),
            "intact": damage is None,
            "damage": None if damage is None else damage.to_json(),
            "warning": bundle.manifest.faults_warning(),
            "checked": _any_checked(bundle.manifest),
            "variants": variants,
            "order": order,
            "runs": damage is None and bool(order),
        }


def _cannot_load(bundle: Bundle, variant: Variant) -> list[str]:
    """The reasons why this process cannot load a variant's code, which a container or a limit may forbid."""
    found: dict[str, None] = {}
    for part in variant.partitions:
        for name in (part.code, part.binaries) if part.kind != "onnx" else (part.binaries,):
            try:
                if name is not None:
                    with bundle.sealed_member(name) as code:
                        code.require_loadable()
            except BundleError as error:
                found[f"{error.message}; {command_form(error.hint)}" if error.hint else error.message] = None
    return list(found)


def print_check(report: Mapping[str, Any]) -> None:
    """Print the answer of `check`."""
    if report["intact"]:
        print_plain("intact: all hashes match")
    else:
        print_line(f"damaged: {report['damage']['message']}")
    if report["warning"] is not None:
        print_plain(f"warning: {report['warning']}")
    if not report["checked"]:
        print_plain(f"warning: {_NOT_CHECKED}")
    for variant in report["variants"]:
        cpus = f" ({', '.join(variant['cpus'])})" if "cpus" in variant else ""
        cpus += f" for {variant['shapes']}" if "shapes" in variant else ""
        able = "can run here" if report["intact"] else "would run here if it were intact"
        print_line(f"variant {variant['name']}{cpus}: {able if variant['runs'] else 'cannot run here'}")
        for reason in variant["reasons"]:
            print_line(f"  - {reason}")
    if report["runs"]:
        first, *others = report["order"]
        print_line(f"loads {first}" + (f"; if that fails, {', then '.join(others)}" if others else ""))
