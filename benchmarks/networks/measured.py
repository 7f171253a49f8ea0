"""The policy `measured` on real networks, against each device alone and the other policies.

    python benchmarks/networks/measured.py compile FOLDER NAME …     (names as of benchmarks/networks/cpu.py, or paths)
    python benchmarks/networks/measured.py time FOLDER [--seconds 0.5]
    python benchmarks/networks/measured.py table FOLDER

`compile` makes a bundle by `measured` for each network and list of devices, and one for each device alone, and adds
its plans side by side to FOLDER/plans.jsonl; what is there already is left out, so an interrupted call goes on. `time`
runs the bundles of a network in turns and writes FOLDER/times.json: `ratio` is the time of the kept plan over that of
the fastest device alone, of medians. `table` prints both as Markdown.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.networks.cpu import locate  # noqa: E402
from benchmarks.runtime.multi import golden  # noqa: E402
from heterocc.artifacts.errors import HeteroccError  # noqa: E402
from heterocc.compiler import compile_model  # noqa: E402
from heterocc.compiler.commands.explaining import explain_bundle  # noqa: E402
from heterocc.compiler.pipeline.timing.turns import runs_in_turns  # noqa: E402
from heterocc.runtime import load  # noqa: E402

LISTS = ("OPENCL,CPU", "VULKAN,CPU", "VULKAN,OPENCL,CPU")
ALONE = ("CPU", "OPENCL", "VULKAN")


def stem(name: str) -> str:
    """The name of a network as part of a file's name."""
    return "".join(c if c.isalnum() else "_" for c in Path(name).stem)


def compile_all(folder: Path, names: list[str]) -> None:
    """Compile what the folder lacks."""
    for name in names:
        path, shapes = locate(name, folder)
        for devices in (*LISTS, *ALONE):
            target = folder / f"{stem(name)}@{devices.replace(',', '+')}.hcb"
            failed = target.with_suffix(".failed")
            if target.exists() or failed.exists():
                continue
            started = time.perf_counter()
            policy = "measured" if devices in LISTS else "greedy"
            try:
                compile_model(path, target, devices=devices, shapes=shapes, policy=policy, cpu_variant=False)
            except HeteroccError as error:
                failed.write_text(str(error))
                print(f"{stem(name)} {devices}: {error}", flush=True)
                continue
            seconds = time.perf_counter() - started
            plans = explain_bundle(target).to_json()["plans"] if devices in LISTS else []
            row = {"network": stem(name), "devices": devices, "seconds": seconds, "plans": plans}
            with (folder / "plans.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(f"{stem(name)} {devices} {seconds:.0f} s", flush=True)


def time_all(folder: Path, seconds: float) -> None:
    """Time the bundles of each network that is complete and not timed yet."""
    out = folder / "times.json"
    rows: dict[str, dict[str, float]] = json.loads(out.read_text()) if out.exists() else {}
    for network in dict.fromkeys(row["network"] for row in plans(folder)):
        bundles = {p.stem.partition("@")[2].replace("+", ","): p for p in sorted(folder.glob(f"{network}@*.hcb"))}
        if network in rows or not set(LISTS) <= bundles.keys():
            continue
        feed = golden(bundles["CPU"])
        sessions = {name: load(bundle) for name, bundle in bundles.items()}
        found = runs_in_turns({n: partial(s.run, feed) for n, s in sessions.items()}, seconds)
        rows[network] = {name: statistics.median(times) * 1e3 for name, times in found.items()}
        for session in sessions.values():
            session.close()
        out.write_text(json.dumps(rows, indent=2) + "\n")
        print(network, {n: round(t, 3) for n, t in rows[network].items()}, flush=True)


def plans(folder: Path) -> list[dict[str, Any]]:
    """The rows of plans.jsonl."""
    return [json.loads(line) for line in (folder / "plans.jsonl").read_text().splitlines()]


def table(folder: Path) -> None:
    """Print the times, and the plans side by side, as Markdown."""
    times: dict[str, dict[str, float]] = json.loads((folder / "times.json").read_text())
    print("| network | CPU, OPENCL, VULKAN alone |" + "".join(f" {d} | ratio |" for d in LISTS))
    print("|---|---|" + "---|---|" * len(LISTS))
    for network, row in times.items():
        alone = ", ".join(f"{row[d]:.3g}" if d in row else "-" for d in ALONE)
        cells = []
        for devices in LISTS:
            best = min(row[d] for d in devices.split(",") if d in row)
            cells.append(f" {row[devices]:.3g} | {row[devices] / best:.2f} |")
        print(f"| {network} | {alone} |{''.join(cells)}")
    print("\n| network | devices | plan | partitions | transfers, MB | estimated ms | measured ms |")
    print("|---|---|---|---|---|---|---|")
    for entry in plans(folder):
        for plan in entry["plans"]:
            if plan["partitions"] is None or plan["name"] == "measured":
                continue
            spent = [plan["estimated_us"], plan["measured_us"]]
            shown = " | ".join("-" if us is None else f"{us / 1e3:.3g}" for us in spent)
            sent = f"{plan['transfers']}, {(plan['transfer_bytes'] or 0) / 1e6:.2g}"
            about = f"{entry['network']} | {entry['devices']} | {plan['name']} | {plan['partitions']}"
            print(f"| {about} | {sent} | {shown} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("compile", "time", "table"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--seconds", type=float, default=0.5)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.command == "compile":
        compile_all(options.folder, options.names)
    elif options.command == "time":
        time_all(options.folder, options.seconds)
    else:
        table(options.folder)


if __name__ == "__main__":
    main()
