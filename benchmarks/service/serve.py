"""A service under load: its overhead over a session, its throughput, and a soak with failures and reloads.

Usage: python benchmarks/service/serve.py [prepare|overhead|throughput|soak …] [--model squeezenet] [--clients 8]
       [--seconds 20] [--folder DIR]
The model is as in benchmarks/networks/cpu.py. `--folder` keeps the bundles that `prepare` compiles, for later runs.
Service and clients are separate processes on the same machine; all results are compared with those of a session. Prints
tables and writes benchmarks/results/serve.json. Without a part: all of them.

    overhead    one caller: a session's own time, and the public client's over HTTP and gRPC, in turns
    throughput  many callers, on the bundle and on a bundle that runs the model in ONNX Runtime, in the same service
    soak        many callers for `--seconds`, half of them over HTTP: a CPU model, one that another thread unloads and
                loads, and one on OpenCL, whose plug-in fails from some launch on; then SIGTERM under load. Every
                answer must be right or a typed error that is expected there, and the service must have answered as
                many requests as the clients got results.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402
import tritonclient.grpc as grpc_client  # noqa: E402
import tritonclient.http as http_client  # noqa: E402
from geventhttpclient.response import HTTPConnectionClosed  # noqa: E402
from tritonclient.utils import InferenceServerException  # noqa: E402

from benchmarks.networks.cpu import locate  # noqa: E402
from heterocc.compiler import compile_model  # noqa: E402
from heterocc.runtime import Session, load  # noqa: E402
from heterocc.runtime.native import opencl_unavailable_reason  # noqa: E402
from heterocc.runtime.serve.tensors import datatype_of  # noqa: E402
from tests.runtime import standin  # noqa: E402
from tests.runtime.serve.process import ServiceProcess  # noqa: E402

PARTS = ("prepare", "overhead", "throughput", "soak")
FAILING_LAUNCH = 2000
"""The launch from which the OpenCL plug-in fails in the soak."""

PATIENCE = 600.0
"""Seconds that a client waits for an answer, and for the service to end."""

REFUSED = ("503", "StatusCode.UNAVAILABLE", "ConnectionRefusedError")
"""How a client's next request may end once the service has ended."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A model's input and the session's result."""

    model: str
    feed: dict[str, np.ndarray[Any, Any]]
    expected: dict[str, np.ndarray[Any, Any]]

    @classmethod
    def of(cls, bundle: Path) -> Sample:
        """A seeded sample."""
        with load(bundle, threads=1) as session:
            feed = seeded(session)
            return cls(bundle.stem, feed, {n: a.copy() for n, a in session.run(feed).items()})


def seeded(session: Session) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    return {i.name: rng.random([d or 1 for d in i.shape or ()]).astype(i.dtype) for i in session.inputs}


class Caller:
    """One client of one protocol with one model's input."""

    def __init__(self, service: ServiceProcess, protocol: str, sample: Sample) -> None:
        library = http_client if protocol == "http" else grpc_client
        self.sample = sample
        # A busy machine may stop the client and the service for minutes, which loses no answer.
        options = {"network_timeout": PATIENCE, "connection_timeout": PATIENCE} if protocol == "http" else {}
        self._client = library.InferenceServerClient(getattr(service, protocol), **options)
        self._inputs = []
        for name, array in sample.feed.items():
            given = library.InferInput(name, list(array.shape), datatype_of(array.dtype.name))
            given.set_data_from_numpy(array)
            self._inputs.append(given)

    def ask(self) -> bool:
        """Send a request; returns whether the result is right."""
        result = self._client.infer(self.sample.model, self._inputs)
        return all(np.array_equal(result.as_numpy(n), array) for n, array in self.sample.expected.items())


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    return {f"p{q}": float(np.percentile(seconds, q)) * 1e3 for q in (50, 99)}


# ---- parts --------------------------------------------------------------------------------------------------------


