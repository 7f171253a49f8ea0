"""The form and the tile that each core takes for each shape are those of the table in tests/golden/forms.

A change of a model, a factor or a form that changes a choice shows here as changed rows. If they are what was meant,

    python -m tests.compiler.lower.cpu.forms --bless

writes the table anew (20 seconds); read its diff and commit it with the change. After a rebase over a commit that
changed rows, take either side of a conflict in the files and bless again: they are made from the code alone.
"""

from __future__ import annotations

import dataclasses

import pytest

from tests.compiler.lower.cpu.forms.files import BLESS, FOLDER, changes, complaint, groups, path_of, read
from tests.compiler.lower.cpu.forms.shapes import Shape, conv, every_shape, matmul, some_shapes
from tests.compiler.lower.cpu.forms.table import Core, core_of, table

STEP = 8
"""Each test of the suite's main part takes every so many shapes of a family; all of them take 20 seconds."""


def _differences(shapes: list[Shape]) -> list[str]:
    """The rows of some shapes that differ from the table, of all cores."""
    found = []
    for name, core in groups().items():
        forms, known = table(shapes, core), read(path_of(name))
        found += changes(name, {shape: known[shape] for shape in forms if shape in known}, forms)
    return found


def test_cores_take_the_forms_of_the_table() -> None:
    rows = _differences(some_shapes(STEP))
    assert not rows, complaint(rows)


@pytest.mark.slow
def test_cores_take_the_forms_of_the_table_for_every_shape() -> None:
    rows = _differences(every_shape())
    assert not rows, complaint(rows)


def test_the_table_has_every_shape_for_every_core_and_nothing_else() -> None:
    cores = groups()
    assert sorted(path.stem for path in FOLDER.glob("*.txt")) == sorted(cores), f"make the files with {BLESS}"
    for name, core in cores.items():
        shapes = [shape.name for shape in every_shape() if core.pairs or not shape.bfloat]
        assert list(read(path_of(name))) == shapes, f"{name} has other shapes: {BLESS}"


def test_names_of_shapes_differ() -> None:
    names = [shape.name for shape in every_shape()]
    assert len(names) > 300
    assert len(set(names)) == len(names)


def _known(core: str, *shapes: Shape) -> dict[str, str]:
    known = read(path_of(core))
    return {shape.name: known[shape.name] for shape in shapes}


def test_a_core_with_other_registers_takes_other_forms() -> None:
    shapes = [conv((1, 64, 28, 28), 64, (3, 3), stride=2), matmul((16, 256), (256, 1000))]
    core = core_of("znver4")
    record = dataclasses.replace(core.isa.core, registers=16, spare=0, hoisted=4)
    fewer = Core(dataclasses.replace(core.isa, registers=16, core=record), core.pairs)
    known = _known("znver4", *shapes)
    assert table(shapes, core) == known
    rows = changes("znver4", known, table(shapes, fewer))
    assert len([row for row in rows if row.startswith("+")]) == len(shapes)
    assert BLESS in complaint(rows)
    assert all(shape.name in complaint(rows) for shape in shapes)


def test_a_changed_factor_shows_as_changed_rows() -> None:
    shape = conv((1, 64, 28, 28), 64, (3, 3), stride=2)
    known = _known("znver4", shape)
    core = core_of("znver4")
    record = dataclasses.replace(core.isa.core, corrections={**core.isa.core.corrections, "direct": 0.1})
    changed = Core(dataclasses.replace(core.isa, core=record), core.pairs)
    assert changes("znver4", known, table([shape], changed))


def test_the_table_does_not_depend_on_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = matmul((16, 256), (256, 1000))
    known = _known("x86-64-v3", shape)

    def asked(*_: object) -> None:
        raise AssertionError("the table asks for the CPU of this machine")

    monkeypatch.setattr("heterocc.compiler.lower.cpu.target.host_cpu", asked)
    monkeypatch.setattr("os.cpu_count", asked)
    assert table([shape], core_of("x86-64-v3")) == known
