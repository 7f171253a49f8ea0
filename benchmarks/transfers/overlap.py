"""A model of two branches, one for a device and one for the CPU: what it gains that both work at the same time."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from unittest.mock import patch

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from heterocc.compiler import compile_model
from heterocc.runtime import Session, load
from heterocc.runtime.execute import chain
from heterocc.runtime.plan import schedule as scheduling
from heterocc.runtime.plan.schedule import HOST, Schedule, Wait

SIZE = 256
LAYERS = 4
MOST_LAYERS = 64
ROUNDS = 300


@dataclass(frozen=True, slots=True)
class Overlap:
    """Least times in milliseconds: of a run as it is ordered, of one that waits after each step, of each branch alone.

    `crossing` are the bytes that are sent in a run.
    """

    device: str
    overlapped: float
    waiting: float
    device_branch: float
    cpu_branch: float
    crossing: int

    def __str__(self) -> str:
        limit = max(self.device_branch, self.cpu_branch)
        return (
            f"{self.device} beside CPU, {self.crossing} bytes sent: {self.overlapped:.2f} ms; waiting after every step "
            f"{self.waiting:.2f} ms ({self.waiting / self.overlapped:.2f}x). The branches alone take "
            f"{self.device_branch:.2f} and {self.cpu_branch:.2f} ms: at best {self.waiting / limit:.2f}x"
        )


def branches(path: Path, lengths: Mapping[str, int]) -> Path:
    """x → as many products as `lengths` says on each way → their sum, if there are two."""
    rng = np.random.default_rng(0)
    nodes, weights, ends = [], [], []
    for way, length in lengths.items():
        last = "x"
        for i in range(length):
            name = f"{way}{i}"
            weight = rng.standard_normal((SIZE, SIZE)).astype(np.float32) / SIZE**0.5
            weights.append(numpy_helper.from_array(weight, f"w{name}"))
            nodes.append(helper.make_node("MatMul", [last, f"w{name}"], [name], name=name))
            last = name
        ends.append(last)
    nodes.append(helper.make_node("Add", [ends[0], ends[-1]], ["y"], name="sum"))
    tensors = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [SIZE, SIZE]) for n in "xy"]
    graph = helper.make_graph(nodes, "branches", tensors[:1], tensors[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def compile_branches(folder: Path, device: str, lengths: Mapping[str, int]) -> Path:
    """A bundle with branch `a` on the device, `b` on the CPU, and the sum after both.

    The objective leaves the sum out of the CPU's branch, which else could not start before the device is done.
    """
    name = "-".join(f"{way}{length}" for way, length in lengths.items())
    places = {"a": device, "b": "CPU"}
    affinity = {f"{way}{i}": places[way] for way, length in lengths.items() for i in range(length)}
    bundle = folder / f"{name}.hcb"
    compile_model(
        branches(folder / f"{name}.onnx", lengths),
        bundle,
        devices=(device, "CPU"),
        affinity=affinity,
        policy="optimal",
        objective="overlap",
        cpu_variant=False,
        check=False,
    )
    return bundle


def waiting(plan: Schedule) -> Schedule:
    """The same steps, with a wait after each that a device is given."""
    steps = []
    for step, agent in zip(plan.steps, plan.agents, strict=True):
        if not isinstance(step, Wait):
            steps += [(step, agent)] + [(Wait(step), HOST)] * (agent != HOST)
    return replace(plan, steps=tuple(s for s, _ in steps), agents=tuple(a for _, a in steps))


def load_waiting(bundle: Path) -> Session:
    """A session that does one thing at a time, in the manifest's order."""
    with (
        patch.multiple(scheduling, MEMORY_FOR_OVERLAP=0.0, FREE_BYTES=-(1 << 60)),
        patch.object(chain, "schedule", lambda *arguments: waiting(scheduling.schedule(*arguments))),
    ):
        return load(bundle, threads=1)


def least(sessions: Mapping[str, Session], rounds: int) -> dict[str, float]:
    """Least time of a run of each session in milliseconds, all taking turns."""
    feed = {"x": np.random.default_rng(1).standard_normal((SIZE, SIZE)).astype(np.float32)}
    best = dict.fromkeys(sessions, float("inf"))
    for _ in range(rounds):
        for name, session in sessions.items():
            start = perf_counter()
            session.run(feed)
            best[name] = min(best[name], (perf_counter() - start) * 1e3)
    return best


def measure_overlap(device: str) -> Overlap:
    """Give the device and the CPU a branch each that lasts as long, and time runs in turns."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def alone(way: str, length: int) -> Session:
            return load(compile_branches(folder, device, {way: length}), threads=1)

        with alone("a", LAYERS) as ours, alone("b", LAYERS) as theirs:
            first = least({"a": ours, "b": theirs}, ROUNDS // 4)
        more = min(MOST_LAYERS, max(LAYERS, round(LAYERS * first["a"] / first["b"])))
        bundle = compile_branches(folder, device, {"a": LAYERS, "b": more})
        with (
            load(bundle, threads=1, profile=True) as profiled,
            load(bundle, threads=1) as together,
            load_waiting(bundle) as apart,
            alone("a", LAYERS) as ours,
            alone("b", more) as theirs,
        ):
            least({"profiled": profiled}, 1)
            sent = [r for r in profiled.profile().of("transfer") if r.status == "EXECUTED"]
            best = least({"overlapped": together, "waiting": apart, "a": ours, "b": theirs}, ROUNDS)
    crossing = len(sent) * 4 * SIZE * SIZE
    return Overlap(device, best["overlapped"], best["waiting"], best["a"], best["b"], crossing)