def prepare(folder: Path, model: str) -> dict[str, Path]:
    """The bundles, compiled unless the folder has them: `model`, `in_onnxruntime`, `tiny`, `reloaded`, `failing`."""
    bundles = {n: folder / f"{n}.hcb" for n in ("model", "in_onnxruntime", "tiny", "reloaded", "failing")}
    with tempfile.TemporaryDirectory() as scratch:
        for name, devices in (("model", "CPU"), ("in_onnxruntime", "ORT")):
            if not bundles[name].exists():
                path, shapes = locate(model, Path(scratch))
                compile_model(path, bundles[name], devices=devices, shapes=shapes)
    if not bundles["tiny"].exists():
        standin.write_bundle(bundles["tiny"], standin.chain(1))
        standin.write_bundle(bundles["reloaded"], standin.chain(3))
        if opencl_unavailable_reason() is None:
            standin.write_bundle(bundles["failing"], standin.chain(2, device="g"))
    return {name: path for name, path in bundles.items() if path.exists()}


def overhead(bundles: dict[str, Path], seconds: float) -> dict[str, Any]:
    """Milliseconds of one caller, in turns."""
    found: dict[str, Any] = {}
    names = ("tiny", "model")
    with ServiceProcess(*(bundles[n] for n in names)) as service:
        for name in names:
            with load(bundles[name], threads=1) as session:
                sample = Sample.of(bundles[name])
                runners: dict[str, Callable[[], object]] = {"session": lambda s=session, f=sample.feed: s.run(f)}
                runners |= {p: Caller(service, p, sample).ask for p in ("http", "grpc")}
                times: dict[str, list[float]] = {r: [] for r in runners}
                for run in runners.values():
                    run()
                end = time.monotonic() + seconds / len(names)
                while time.monotonic() < end:
                    for runner, run in runners.items():
                        for _ in range(10):
                            start = time.perf_counter()
                            run()
                            times[runner].append(time.perf_counter() - start)
            found[name] = {runner: percentiles(values) for runner, values in times.items()}
            for runner, row in found[name].items():
                print(f"{name:8} {runner:8} p50 {row['p50']:8.3f} ms   p99 {row['p99']:8.3f} ms")
    return found


def throughput(bundles: dict[str, Path], seconds: float, clients: int) -> dict[str, Any]:
    """Requests per second of many callers, by bundle and protocol; a session's own with a thread for each core."""
    found: dict[str, Any] = {}
    names = [n for n in ("model", "in_onnxruntime", "tiny") if n in bundles]
    each = seconds / (3 * len(names))
    with ServiceProcess(*(bundles[n] for n in names)) as service:
        for name in names:
            sample = Sample.of(bundles[name])
            row = found[name] = {}
            with load(bundles[name], threads=1) as session:
                cores = len(os.sched_getaffinity(0))
                row["session"] = rate([lambda s=session, f=sample.feed: s.run(f) for _ in range(cores)], each)
            for protocol in ("http", "grpc"):
                row[protocol] = rate([Caller(service, protocol, sample).ask for _ in range(clients)], each)
            for runner, measured in row.items():
                print(
                    f"{name:15} {runner:8} {measured['per_second']:9.1f} /s   p50 {measured['p50']:8.3f} ms   "
                    f"p99 {measured['p99']:8.3f} ms"
                )
    return found


def rate(runs: Sequence[Callable[[], object]], seconds: float) -> dict[str, float]:
    """Requests per second and percentiles of callers at the same time."""
    times: list[float] = []
    end = time.monotonic() + seconds

    def call(run: Callable[[], object]) -> None:
        while time.monotonic() < end:
            start = time.perf_counter()
            assert run() is not False, "a wrong result"
            times.append(time.perf_counter() - start)

    begin = time.monotonic()
    in_threads([lambda r=r: call(r) for r in runs])
    return {"per_second": len(times) / (time.monotonic() - begin), **percentiles(times)}


