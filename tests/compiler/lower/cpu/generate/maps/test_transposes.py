"""Maps that transpose: nothing outside the arrays is read. Arrays lie between pages without access."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import te, tirx

from heterocc.compiler.lower.cpu.alignment import at_any_address
from heterocc.compiler.lower.cpu.generate.isa import isa_of
from heterocc.compiler.lower.cpu.generate.maps.maps import generate_map
from heterocc.compiler.lower.cpu.generate.places import index
from heterocc.compiler.lower.cpu.maths.pipeline import PIPELINE
from heterocc.runtime.execute.memory import host_tensor
from tests.compiler.lower.cpu.generate.generated import runnable, target_of
from tests.guard_pages import guarded


def padded_channels_last(data: te.Tensor, before: tuple[int, int], after: tuple[int, int]) -> te.Tensor:
    """[channels, rows, columns] as [rows, columns, channels], with sevens around it."""
    channels, *sizes = (int(n) for n in data.shape)

    def element(y: tirx.Var, x: tirx.Var, c: tirx.Var) -> tirx.Expr:
        places = [place - b for place, b in zip((y, x), before, strict=True)]
        inside = tirx.all(*(p >= 0 for p in places), *(p < n for p, n in zip(places, sizes, strict=True)))
        return tirx.if_then_else(inside, data[c, places[0], places[1]], tirx.const(7, data.dtype))

    shape = (*(b + n + a for b, n, a in zip(before, sizes, after, strict=True)), channels)
    return te.compute(tuple(map(index, shape)), element, name="padded")


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize("dtype", ["float32", "uint8"])
@pytest.mark.parametrize(("before", "after"), [((1, 1), (1, 1)), ((0, 3), (2, 0)), ((2, 0), (0, 1))])
def test_padding_is_not_read_from_outside_the_array(
    before: tuple[int, int], after: tuple[int, int], dtype: str, cpu: str
) -> None:
    # Whole pages: an access before the array stops the process, too.
    x = np.random.default_rng(0).integers(0, 255, (32, 16, 32)).astype(dtype)
    data = te.placeholder(tuple(map(index, x.shape)), dtype, "x")
    found = run(cpu, data, padded_channels_last(data, before, after), x)
    around = [(0, 0), *zip(before, after, strict=True)]
    np.testing.assert_array_equal(found, np.pad(x, around, constant_values=7).transpose(1, 2, 0))


@pytest.mark.parametrize("cpu", runnable())
@pytest.mark.parametrize("shape", [(1024, 2), (1024, 3), (1024, 4), (512, 18), (1024, 17), (256, 36), (128, 40)])
def test_channels_are_put_first(shape: tuple[int, int], cpu: str) -> None:
    """Two to four are shuffled, few that blocks leave are read one by one."""
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    data = te.placeholder(tuple(map(index, shape)), "float32", "x")
    turned = te.compute(tuple(map(index, shape[::-1])), lambda c, p: data[p, c], name="turned")
    np.testing.assert_array_equal(run(cpu, data, turned, x), x.T)


def run(cpu: str, data: te.Tensor, result: te.Tensor, x: np.ndarray) -> np.ndarray:
    """What the kernel of a map computes from `x`, which lies between pages without access, as its result does."""
    target = target_of(cpu)
    function = te.create_prim_func([data, result])
    made = generate_map(function.with_attr("global_symbol", "f"), isa_of(target))
    assert made is not None
    with target:
        module = tvm.IRModule({"f": at_any_address(made[0]).with_attr("global_symbol", "f")})
        built = tvm.tirx.build(module, target, pipeline=PIPELINE)
    given, found = guarded(x), guarded(np.zeros([int(n) for n in result.shape], x.dtype))
    built["f"](host_tensor(given), host_tensor(found))
    return found
