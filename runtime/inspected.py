"""The part of a session that shows what happens in a run: times, values and kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from heterocc.artifacts.errors import HeteroccError, UsageError
from heterocc.runtime import forks
from heterocc.runtime.execute.chain import Context
from heterocc.runtime.feeds import Feed, nearest
from heterocc.runtime.loading.loaded import Loaded, Results
from heterocc.runtime.running import Running

if TYPE_CHECKING:  # imported when they are used: most sessions neither profile nor trace
    from heterocc.runtime.profile.profile import Profile
    from heterocc.runtime.profile.trace import TraceCallback


class Inspected(Running):
    """Profiles, traces and the drivers' binaries."""

    def profile(self) -> Profile:
        """The times of partitions, kernels and transfers, averaged over all runs so far.

        Of a bundle for several shapes, it covers the variant of the last run; with MULTI, that of the first device.
        Raises UsageError unless the bundle was loaded with `profile=True`.
        """
        ready = self._using(Loaded.last)
        pool = ready.pool
        if pool.timestamps is None:
            raise UsageError(
                "this session does not profile", hint="load the bundle with profile=True: load(path, profile=True)"
            )
        from heterocc.runtime.profile.profile import build_profile

        return build_profile(ready.variant, pool.chain.schedule, pool.recorders, pool.timestamps)

    def clear_profile(self) -> None:
        """Discard the times of all runs so far, such as a warm-up. No run may be in progress."""
        self._alive()
        for member in self._members:
            for ready in member.all_ready():
                for recorder in ready.pool.recorders:
                    recorder.clear()

    def run_traced(self, feed: Feed) -> Results:
        """Run once and return every value at a partition's boundary, by the variant's value names.

        Inputs, outputs, constants and values between partitions are all copies.
        """
        ready, arrays = self._using(lambda loaded: loaded.fitting(feed))
        with forks.working(self._bundle.path):
            context = Context(ready.pool.chain, reuse=False)
        ready.runs.run_on(context, arrays)
        return {ready.variant.values[v].name: value for v, value in context.values().items()}

    def trace_kernels(self, feed: Feed, callback: TraceCallback, partition: int | str | None = None) -> None:
        """Run once and call `callback` after every kernel of `partition` (name or number; None: all), in run order."""
        ready, arrays = self._using(lambda loaded: loaded.fitting(feed))
        chain = ready.pool.chain
        names = [p.name for p in ready.variant.partitions]
        if isinstance(partition, str):
            if partition not in names:
                raise UsageError(f"the variant has no partition '{partition}'", hint=nearest(partition, names))
            partition = names.index(partition)
        from heterocc.runtime.profile.trace import Tap

        tap = Tap(ready.variant, chain.schedule, partition, callback)
        try:
            ready.runs.run_on(Context(chain, observer=tap), arrays)
        except HeteroccError:
            if tap.error is not None:
                raise tap.error from None
            raise

    def kernel_binaries(self) -> dict[str, bytes]:
        """The drivers' binaries of the kernels, by partition, which a bundle may hold beside the code (OpenCL only).

        They are complete after a run, because some drivers compile for the sizes of a launch. May take as long as
        compiling.
        """
        chain = self._alive().pool.chain
        with forks.working(self._bundle.path):
            found = {e.name: e.binaries() for e in chain.compiled.values()}
        return {name: data for name, data in found.items() if data}