def soak(bundles: dict[str, Path], seconds: float, clients: int) -> dict[str, Any]:
    """Callers, reloads and failures at the same time, then SIGTERM; raises if an answer is wrong or lost."""
    names = [n for n in ("model", "tiny", "reloaded", "failing") if n in bundles]
    allowed = {"reloaded": "HC504", "failing": "HC401"}
    # Before the service starts: this process has its own OpenCL driver, without failures.
    samples = {n: Sample.of(bundles[n]) for n in names}
    seen: Counter[str] = Counter()
    ending = threading.Event()
    environment = {"HETEROCC_OPENCL_FAULT": f"launch:{FAILING_LAUNCH}+"}
    memory: list[int] = []
    files: list[int] = []
    with ServiceProcess(*(bundles[n] for n in names), environment=environment) as service:
        proc = Path(f"/proc/{service.process.pid}")

        def call(number: int) -> None:
            protocol = ("http", "grpc")[number % 2]
            callers = [Caller(service, protocol, samples[n]) for n in names]
            turn = number
            while True:
                turn += 1
                caller = callers[turn % len(callers)]
                expected = allowed.get(caller.sample.model, "none")
                try:
                    seen["right" if caller.ask() else "wrong"] += 1
                except InferenceServerException as error:
                    if expected in str(error.message()):
                        seen[expected] += 1
                        continue
                    seen[f"ended: {error.status()}" if error.status() in REFUSED else str(error)] += 1
                    return
                except (OSError, HTTPConnectionClosed) as error:
                    seen[f"ended: {type(error).__name__}"] += 1
                    return

        def reload() -> None:
            with http_client.InferenceServerClient(service.http) as client:
                while not ending.wait(0.3):
                    client.unload_model("reloaded")
                    client.load_model("reloaded")
                    seen["reloads"] += 1

        def observe() -> None:
            while not ending.wait(1):
                memory.append(rss(proc))
                files.append(len(list((proc / "fd").iterdir())))

        threads = [threading.Thread(target=call, args=(n,)) for n in range(clients)]
        others = [threading.Thread(target=work) for work in (reload, observe)]
        for thread in (*threads, *others):
            thread.start()
        time.sleep(seconds)
        ending.set()
        for thread in others:
            thread.join()
        code = service.end(seconds=PATIENCE)
        for thread in threads:
            thread.join()
        answered = int(service.wait_for("ended")["answered"])
    quarter = max(1, len(memory) // 4)
    found = {
        "seconds": seconds, "outcomes": dict(seen), "answered": answered, "exit_code": code,
        "memory_mib": {"first_quarter": median(memory[:quarter]), "last_quarter": median(memory[-quarter:]),
                       "most": max(memory)},
        "files": {"first_quarter": median(files[:quarter]), "last_quarter": median(files[-quarter:])},
    }  # fmt: skip
    print(json.dumps(found, indent=2))
    unexpected = {
        k for k in seen if k not in ("right", "reloads", *allowed.values(), *(f"ended: {r}" for r in REFUSED))
    }
    assert not unexpected, f"unexpected outcomes: {unexpected}"
    assert answered == seen["right"], f"the service answered {answered}, the clients got {seen['right']}"
    assert code == 0
    return found


def rss(proc: Path) -> int:
    """Resident memory of a process in MiB."""
    line = next(li for li in (proc / "status").read_text().splitlines() if li.startswith("VmRSS:"))
    return int(line.split()[1]) >> 10


def median(values: Sequence[int]) -> int:
    return sorted(values)[len(values) // 2]


def in_threads(work: Sequence[Callable[[], object]]) -> None:
    threads = [threading.Thread(target=item) for item in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[])
    parser.add_argument("--model", default="squeezenet")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    parts = arguments.parts or PARTS
    results: dict[str, Any] = {"model": arguments.model, "clients": arguments.clients}
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.folder or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        bundles = prepare(folder, arguments.model)
        if "overhead" in parts:
            results["overhead_ms"] = overhead(bundles, arguments.seconds)
        if "throughput" in parts:
            results["throughput"] = throughput(bundles, arguments.seconds, arguments.clients)
        if "soak" in parts:
            results["soak"] = soak(bundles, arguments.seconds, arguments.clients)
    target = ROOT / "benchmarks" / "results" / "serve.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
