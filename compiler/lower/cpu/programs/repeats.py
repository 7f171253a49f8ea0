"""The steps of Loop and Scan."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx

from heterocc.artifacts.dtypes import Container
from heterocc.compiler.importer.symbols.repeats import Repeat, Rows, repeat_of
from heterocc.compiler.lower.converters import RESULTS
from heterocc.compiler.lower.converters.elementwise.narrow import carried_name
from heterocc.compiler.lower.cpu.programs.functions import INSERT, STACK, TUPLE
from heterocc.compiler.lower.cpu.programs.program_builder import Builder, Dims
from heterocc.compiler.lower.cpu.programs.steps import Again, Copy, Invoke, Step, Store, Text
from heterocc.compiler.operators.table import of_node
from heterocc.compiler.symbolic.contents import array
from heterocc.compiler.symbolic.sizes import number
from heterocc.passes.graph import Value


class Loops:
    """Adds the steps of a Loop or Scan to a program.

    Rows that are collected go to their places in a tensor if the number of trips is known, else each is joined to the
    rows before it. Rows of sizes that the body computes are a sequence until the last trip is over.
    """

    def __init__(self, builder: Builder) -> None:
        self.b = builder

    def add(self, node: onnx.NodeProto, steps: list[Step]) -> None:
        """Add the steps of a node."""
        b = self.b
        repeat = repeat_of(node, b.arrays)
        if repeat is None:
            raise b.refuse(node, "its sequence lengths and batch axis (operator set 8) are not supported")
        name = node.name
        zero = b.constant(f"{name}.zero", np.zeros((), np.int64))
        one = b.constant(f"{name}.one", np.ones((), np.int64))
        limit = self._limit(repeat, name)
        trips = self._known_trips(repeat)
        start: list[tuple[str, str]] = []
        moves: list[tuple[str, str]] = []
        results: list[tuple[str, str]] = []

        def scalar(value: str, dtype: str) -> str:
            """The value without dimensions."""
            if b.values[value].shape == ():
                return value
            none = b.constant(f"{name}.none", np.zeros(0, np.int64))
            return b.add("Reshape", [value, none], f"{value}.scalar", value=(dtype, ()))

        def going(count: str, condition: str, label: str) -> str:
            parts = []
            if limit:
                parts.append(b.add("Less", [count, scalar(limit, "int64")], f"{label}.within", value=("bool", ())))
            if condition:
                parts.append(scalar(condition, "bool"))
            if len(parts) == 2:
                return b.add("And", parts, f"{label}.both", value=("bool", ()))
            return parts[0] if parts else b.constant(f"{label}.always", np.ones((), np.bool_))

        if not limit and not repeat.condition:
            raise b.refuse(node, "nothing ends it")
        # Of a loop over rows alone, the trips that are left are the only count: its end is 0.
        down = bool(repeat.read) and trips is not None and all(self._rows(rows) == trips for rows in repeat.read)
        count, go = f"{name}.count", f"{name}.left" if down else f"{name}.going"
        b.values[count], b.values[go] = Value(count, "int64", ()), Value(go, "int64" if down else "bool", ())
        if down:
            start.append((go, b.held(limit)))
        else:
            start += [(go, b.held(going(zero, repeat.first, f"{name}.first"))), (count, b.held(zero))]
        for state in repeat.states:
            start.append((state.given, b.held(state.initial)))
            if state.result:
                results.append((state.result, state.given))
        stored: list[tuple[Rows, str]] = []
        joined: list[tuple[Rows, str]] = []
        listed: list[Rows] = []
        for rows in repeat.collected:
            if rows.outer:
                shape = b.values[rows.inner].shape if rows.inner in b.values else None
                if shape is None or None in shape:
                    raise b.refuse(node, f"the shape of '{rows.inner}' is not known")
                if not all(map(self._is_known, shape)):
                    listed.append(rows)
                    continue
                dtype = b.values[rows.inner].dtype
                if trips is not None:
                    whole = self._zeros(f"{rows.outer}.rows", dtype, (trips, *shape))
                    stored.append((rows, whole))
                else:
                    joined.append((rows, self._none(rows, dtype, shape, start, steps)))
        front = b.held(zero) if any(rows.reverse for rows in listed) else ""
        b.close(steps)
        for rows in listed:
            kind = Container(b.values[rows.inner].dtype, sequence=True, optional=False).text
            for part in ("none", "list", "more"):
                b.values[f"{rows.outer}.{part}"] = Value(f"{rows.outer}.{part}", kind, None)
            steps.append(Invoke(TUPLE, (), f"{rows.outer}.none"))
            start.append((f"{rows.outer}.list", f"{rows.outer}.none"))
        body: list[Step] = []
        b.enter(repeat.body)
        if repeat.going:
            b.constant(repeat.going, np.ones(_dims(b, repeat.going), np.bool_))
        if not repeat.read:
            self._index(repeat, count, name)
        fewer = b.add("Sub", [go, one], f"{name}.fewer", value=("int64", ())) if down else ""

        def place_of(rows: Rows) -> str:
            """The place of a trip's row, counted from the end if trips are counted down."""
            if down:
                return fewer if rows.reverse else go
            if not rows.reverse:
                return count
            last = b.add("Sub", [limit, one], f"{name}.last", value=("int64", ()))
            return b.add("Sub", [last, count], f"{name}.back", value=("int64", ()))

        for rows in repeat.read:
            taken = {"axis": rows.axis, **({"from_end": int(not rows.reverse)} if down else {})}
            shaped, domain = (b.values[rows.inner].dtype, b.values[rows.inner].shape or ()), RESULTS if down else ""
            b.add("Gather", [rows.outer, place_of(rows)], rows.inner, value=shaped, domain=domain, chosen=taken)
        b.sequence(list(repeat.body.node), body)
        if down:
            moves.append((go, b.held(fewer)))
        else:
            after = b.add("Add", [count, one], f"{name}.after", value=("int64", ()))
            moves += [(count, after), (go, b.held(going(after, repeat.condition, f"{name}.next")))]
        written = {o: n for n in repeat.body.node for o in n.output}
        moves += [(state.given, b.held(_copied(written, state.returned))) for state in repeat.states]
        stores = []
        for rows, whole in stored:
            row = b.held(_copied(written, rows.inner))
            stores.append(Store(row, place_of(rows), whole, from_end=down and not rows.reverse))
        for rows, grown in joined:
            moves.append((grown, self._joined(rows, grown, name)))
        kept = [(rows, b.held(rows.inner)) for rows in listed]
        b.close(body)
        for rows, row in kept:
            before, after = f"{rows.outer}.list", f"{rows.outer}.more"
            body.append(Invoke(INSERT, (before, row, front if rows.reverse else None, Text(name)), after))
            moves.append((before, after))
        for rows, whole in (*stored, *joined):
            results.append((f"{rows.outer}.all", whole))
            b.values[f"{rows.outer}.all"] = Value(f"{rows.outer}.all", b.values[whole].dtype, b.values[whole].shape)
        steps += [Copy(start), Again(go, [*body, *stores, Copy(moves)]), Copy(results)]
        self._finish(results, [*stored, *joined], node)
        for rows in listed:
            self._stack(rows, node, steps)

    def _rows(self, rows: Rows) -> int | str | None:
        """The number of rows that a value has, each for one trip."""
        return (self.b.values[rows.outer].shape or ())[rows.axis]

    def _is_known(self, dim: int | str | None) -> bool:
        """Whether a dimension follows from the model's inputs, so that tensors can have it before the first trip."""
        symbols = self.b.symbols
        return isinstance(dim, int) or (isinstance(dim, str) and symbols.sizes[dim].names <= set(symbols.names))

    def _zeros(self, name: str, dtype: str, shape: Dims) -> str:
        """A tensor of zeros. Its sizes are those of the result; the input has only the known ones."""
        b = self.b
        dims = b.constant(f"{name}.dims", np.array([d if isinstance(d, int) else 0 for d in shape], np.int64))
        fill = onnx.numpy_helper.from_array(np.zeros(1, dtype))
        return b.add("ConstantOfShape", [dims], name, value=(dtype, shape), domain=RESULTS, chosen={"value": fill})

    def _none(self, rows: Rows, dtype: str, shape: Dims, start: list[tuple[str, str]], steps: list[Step]) -> str:
        """The collected rows before the first trip; a tensor of no elements has no code unless its size is a name."""
        b = self.b
        grown = f"{rows.outer}.rows"
        size, *_ = b.symbols.name_unknown(grown, (None,), rows.outer) or ("",)
        b.values[grown] = Value(grown, dtype, (size, *shape))
        zero = b.held(b.constant(f"{grown}.none", np.zeros(1, np.int64)))
        b.measure(zero, (str(size),), steps)
        start.append((grown, self._zeros(f"{grown}.empty", dtype, (size, *shape))))
        return grown

    def _stack(self, rows: Rows, node: onnx.NodeProto, steps: list[Step]) -> None:
        """Join a list of rows, of which only the run knows the sizes; without rows these are 0, as in ONNX Runtime."""
        value = self.b.values[rows.outer]
        shape = value.shape or ()
        axis, text = rows.axis % len(shape), f"{node.op_type} '{node.name}'"
        empty = tuple(d if isinstance(d, int) and place != axis else 0 for place, d in enumerate(shape))
        given = (f"{rows.outer}.list", axis, empty, Text(carried_name(value.dtype)), Text(text))
        steps.append(Invoke(STACK, given, rows.outer))
        self.b.check(rows.outer, text, steps)

    def _index(self, repeat: Repeat, count: str, name: str) -> None:
        """The body's own number of the trip: the counter, or a vector of one element."""
        shape = _dims(self.b, repeat.index)
        dims = self.b.constant(f"{name}.index_shape", np.array(shape, np.int64))
        self.b.add("Reshape", [count, dims], repeat.index, value=("int64", shape))

    def _limit(self, repeat: Repeat, name: str) -> str:
        """The value with the largest number of trips; empty if there is none."""
        if not repeat.read:
            return repeat.limit
        b, rows = self.b, repeat.read[0]
        shape = b.symbols.shape_of(b.values[rows.outer]) or ()
        size = shape[rows.axis % len(shape)]
        if size is None:
            return ""
        if size.number is not None:
            return b.constant(f"{name}.trips", np.array(size.number, np.int64))
        b.symbols.contents[f"{name}.trips"] = array([size], ())
        return b.add("Size", [rows.outer], f"{name}.trips", value=("int64", ()))

    def _known_trips(self, repeat: Repeat) -> int | str | None:
        """The number of trips if it follows from the model's inputs."""
        b = self.b
        if repeat.condition:
            return None
        if repeat.read:
            size = (b.values[repeat.read[0].outer].shape or ())[repeat.read[0].axis]
            return size if self._is_known(size) else None
        limit, first = b.arrays.get(repeat.limit), b.arrays.get(repeat.first)
        if limit is None or (repeat.first and (first is None or not bool(first.reshape(-1)[0]))):
            return None
        return max(0, int(limit.reshape(-1)[0]))

    def _joined(self, rows: Rows, grown: str, name: str) -> str:
        """The collected rows with one more."""
        b = self.b
        dtype, shape = b.values[rows.inner].dtype, b.values[rows.inner].shape or ()
        first = b.constant(f"{name}.first_axis", np.zeros(1, np.int64))
        row = b.add("Unsqueeze", [rows.inner, first], f"{rows.outer}.row", value=(dtype, (1, *shape)))
        parts = [row, grown] if rows.reverse else [grown, row]
        size = b.symbols.sizes[f"{grown}.0"]
        dims = b.symbols.dims((size + number(1),)) or ()
        return b.add("Concat", parts, f"{grown}.more", value=(dtype, (*dims, *shape)), chosen={"axis": 0})

    def _finish(self, results: list[tuple[str, str]], kept: list[tuple[Rows, str]], node: onnx.NodeProto) -> None:
        """Put the collected rows along their axis."""
        b = self.b
        places = {result: place for place, (result, _) in reversed([*enumerate(results)])}
        for rows, _ in kept:
            whole = f"{rows.outer}.all"
            shape = b.values[whole].shape or ()
            axis = rows.axis % len(shape)
            wanted = b.values[rows.outer].shape or ()
            if len(wanted) != len(shape):
                raise b.refuse(node, f"'{rows.outer}' has no rank of its own")
            if axis == 0:
                place = places[whole]
                results[place] = (rows.outer, results[place][1])
                continue
            order = [*range(1, axis + 1), 0, *range(axis + 1, len(shape))]
            b.add("Transpose", [whole], rows.outer, like=rows.outer, chosen={"perm": order})


def _copied(written: Mapping[str, onnx.NodeProto], name: str) -> str:
    """The value of a body's node of which a value is a copy: a state that is also collected is computed once.

    `written` are the body's nodes by their results.
    """
    while (made := written.get(name)) is not None and of_node(made).copies:
        if made.input[0] not in written:
            break
        name = made.input[0]
    return name


def _dims(b: Builder, name: str) -> tuple[int, ...]:
    return tuple(d for d in b.values[name].shape or () if isinstance(d, int))
