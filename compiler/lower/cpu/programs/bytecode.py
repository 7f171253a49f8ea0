"""Instructions of TVM's virtual machine that join the straight code of a program.

The machine's instructions are calls, jumps and returns. Relax has no loops, so these are written directly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tvm import runtime
from tvm.relax.exec_builder import ExecBuilder

from heterocc.compiler.lower.cpu.programs.steps import (
    Again,
    Choose,
    Code,
    Copy,
    Invoke,
    Measure,
    Program,
    Step,
    Store,
    Text,
)


@dataclass(frozen=True, slots=True)
class _Constant:
    """A number, a text, or the sizes of a shape."""

    value: int | str | tuple[int, ...]


@dataclass(slots=True)
class _Label:
    """The number of the instruction that follows it, known when all are."""

    place: int = -1


_Instruction = Callable[[ExecBuilder, int], None]
"""Emits itself; its second argument is its number, from which jumps count."""


@dataclass(slots=True)
class Bytecode:
    """The entry of a program; `functions` are the names of its straight code, `stores` those of its stores.

    Every value and every group of sizes has a register of its own. A register that is set again frees its tensor.
    """

    program: Program
    functions: dict[int, str]
    stores: dict[int, str]
    registers: dict[str | Measure, int] = field(default_factory=dict)
    lines: list[_Instruction | _Label] = field(default_factory=list)
    count: int = 0

    def write(self, builder: ExecBuilder, name: str) -> None:
        """Write the entry: `main(*inputs, *outputs, params)`, or `main(*inputs, params)`, which returns a tuple."""
        program = self.program
        outputs = [f"{o}.target" for o in program.outputs] if program.last is not None else []
        for value in (*program.inputs, *outputs, "params"):
            self._register(value)
        inputs = self.count
        self._steps(program.steps)
        result = self._new()
        if program.last is None:
            self._call("vm.builtin.make_tuple", [self._register(o) for o in program.outputs], result)
        else:
            self._run(program.last, [self._register(o) for o in outputs], result)
        self.lines.append(lambda builder, _: builder.emit_ret(builder.r(result)))
        instructions: list[_Instruction] = []
        for line in self.lines:
            if isinstance(line, _Label):
                line.place = len(instructions)
            else:
                instructions.append(line)
        with builder.function(name, inputs, [*program.inputs, *outputs, "params"]):
            for place, instruction in enumerate(instructions):
                instruction(builder, place)

    def _new(self) -> int:
        self.count += 1
        return self.count - 1

    def _register(self, value: str | Measure) -> int:
        if value not in self.registers:
            self.registers[value] = self._new()
        return self.registers[value]

    def _call(self, function: str, arguments: Sequence[int | _Constant], target: int | None) -> None:
        def call(builder: ExecBuilder, _: int) -> None:
            given = [builder.r(a) if isinstance(a, int) else _written(builder, a.value) for a in arguments]
            builder.emit_call(function, given, target)

        self.lines.append(call)

    def _jump(self, label: _Label) -> None:
        self.lines.append(lambda builder, place: builder.emit_goto(label.place - place))

    def _copy(self, source: int, target: int) -> None:
        """Let a register refer to what another one does."""
        self._call("vm.builtin.copy", [source], target)

    def _steps(self, steps: Sequence[Step]) -> None:
        for step in steps:
            match step:
                case Code():
                    self._straight(step)
                case Measure():
                    self._call("vm.builtin.tensor_to_shape", [self._register(step.value)], self._register(step))
                case Invoke():
                    self._invoke(step)
                case Copy():
                    self._copies(step)
                case Choose():
                    self._choose(step)
                case Store():
                    places = [self._register(v) for v in (step.row, step.index, step.target)]
                    self._call(self.stores[id(step)], places, None)
                case Again():
                    self._again(step)

    def _run(self, code: Code, more: Sequence[int], target: int) -> None:
        given = [*(self._register(i) for i in code.inputs), *(self._register(s) for s in code.sizes), *more]
        self._call(self.functions[id(code)], [*given, self.registers["params"]], target)

    def _straight(self, code: Code) -> None:
        whole = self._new()
        self._run(code, [], whole)
        for index, output in enumerate(code.outputs):
            self._call("vm.builtin.tuple_getitem", [whole, _Constant(index)], self._register(output))
        self._call("vm.builtin.null_value", [], whole)

    def _test(self, value: str, otherwise: _Label) -> None:
        number = self._new()
        self._call("vm.builtin.read_if_cond", [self._register(value)], number)
        self.lines.append(lambda builder, place: builder.emit_if(builder.r(number), otherwise.place - place))

    def _invoke(self, step: Invoke) -> None:
        given: list[int | _Constant] = []
        for argument in step.arguments:
            if isinstance(argument, str):
                given.append(self._register(argument))
            elif argument is None:
                nothing = self._new()
                self._call("vm.builtin.null_value", [], nothing)
                given.append(nothing)
            else:
                given.append(_Constant(argument.text if isinstance(argument, Text) else argument))
        self._call(step.function, given, None if step.result is None else self._register(step.result))

    def _choose(self, step: Choose) -> None:
        other, end = _Label(), _Label()
        self._test(step.condition, other)
        self._steps(step.then)
        self._jump(end)
        self.lines.append(other)
        self._steps(step.otherwise)
        self.lines.append(end)

    def _again(self, step: Again) -> None:
        top, end = _Label(), _Label()
        self.lines.append(top)
        self._test(step.going, end)
        self._steps(step.body)
        self._jump(top)
        self.lines.append(end)

    def _copies(self, step: Copy) -> None:
        results = {result for result, _ in step.pairs}
        moved = [(result, value, self._new()) for result, value in step.pairs if value in results]
        for _, value, between in moved:  # a state that another one becomes
            self._copy(self._register(value), between)
        for result, value in step.pairs:
            if value not in results:
                self._copy(self._register(value), self._register(result))
        for result, _, between in moved:
            self._copy(between, self._register(result))
            self._call("vm.builtin.null_value", [], between)


def _written(builder: ExecBuilder, value: int | str | tuple[int, ...]) -> int:
    """A constant as an argument of an instruction."""
    if isinstance(value, int):
        return int(builder.imm(value))
    return int(builder.convert_constant(runtime.ShapeTuple(value) if isinstance(value, tuple) else value))
