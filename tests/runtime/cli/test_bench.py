from __future__ import annotations

import csv
import json
import math
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from heterocc.runtime.cli.bench import LEAST_SECONDS, interleave, wait_until_idle
from heterocc.runtime.cli.main import run_command
from heterocc.runtime.cli.timing import FEW, is_known, median_uncertainty
from tests.runtime import standin
from tests.runtime.standin import Model


class FakeProcess:
    """A process that uses one core until `busy` seconds are over, and a clock that only sleeping moves."""

    def __init__(self, busy: float) -> None:
        self.busy, self.now = busy, 0.0

    def used(self) -> float:
        return min(self.now, self.busy)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def wait(self) -> float:
        wait_until_idle(self.used, lambda: self.now, self.sleep)
        return self.now


def test_a_turn_starts_when_the_threads_of_the_last_one_have_stopped() -> None:
    assert 0.05 < FakeProcess(busy=0.05).wait() < 0.07


def test_an_idle_process_is_waited_for_once() -> None:
    assert FakeProcess(busy=0.0).wait() < 0.01


def test_threads_that_never_stop_are_not_waited_for_long() -> None:
    assert 0.2 < FakeProcess(busy=1e9).wait() < 0.3


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that returns its input, of any length `n`."""
    path = tmp_path_factory.mktemp("bench") / "m.hcb"
    standin.write_bundle(path, Model({"x": ("float32", ("n",))}, inputs=("x",), outputs=("x",), parts=()))
    return path


def test_sizes_and_threads_are_timed_in_every_combination(
    bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--batch", "3,5", "--threads", "1,2", "-n", "2", "--times", str(tmp_path / "times.csv")]
    assert run_command(["bench", str(bundle), *options, "--json"]) == 0
    points = json.loads(capsys.readouterr().out)["sweep"]
    assert [(p["threads"], p["sizes"]) for p in points] == [
        (1, {"n": 3}), (1, {"n": 5}), (2, {"n": 3}), (2, {"n": 5}),
    ]  # fmt: skip
    assert all(p["start"]["load_ms"] > 0 and p["start"]["peak_memory_bytes"] > 1e6 for p in points)
    with (tmp_path / "times.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 8 and rows[2].items() >= {"n": "5", "threads": "1", "name": "heterocc", "run": "0"}.items()
    assert run_command(["bench", str(bundle), "--dim", "n=3,5", "-t", "1", "-n", "2", "--percentiles", "99.9"]) == 0
    head, titles, *lines = capsys.readouterr().out.splitlines()
    assert head == "1 request at a time on CPU" and titles.split()[:3] == ["n", "threads", "runs"]
    assert "p99.9 ms" in titles and [line.split()[0] for line in lines] == ["3", "5"]


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--threads", "1,x"), "HC120", "'1,x' is not a list of whole numbers"),
        (("--batch", "-1"), "HC120", "'-1' is not a list of whole numbers"),
        (("--dim", "n=1,b"), "HC106", "dimension 'n' cannot be 'b'"),
        (("--dim", "n=" + ",".join(map(str, range(2000)))), "HC120", "the sweep has 2000 points"),
        (("--dim", "m=1"), "HC106", "no dynamic dimension 'm'"),
        (("--percentiles", "101"), "HC120", "'101' is not a list of percentiles"),
        (("--times", "absent/t.csv"), "HC111", "there is no folder"),
    ],
)
def test_sweeps_that_cannot_be_made_are_refused(
    bundle: Path, options: tuple[str, ...], code: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(["bench", str(bundle), *options, "--json"]) != 0
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["code"] == code and words in error["message"]


def test_a_measurement_ends_when_its_median_is_known() -> None:
    began = time.perf_counter()
    (timing,) = interleave([("steady", lambda: time.sleep(0.001))], seconds=60.0, iterations=None, stable=100.0)
    assert LEAST_SECONDS <= time.perf_counter() - began < 30
    assert len(timing.latencies) >= FEW
    assert timing.uncertainty is not None and timing.uncertainty <= 100.0


def test_a_measurement_of_several_requests_ends_when_the_median_of_each_caller_is_known(
    bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.perf_counter()
    options = ["--dim", "n=3", "--requests", "2", "--stable", "100", "--time", "60", "--json"]
    assert run_command(["bench", str(bundle), *options]) == 0
    assert time.perf_counter() - began < 30
    (result,) = json.loads(capsys.readouterr().out)["results"]
    assert result["runs"] >= 2 * FEW


def test_a_median_is_not_known_while_runs_become_slower_or_faster() -> None:
    """Runs of two threads took 9 or 20 microseconds for some time each, and the first ones alone agreed to 1 %."""
    steady, slow = [9.0] * 50, [20.0] * 25
    assert is_known(steady, 1.0) and not is_known(steady[: FEW - 1], 1.0)
    assert median_uncertainty(steady + slow) == 0.0
    assert not is_known(steady + slow, 1.0) and not is_known(slow + steady, 1.0)
    assert is_known((steady + slow) * 20, 1.0)


def test_the_interval_of_the_median_covers_the_true_one_in_95_of_100_cases() -> None:
    rng = np.random.default_rng(0)
    true, inside = math.log(2), 0
    for _ in range(400):
        found = rng.exponential(size=101)
        uncertainty = median_uncertainty(found.tolist())
        assert uncertainty is not None
        # The interval's middle is not the median, so that its half width may miss it a little more often.
        inside += abs(float(np.median(found)) - true) <= uncertainty / 100 * float(np.median(found))
    assert 0.90 < inside / 400 < 0.99
    assert median_uncertainty([1.0] * (FEW - 1)) is None and median_uncertainty([1.0] * FEW) == 0.0


def test_an_interrupt_ends_the_measurement_and_prints_it(bundle: Path) -> None:
    code = "from heterocc.runtime.cli.main import main; main()"
    arguments = ["bench", str(bundle), "--dim", "n=3,5", "--time", "100", "--json"]
    command = subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE)
    while "libheterocc_cpu" not in Path(f"/proc/{command.pid}/maps").read_text():
        time.sleep(0.05)
    command.send_signal(signal.SIGINT)
    out, _ = command.communicate(timeout=60)
    assert command.returncode == 0
    (point,) = json.loads(out)["sweep"]
    assert point["interrupted"] is True and point["sizes"] == {"n": 3} and point["results"][0]["runs"] > 0
