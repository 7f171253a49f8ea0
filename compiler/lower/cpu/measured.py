"""Close choices of the models of kernels' time, decided by timing on the compiling machine.

Models choose tiles and forms of kernels. Where they find others nearly as fast, a few of these are timed, those with
the largest gain to expect, once all kernels are compiled and nothing else runs. Another choice needs a gain above the
noise, on one thread and on all. Results are kept on disk, so that further compiles time nothing and give the same code.
The models' choices stay where timing fails, for kernels whose sizes are known only at run time, and for those of
partitions that are programs or loops over a batch. Timed code is compared with ONNX Runtime later, as all code is.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm_ffi

from heterocc.artifacts.foreign import pass_foreign
from heterocc.compiler.devices.device import TargetDevice
from heterocc.compiler.devices.host import host_cpu
from heterocc.compiler.files.records import toolchain_digest
from heterocc.compiler.files.scratch import scratch_folder
from heterocc.compiler.lower.backend import Candidate, Run, Tuned, Tuning
from heterocc.compiler.lower.codegen.kernel_objects import KernelObjects
from heterocc.compiler.lower.codegen.link import link
from heterocc.compiler.lower.kernels.choices import Trail
from heterocc.compiler.lower.tuning.tensors import Tensor, random_values, tensors_of
from heterocc.compiler.lower.tuning.timing import MARGIN
from heterocc.compiler.lower.written import SOURCE
from heterocc.passes.graph import DTYPE_BYTES
from heterocc.passes.show.printer import count
from heterocc.runtime.execute.executable import load_library
from heterocc.runtime.execute.faults import first_line
from heterocc.runtime.execute.memory import aligned_bytes, host_tensor
from heterocc.runtime.execute.tvm_api import available_cores
from heterocc.runtime.native.cpu_api import launch_on
from heterocc.runtime.plan.schedule import HOST

if TYPE_CHECKING:
    from tvm import tirx


WORTH = 1 << 20
"""The least work in one run, as counted by `work_of`, of a kernel that is timed: a few microseconds."""

MOST_WORK = 1 << 34
MOST_BYTES = 1 << 30
"""The most work in one run of a kernel that is timed, some seconds, and the most bytes of its arguments and results."""

LIKELY = {"rows": 0.2, "tile of a plane": 0.2, "blocks": 0.13, "form": 0.2}
RARELY = 0.05
"""The share of close choices, by name, in which another option was faster, in 12 networks on Zen 5; of all others.
Forms were faster than modelled, relative to each other, on an Intel CPU for four layers of four, by 5 to 35 %."""

NEXT = 0.5
"""The likelihood of each further option, relative to that of the one before."""

LEAST_SHARE = 0.01
"""The least gain to expect of a form that is timed, in the work of the partition: its kernel's share times LIKELY."""

MOST_TIMED = 6
"""The most other forms that are timed in a partition, each as long to compile as one more kernel."""

