"""What models keep in ONNX Runtime's arena, in a process of its own, which ONNX Runtime bounds once."""

from __future__ import annotations

import subprocess
import sys

import pytest

from heterocc.runtime.serve.memory import Memory
from heterocc.runtime.serve.telemetry import arena as arena_module
from heterocc.runtime.serve.telemetry.arena import Arena

MEASURED = """
import numpy as np
import onnx.parser

from heterocc.runtime.execute.ort_session import arena_bytes, bound_memory, open_session, session_options
from heterocc.runtime.serve.telemetry.arena import Arena
from heterocc.runtime.serve.memory import Memory, resident

TEXT = '<ir_version: 8, opset_import: ["" : 17]> net (float[1] x, int64[1] n) => (float[] y) {' \\
    ' a = Expand(x, n)\\nb = Exp(a)\\nc = Sin(b)\\nd = Mul(c, b)\\ny = ReduceSum<keepdims = 0>(d) }'
MODEL = onnx.parser.parse_model(TEXT).SerializeToString()
bound_memory(1 << 30)
large, small = (open_session(MODEL, session_options(threads=1)) for _ in range(2))
memory = Memory(10)
arena = Arena(memory)
memory.begin()
arena.begin()
before = resident()

def run(session, count):
    session.run(None, {"x": np.ones(1, np.float32), "n": np.array([count])})
    arena.ran(session)
    return [arena.part(one) / 4e6 for one in (large, small)]

assert max(run(small, 1)) < 1
for _ in range(2):  # from the second run on, ONNX Runtime has all values of these sizes in one piece
    parts, grown = run(large, 10_000_000), (resident() - before) / 4e6
    assert grown * 0.9 < parts[0] < grown * 1.1 and grown >= 28, (parts, grown)
assert run(small, 1000)[1] < 1
arena.left(large)
assert resident() - before < 4e6 * 40  # of the 60 million values before
parts = run(small, 5_000_000)
assert parts[0] == 0 and parts[1] >= 14, parts
print(arena_bytes())
"""


def test_a_model_has_what_its_runs_made_the_arena_grow_by_until_it_is_unloaded() -> None:
    done = subprocess.run([sys.executable, "-c", MEASURED], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50_000_000


def test_parts_shrink_with_the_arena_and_are_never_more_than_the_process_has_grown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state = {"size": 0, "resident": 0, "shrunk": 0}
    memory = Memory(10)
    monkeypatch.setattr(arena_module, "arena_bytes", lambda: state["size"])
    monkeypatch.setattr(arena_module, "resident", lambda: state["resident"])
    monkeypatch.setattr(arena_module, "shrink_arena", lambda: state.update(size=state["shrunk"]))
    monkeypatch.setattr(Memory, "kept", property(lambda self: state["resident"]))
    arena = Arena(memory)

    def run(user: str, size: int, resident: int) -> list[int]:
        state.update(size=size << 20, resident=resident << 20)
        arena.ran(user)
        return [arena.part(one) >> 20 for one in "abc"]

    assert run("a", 64, 40) == [40, 0, 0]  # the rest was not used yet
    assert run("b", 96, 96) == [64, 32, 0]
    assert run("c", 96, 97) == [64, 32, 0]
    state.update(shrunk=24 << 20)
    arena.left("a")
    assert [arena.part(one) >> 20 for one in "abc"] == [0, 8, 0]
    arena.left("a")
    assert run("c", 32, 99) == [0, 8, 8]
