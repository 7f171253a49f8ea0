"""What operators need of sizes."""

from __future__ import annotations

import pytest

from heterocc.compiler.operators import table
from heterocc.compiler.operators.applied import requirements_of
from heterocc.compiler.operators.record import MICROSOFT, ML, Operator
from heterocc.compiler.symbolic.given import Given
from heterocc.compiler.symbolic.requirement import Relation, Requirement
from heterocc.compiler.symbolic.sizes import Size, larger, named, number
from tests.compiler.onnx_build import node

DOMAINS = ("", MICROSOFT, ML)


def converted() -> list[tuple[str, str]]:
    """Every operator that code is generated for, by its domain."""
    from tvm.relax.frontend.onnx import onnx_frontend

    from heterocc.compiler.lower import converters

    own = [key for key in converters.registry._CONVERTERS if key[0] in DOMAINS]
    return sorted({*own, *(("", name) for name in onnx_frontend._get_convert_map())})


def test_each_operator_that_is_converted_states_what_it_needs() -> None:
    # TVM has names of ONNX Runtime's operators without their domain.
    records = {key: (table.named(key[1], key[0]), table.named(key[1], MICROSOFT)) for key in converted()}
    assert [key for key, found in records.items() if all(record.needs is None for record in found)] == []


def test_an_operator_has_one_record() -> None:
    with pytest.raises(ValueError, match="operator 'Slice' of domain '' already has a record"):
        table.add(Operator("Slice"))


n, m = named("n"), named("m")


@pytest.mark.parametrize(
    ("left", "relation", "right", "always", "never"),
    [
        (n, "equal", n, True, False),
        (n, "equal", m, False, False),
        (n + number(1), "equal", n, False, True),
        (n + number(3), "at_least", number(3), True, False),
        (n, "at_least", number(1), False, False),
        (number(2), "at_least", n + number(3), False, True),
        (n * number(4), "multiple", number(2), True, False),
        (n, "multiple", number(2), False, False),
        (number(5), "multiple", number(2), False, True),
        (n, "broadcast", number(1), True, False),
        (n, "broadcast", number(3), False, False),
        (number(2), "broadcast", number(3), False, True),
        (larger(n, number(2)), "at_least", number(2), True, False),
    ],
)
def test_what_holds_for_all_sizes_or_none_is_known(
    left: Size, relation: Relation, right: Size, always: bool, never: bool
) -> None:
    needed = Requirement(left, relation, right, "a size")
    assert (needed.always, needed.never) == (always, never)


def test_a_requirement_names_the_input_as_the_operator_does() -> None:
    shapes = [(named("a"), n), (named("b"), m)]
    given = Given(node("GatherElements", "x i", "y", axis=1), 21, shapes, [None, None])
    needed, *_ = requirements_of(given, None)
    assert (needed.left, needed.right, needed.what) == (named("a"), named("b"), "dimension 0 of 'data'")