Form = tuple["tirx.PrimFunc", tuple[Any, ...]]
"""A kernel's code and the packings of its weights."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A kernel whose models found close choices.

    `form` is the models' choice, made along `trail`; `write` writes the kernel with other choices. `work` is that of
    all its calls in a run. `code` is what is compiled for `form`, which may serve other kernels, too.
    """

    symbol: str
    nodes: tuple[str, ...]
    form: Form
    trail: Trail
    write: Callable[[Trail], Form]
    work: int
    code: tirx.PrimFunc

    @property
    def others(self) -> list[tuple[float, tuple[int, ...]]]:
        """The paths to forms in which one choice is another option, each with the gain to expect."""
        trail = self.trail
        every = zip(trail.asked, trail.counts, strict=True)
        return [
            (self.work * LIKELY.get(name, RARELY) * NEXT ** (option - 1), (*trail.taken[:place], option))
            for place, (name, count) in enumerate(every)
            for option in range(1, count)
        ]

    def key(self, machine: str, paths: Sequence[tuple[int, ...]]) -> str:
        """The key of the result on disk; it covers all that the kernel and its other forms are generated from."""
        facts = (toolchain_digest(), machine, str(self.form[0].attrs[SOURCE]), repr(paths))
        return hashlib.sha256("\n".join(("cpu choice", *facts)).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class _Race:
    """A kernel to be timed, the paths to its other forms, and the key of the result."""

    choice: Choice
    paths: tuple[tuple[int, ...], ...]
    key: str


@dataclass
class CloseChoices:
    """The close choices of a partition's kernels; `tuned` are those that were decided by timing."""

    tuning: Tuning
    objects: KernelObjects
    device: TargetDevice
    tuned: list[Tuned] = field(default_factory=list)
    _choices: list[Choice] = field(default_factory=list)
    _work: int = 0

    @property
    def machine(self) -> str:
        """What results depend on besides the kernel: the CPU, the target, and the number of threads of a run."""
        cpu = host_cpu()
        return "\n".join((cpu.name, ",".join(sorted(cpu.features)), str(self.device.target_json()), str(self.threads)))

    @property
    def threads(self) -> int:
        """The number of threads of a run."""
        return self.device.settings.threads or available_cores()

    def add(self, choice: Choice) -> None:
        """Note a kernel; those without close choices count as work only."""
        self._work += choice.work
        if WORTH <= choice.work <= MOST_WORK and choice.others and _nbytes(choice.form) <= MOST_BYTES:
            self._choices.append(choice)

    def decided(self) -> dict[str, Form]:
        """The kernels that get another form, by symbol."""
        timed: list[_Race] = []
        changed: dict[str, Form] = {}
        for choice, paths in self._selected():
            race = _Race(choice, paths, choice.key(self.machine, paths))
            known = self._remembered(race)
            if known is None:
                timed.append(race)
            elif known:
                changed[choice.symbol] = choice.write(Trail(known))
        if timed:
            before = len(self.tuned)
            try:
                for symbol, form in self._raced(timed):
                    changed[symbol] = form
            except Exception as error:  # the linker, TVM, numpy and ctypes raise classes of their own
                pass_foreign(error)
                left = count(len(timed) - (len(self.tuned) - before), "kernel")
                self.tuning.note(f"timing failed, and the models' choices stay for {left}: {first_line(error)}")
        return changed

    def _selected(self) -> list[tuple[Choice, tuple[tuple[int, ...], ...]]]:
        """The kernels that are timed, with the paths to their other forms: the same ones whatever is known already."""
        least = LEAST_SHARE * self._work
        every = [(g, number, path) for number, c in enumerate(self._choices) for g, path in c.others if g >= least]
        paths_of: dict[int, list[tuple[int, ...]]] = {}
        for _, number, path in sorted(every, key=lambda pair: (-pair[0], *pair[1:]))[:MOST_TIMED]:
            paths_of.setdefault(number, []).append(path)
        return [(self._choices[number], tuple(paths)) for number, paths in paths_of.items()]

    def _remembered(self, race: _Race) -> tuple[int, ...] | None:
        """The path that an earlier compile took, empty for the models' choices; None if it is not known."""
        match self.tuning.records.read(race.key) if self.tuning.records is not None else None:
            case {"path": list(path), "before": float(before), "after": float(after)}:
                known = tuple(path)
                if not known or known in race.paths:
                    self._record(race, known, (before, after), remembered=True)
                    return known
        return None

    def _record(
        self, race: _Race, path: tuple[int, ...], seconds: tuple[float, float], *, remembered: bool = False
    ) -> None:
        choice = race.choice
        label = ", ".join(choice.trail.names)
        if path:
            label = f"another {choice.trail.asked[len(path) - 1]} than {label}"
        self.tuned.append(
            Tuned(choice.symbol, choice.nodes, label, bool(path), 1 + len(race.paths), *seconds, remembered)
        )

    def _raced(self, races: Sequence[_Race]) -> Iterator[tuple[str, Form]]:
        """The symbols and forms of kernels of which another form is faster, each recorded before the next is timed."""
        every = [(race, _Forms.of(race, self.objects)) for race in races]
        written = [(race, forms) for race, forms in every if len(forms.names) > 1]
        if not written:
            return
        objects = self.objects.made(name for _, forms in written for name in forms.names)
        with scratch_folder("tune") as folder:
            path = folder / "forms.so"
            path.write_bytes(link({f"{name}.o": content for name, content in objects.items()}))
            module = load_library(str(path), "forms", HOST).module
            for race, forms in written:
                self.tuning.progress(f"timing {', '.join(race.choice.nodes) or race.choice.symbol}")
                racing = [Candidate(n, run) for n, run in zip(forms.names, forms.runs(module), strict=True)]
                best, seconds = fastest(self._times(racing, str(path)))
                if best:  # and once more: something else on the machine may have favoured it
                    again, seconds = fastest(self._times([racing[0], racing[best]], str(path)))
                    best = best if again else 0
                taken = forms.paths[best]
                self._record(race, taken, seconds)
                if self.tuning.records is not None:
                    record = {"path": list(taken), "before": seconds[0], "after": seconds[1]}
                    self.tuning.records.write(race.key, record)
                if best:
                    yield race.choice.symbol, forms.forms[best]

    def _times(self, racing: Sequence[Candidate], path: str) -> list[Sequence[float]]:
        """The seconds of forms in the library at `path`, on one thread and on as many as a run has."""
        times = []
        for threads in sorted({1, self.threads}):
            launch_on(path, threads)
            times.append(self.tuning.timer(racing, _ready))
        return times


def fastest(by_threads: Sequence[Sequence[float]]) -> tuple[int, tuple[float, float]]:
    """The number of the form to take, and the seconds of the first and of this one with the most threads.

    `by_threads` has the seconds of each form for each number of threads. A form in place of the first is slower with
    none of these, and faster by more than the noise in the mean.
    """
    first = [times[0] for times in by_threads]

    def gain(form: int) -> float:
        ratios = [times[form] / times[0] for times in by_threads]
        return 1.0 if max(ratios) > 1.0 else math.prod(ratios) ** (1 / len(ratios))

    best = min(range(len(by_threads[0])), key=gain)
    best = best if gain(best) < MARGIN else 0
    return best, (first[-1], by_threads[-1][best])


@dataclass(frozen=True, slots=True)
class _Forms:
    """The distinct forms of a kernel, the models' first, with the paths to them and the names of their functions."""

    forms: tuple[Form, ...]
    paths: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]

    @staticmethod
    def of(race: _Race, objects: KernelObjects) -> _Forms:
        """Write the other forms, and begin to compile them."""
        choice = race.choice
        form_of: dict[int, tuple[Form, tuple[int, ...]]] = {_code(choice.form): (choice.form, ())}
        for path in race.paths:
            form = choice.write(Trail(path))
            form_of.setdefault(_code(form), (form, path))
        forms, paths = zip(*form_of.values(), strict=True)
        code = [choice.code, *(form[0] for form in forms[1:])]
        return _Forms(forms, paths, tuple(map(objects.begin, code)))

    def runs(self, module: Any) -> list[Run]:
        """A function for each form that runs it, on random arguments that the forms share where they can."""
        made: dict[tuple[int, Tensor], Any] = {}
        runs: list[Run] = []
        for (function, _), name in zip(self.forms, self.names, strict=True):
            keys = [*enumerate(tensors_of(function))]
            for number, tensor in keys:
                if (number, tensor) not in made:
                    made[number, tensor] = _argument(tensor, number)
            runs.append(_bound(module[name], [made[key] for key in keys]))
        return runs


def _nbytes(form: Form) -> int:
    """The bytes of the arguments and results of a kernel."""
    tensors = (p.ty for p in form[0].params if hasattr(p.ty, "shape"))
    return sum(math.prod(map(int, ty.shape)) * DTYPE_BYTES.get(str(ty.dtype), 8) for ty in tensors)


def _code(form: Form) -> int:
    """A number that is equal for equal code."""
    return int(tvm_ffi.structural_hash(form[0].without_attr(SOURCE)))


def _ready() -> None:
    """A kernel on the CPU is done when its call returns."""


def _bound(function: Callable[..., Any], arguments: Sequence[Any]) -> Run:
    return lambda: function(*arguments)


def _argument(tensor: Tensor, number: int) -> Any:
    """A tensor with random values."""
    values = random_values(tensor, number)
    memory = aligned_bytes(values.nbytes).view(values.dtype).reshape(values.shape)
    np.copyto(memory, values)
    return host_tensor(memory)
