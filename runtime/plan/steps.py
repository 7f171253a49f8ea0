"""What a run consists of: copies that are started, partitions that are called, and waits for what devices do."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Space:
    """A memory that values live in: the host's, or that of a device (`backend` and `index` as in the manifest)."""

    backend: str
    index: int = 0

    def __str__(self) -> str:
        return "host" if self == HOST else f"{self.backend}:{self.index}"


HOST = Space("cpu")


@dataclass(frozen=True, slots=True)
class Copy:
    """Start to send a value from one memory to another; the host goes on at once."""

    value: int
    source: Space
    target: Space

    @property
    def carrier(self) -> Space:
        """The device whose queue carries the copy: the one that gets the value, or gives it to the host."""
        return self.source if self.target == HOST else self.target

    def __str__(self) -> str:
        return f"copy v{self.value} {self.source} -> {self.target}"


@dataclass(frozen=True, slots=True)
class Call:
    """Run a partition; on a device the host goes on when its kernels are queued."""

    partition: int

    def __str__(self) -> str:
        return f"call p{self.partition}"


@dataclass(frozen=True, slots=True)
class Wait:
    """The host waits until a copy or a partition is done, and with it all that its device was given before."""

    step: Copy | Call

    def __str__(self) -> str:
        return f"wait for {self.step}"


Step = Copy | Call | Wait
