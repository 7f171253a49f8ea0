"""Overhead of a partition beside its kernel: a chain of one-node partitions on the CPU against shorter ones.

    python benchmarks/runtime/hop.py [--length 50] [--threads 1] [--json FILE]

Compiles the chains with two CPU devices by turns, so that no two nodes share a partition. A hop is the time of the
long chain less that of a chain of one, by the number of further partitions. The chains and ONNX Runtime (which runs
the whole chain as one session) take turns, and the least time of each counts.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from heterocc.compiler import compile_model
from heterocc.runtime import load

RESULTS = Path(__file__).resolve().parents[1] / "results"
TARGET_US = 20.0
ELEMENTS = 16


@dataclass(frozen=True, slots=True)
class Hop:
    """Microseconds. `run` is `Session.run`, `bound` is `Binding.run`; `hop` is per partition, by `run`."""

    length: int
    run_one: float
    run_chain: float
    bound_one: float
    bound_chain: float
    onnxruntime_one: float
    onnxruntime_chain: float
    hop: float
    bound_hop: float
    onnxruntime_node: float
    allocations_after_first_run: int


def chain_model(path: Path, length: int) -> Path:
    """An ONNX chain of cheap unary nodes."""
    nodes = [helper.make_node(("Neg", "Relu")[i % 2], [f"v{i}"], [f"v{i + 1}"], name=f"n{i}") for i in range(length)]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [ELEMENTS]) for n in ("v0", f"v{length}")]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def compile_chain(folder: Path, length: int) -> tuple[Path, Path]:
    """The chain as ONNX and as a bundle of one-node partitions."""
    model, other = chain_model(folder / f"chain{length}.onnx", length), folder / "other.toml"
    other.write_text('name = "CPUB"\nbackend = "cpu"\n', encoding="utf-8")
    devices = ("CPU", "CPUB")
    report = compile_model(
        model,
        folder / f"chain{length}.hcb",
        devices=devices,
        device_files=(other,),
        affinity={f"n{i}": devices[i % 2] for i in range(length)},
        policy="greedy",
        cpu_variant=False,
        check=False,
    )
    if len(report.plan.partitions) != length or report.output is None:
        raise SystemExit(f"the chain of {length} became {len(report.plan.partitions)} partitions")
    return model, report.output


def least(calls: dict[str, Callable[[], object]], rounds: int, inner: int) -> dict[str, float]:
    """Least time of each call in microseconds, all taking turns."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            start = perf_counter()
            for _ in range(inner):
                call()
            best[name] = min(best[name], (perf_counter() - start) / inner * 1e6)
    return best


def measure(folder: Path, length: int, threads: int, rounds: int) -> Hop:
    """Compile both chains and time them."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    feed = {"v0": np.linspace(-1, 1, ELEMENTS, dtype=np.float32)}
    calls: dict[str, Callable[[], object]] = {}
    sessions = []
    for label, nodes in (("one", 1), ("chain", length)):
        model, bundle = compile_chain(folder, nodes)
        session = load(bundle, threads=threads)
        reference = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        np.testing.assert_array_equal(session.run(feed)[f"v{nodes}"], reference.run(None, feed)[0])
        binding = session.bind()
        binding.inputs["v0"][...] = feed["v0"]
        calls[f"run_{label}"] = lambda session=session: session.run(feed)
        calls[f"bound_{label}"] = binding.run
        calls[f"onnxruntime_{label}"] = lambda reference=reference: reference.run(None, feed)
        sessions.append(session)
    before = [s.allocations for s in sessions]
    best = least(calls, rounds, 50)
    allocated = sum(s.allocations for s in sessions) - sum(before)
    more = max(1, length - 1)
    return Hop(
        length,
        **best,
        hop=(best["run_chain"] - best["run_one"]) / more,
        bound_hop=(best["bound_chain"] - best["bound_one"]) / more,
        onnxruntime_node=(best["onnxruntime_chain"] - best["onnxruntime_one"]) / more,
        allocations_after_first_run=allocated,
    )


def table(hop: Hop) -> str:
    """The result as text."""
    rows = [
        ("", "1 partition", f"{hop.length} partitions", "per hop"),
        ("Session.run", f"{hop.run_one:.2f} us", f"{hop.run_chain:.2f} us", f"{hop.hop:.2f} us"),
        ("Binding.run", f"{hop.bound_one:.2f} us", f"{hop.bound_chain:.2f} us", f"{hop.bound_hop:.2f} us"),
        (
            "ONNX Runtime, one session",
            f"{hop.onnxruntime_one:.2f} us",
            f"{hop.onnxruntime_chain:.2f} us",
            f"{hop.onnxruntime_node:.2f} us",
        ),
    ]
    lines = ["  ".join(c.rjust(14) if i else c.ljust(26) for i, c in enumerate(row)) for row in rows]
    lines.append(f"a hop is {hop.hop / TARGET_US:.2f} of the {TARGET_US:.0f} us that are allowed")
    lines.append(f"allocations of tensor memory after the first run: {hop.allocations_after_first_run}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--length", type=int, default=50)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", type=Path, default=RESULTS / "hop.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        hop = measure(Path(folder), options.length, options.threads, options.rounds)
    print(table(hop))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(asdict(hop), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
