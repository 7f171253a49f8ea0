"""TVM's kernels take the sizes that no dimension of a tensor gives in the order in which their tensors use them."""

from __future__ import annotations

from tvm import relax, te, tirx
from tvm.relax.utils import gen_call_tir_inputs

import heterocc.compiler.lower.pipeline  # noqa: F401  (changes TVM's order)


def test_sizes_are_in_the_order_of_their_use() -> None:
    """In the order of places in memory, eight sizes are in this one once in 40,000 times."""
    sizes = {name: tirx.Var(name, "int64") for name in "cadbhegf"}
    x = relax.Var("x", relax.TensorType([size * 2 for size in sizes.values()], "float32"))

    def compute(data: te.Tensor) -> te.Tensor:
        return te.compute(data.shape, lambda *place: data(*place) + 1)

    kernel, arguments, _ = gen_call_tir_inputs(compute, x)
    assert [param.name for param in kernel.params[1:-1]] == list(sizes)
    assert [argument.name for argument in arguments[1:]] == list(sizes)
