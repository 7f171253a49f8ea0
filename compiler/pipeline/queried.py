"""The second step of a compile: ask each device which nodes it can run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from heterocc.artifacts.errors import UnsupportedOpError
from heterocc.compiler.api.progress import timed
from heterocc.compiler.pipeline.imported import Imported
from heterocc.compiler.pipeline.variants import VariantSpec, all_devices
from heterocc.compiler.placement.machine import build_machine
from heterocc.compiler.placement.run_passes import Trace, run_pipeline
from heterocc.compiler.support.cache import open_cache
from heterocc.compiler.support.calibration import Measured, measured_times
from heterocc.compiler.support.query import QueryResult, query_model
from heterocc.compiler.support.remedy import asked_again, refused_by_all, remedy
from heterocc.compiler.support.trial import Support
from heterocc.passes.base import Pass
from heterocc.passes.plan import Plan


@dataclass(frozen=True, kw_only=True, eq=False)
class Queried(Imported):
    """A model with the devices' answers, ready to be placed.

    `measured` are times of nodes and links that replace estimates. `wrong[device][node]` is the reason why a node
    failed on a device since then; placement avoids the pair in every variant.
    """

    query: QueryResult
    measured: Measured
    trace: Trace
    wrong: dict[str, dict[str, str]]

    def place(self, spec: VariantSpec, passes: Sequence[Pass] | None = None) -> Plan:
        """Run the passes, or others, for a variant's devices. Errors of the passes name the variant."""
        with self.reporter.stage("placing"), timed(self.request.seconds, "partition"), naming(spec):
            known = self.measured
            typical = self.model.typical
            refusals = self._refusals(spec)
            seen = build_machine(typical, spec.devices, refusals, known.seconds, known.links)
            initial = Plan.initial(typical.graph, seen, spec.affinity)
            try:
                return run_pipeline(initial, passes or self.request.passes, self.trace, variant=spec.prefix)
            except UnsupportedOpError as error:
                if type(error) is UnsupportedOpError:  # no device can run the node; subclasses concern one device
                    error.hint = remedy(self.model, spec.devices, refusals) or error.hint
                raise

    def _refusals(self, spec: VariantSpec) -> dict[str, dict[str, str]]:
        """The reasons why the variant's devices do not run nodes: those of the query, and of failures since then.

        Nodes that failed on the last resort go to devices that had left them to it.
        """
        found = self.query.reasons()
        refusals = {d.name: {**found[d.name], **self.wrong.get(d.name, {})} for d in spec.devices}
        failed = {name for d in spec.devices if d.last_resort for name in self.wrong.get(d.name, {})}
        nodes = [node for node in self.model.graph.nodes if node.name in failed]
        alone = Support(self.model, cache=open_cache())
        for node, device, refusal in asked_again(alone, refused_by_all(nodes, spec.devices, refusals), spec.devices):
            if refusal is None and node.name not in self.wrong.get(device.name, {}):
                del refusals[device.name][node.name]
        return refusals


def query(imported: Imported) -> Queried:
    """Query every device about every node, and look up what is known of their times."""
    request, reporter, model, devices = imported.request, imported.reporter, imported.model, imported.devices
    with reporter.stage("querying devices", len(model.graph.nodes)) as progress, timed(request.seconds, "query"):
        if imported.shapes.unchanged:  # single nodes cannot be tried, of whose values little is known
            devices = all_devices(spec.devices for spec in imported.specs)
            found = QueryResult(model.graph, devices, {device.name: {} for device in devices})
        else:
            found = query_model(model, devices, on_node=progress.step)
    for note in found.notes:
        reporter.note(note)
    measured = measured_times(model, devices, found.refusals) if request.calibrated else Measured()
    for note in measured.notes:
        reporter.note(note)
    trace = Trace(request.options.dump_dir, request.options.pass_limit)
    return imported.then(Queried, query=found, measured=measured, trace=trace, wrong={})


@contextmanager
def naming(spec: VariantSpec) -> Iterator[None]:
    """Make errors of requested variants other than the main one name their variant."""
    try:
        yield
    except UnsupportedOpError as error:
        if not spec.is_main and not spec.automatic:
            error.message = f"variant {spec.name}: {error.message}"
        raise
