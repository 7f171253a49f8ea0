"""Large tiles are stored in loops on software devices: their code, and results where a turn or a tile is not full."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from tvm import te, tirx

from heterocc.compiler.lower.gpu.contraction.contraction import schedule_contraction
from heterocc.compiler.lower.gpu.contraction.rotation import STORES
from heterocc.compiler.lower.gpu.limits import Limits
from heterocc.compiler.lower.gpu.nest import ROLLED
from tests.compiler.lower.gpu.test_shared_tiles import each_api
from tests.compiler.lower.gpu_run import Graph, Runner, conv_of, node

RNG = np.random.default_rng(7)
SIDE_BY_SIDE = Limits(256, False, frozenset(["float32"]), tile=(16, 256), software=True)


def product(rows: int, columns: int, limits: Limits) -> str:
    """The text of a scheduled product."""
    n, m, k = (tirx.IntImm("int64", v) for v in (rows, columns, 32))
    x, w = te.placeholder((n, k), "float32", "x"), te.placeholder((k, m), "float32", "w")
    r = te.reduce_axis((0, k), "k")
    y = te.compute((n, m), lambda i, j: te.sum(x[i, r] * w[r, j], axis=r), "y")
    packed = schedule_contraction(te.create_prim_func([x, w, y]), limits, {1})
    assert packed is not None
    return str(packed.function)


def extents(text: str, block: str) -> list[int]:
    """The extents of the loops around a block, from the outermost one."""
    lines = text[: text.index(f'T.sblock("{block}")')].splitlines()
    depth, found = len(lines[-1]) - len(lines[-1].lstrip()), []
    for line in reversed(lines):
        indent = len(line) - len(line.lstrip())
        loop = re.match(r" *for \w+ in [\w.]+\(T\.int64\((\d+)\)", line)
        if indent < depth and loop:
            depth = indent
            found.append(int(loop[1]))
    return found[::-1]


def test_a_turn_stores_few_sums_and_its_loop_stays_one() -> None:
    text = product(64, 64, SIDE_BY_SIDE)
    assert ROLLED in text
    *_, turns, rows, place = extents(text, "y_local")
    assert rows * place <= STORES
    assert turns * rows * place == 256
    assert extents(text, "rotation")[-2] == (turns - 1) * rows


@pytest.mark.parametrize(
    "limits", [Limits(256, False, frozenset(["float32"])), Limits(256, True, frozenset(["float32"]))]
)
def test_other_devices_and_small_tiles_have_no_rotation(limits: Limits) -> None:
    assert ROLLED not in product(64, 64, limits)
    assert ROLLED not in product(4, 4, SIDE_BY_SIDE)


CASES: dict[str, Graph] = {
    "13 pixels a row": conv_of(RNG, (1, 40, 13, 13), (48, 40, 1, 1), "Relu"),
    "1000 outputs": conv_of(RNG, (1, 32, 7, 7), (1000, 32, 1, 1)),
    "7 taps": conv_of(RNG, (1, 3, 31, 29), (20, 3, 7, 7), "Relu", strides=[2, 2], pads=[3, 3, 3, 3]),
    "an activation that reads sums twice": Graph(
        {"x": RNG.standard_normal((1, 24, 15, 15), dtype=np.float32)},
        [node("Conv", "x", "w", outputs=["c"]), node("Sigmoid", "c", outputs=["s"]), node("Mul", "c", "s")],
        {"w": RNG.standard_normal((40, 24, 1, 1), dtype=np.float32) / 8},
    ),
    "a product by rows": Graph(
        {"x": RNG.standard_normal((3, 37, 70), dtype=np.float32)},
        [node("MatMul", "x", "w")],
        {"w": RNG.standard_normal((70, 130), dtype=np.float32) / 8},
    ),
    "filtered, with borders": conv_of(RNG, (2, 64, 9, 11), (66, 64, 3, 3), "Relu", pads=[1, 1, 1, 1]),
    "filtered, without padding": conv_of(RNG, (1, 64, 14, 14), (64, 64, 3, 3)),
}


@each_api
@pytest.mark.parametrize("graph", CASES.values(), ids=CASES)
def test_stores_in_turns_match_onnx_runtime(api: Runner, graph: Graph, tmp_path: Path) -> None:
    api.check(graph, tmp_path, tolerance=3e-5)


def controls(text: str) -> list[str]:
    return re.findall(r"OpLoopMerge \d+ \d+ (\d)", text)


def test_vulkan_code_asks_drivers_to_leave_these_loops(tmp_path: Path) -> None:
    from heterocc.compiler.lower.vulkan.lowering import VulkanLowering
    from heterocc.runtime.native.vulkan_api import load_vulkan

    runner = Runner("vulkan", VulkanLowering(), load_vulkan)
    if not runner.first_device().software:
        pytest.skip("the first Vulkan device is a GPU, for which tiles are small")
    _, lowered = runner.lower(CASES["13 pixels a row"], tmp_path)
    text = "".join(text for name, text in lowered.dumps if name.endswith(".spvasm"))
    assert "2" in controls(text)
