"""The steps of a run: starts of copies, calls of partitions, and waits for devices."""

from __future__ import annotations

from heterocc.artifacts.frozen import frozen


@frozen
class Space:
    """A memory for values: the host's, or that of a device (`backend` and `index` as in the manifest)."""

    backend: str
    index: int = 0

    def __lt__(self, other: Space) -> bool:
        return (self.backend, self.index) < (other.backend, other.index)

    def __str__(self) -> str:
        return "host" if self == HOST else f"{self.backend}:{self.index}"


HOST = Space("cpu")


@frozen
class Copy:
    """Start a copy of a value from one memory to another, without waiting for it."""

    value: int
    source: Space
    target: Space

    @property
    def carrier(self) -> Space:
        """The device whose queue has the copy: the target, or the source of a copy to the host."""
        return self.source if self.target == HOST else self.target

    def __str__(self) -> str:
        return f"copy v{self.value} {self.source} -> {self.target}"


@frozen
class Call:
    """Run a partition; on a device the call returns when its kernels are queued."""

    partition: int

    def __str__(self) -> str:
        return f"call p{self.partition}"


@frozen
class Wait:
    """Wait on the host until a copy or partition, and all earlier work of its device, is finished."""

    step: Copy | Call

    def __str__(self) -> str:
        return f"wait for {self.step}"


Step = Copy | Call | Wait
